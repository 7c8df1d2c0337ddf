"""The job of the operation `clean_source`: `python spark_jobs/clean_source.py --relay NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("clean_source"))
