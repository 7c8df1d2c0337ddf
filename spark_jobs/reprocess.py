"""The job of the operation `reprocess`: `spark-submit spark_jobs/reprocess.py --pipeline NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("reprocess"))
