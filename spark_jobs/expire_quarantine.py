"""The job of the operation `expire_quarantine`: `python spark_jobs/expire_quarantine.py --pipeline NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("expire_quarantine"))
