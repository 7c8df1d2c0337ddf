"""The job of the operation `resume_table`: `python spark_jobs/resume_table.py --pipeline NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("resume_table"))
