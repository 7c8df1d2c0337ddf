"""The job of the operation `vacuum_tables`: `spark-submit spark_jobs/vacuum_tables.py --pipeline NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("vacuum_tables"))
