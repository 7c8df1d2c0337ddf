"""The job of the operation `erase`: `python spark_jobs/erase.py --namespace NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("erase"))
