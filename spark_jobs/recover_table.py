"""The job of the operation `recover_table`: `python spark_jobs/recover_table.py --pipeline NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("recover_table"))
