"""The job of the operation `purge_deleted`: `spark-submit spark_jobs/purge_deleted.py --pipeline NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("purge_deleted"))
