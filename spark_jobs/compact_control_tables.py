"""The job of the operation `compact_control_tables`: `python spark_jobs/compact_control_tables.py --pipeline NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("compact_control_tables"))
