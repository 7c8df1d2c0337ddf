"""The job of the operation `verify_gold`: `spark-submit spark_jobs/verify_gold.py --pipeline NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("verify_gold"))
