"""The job of the operation `reveal`: `python spark_jobs/reveal.py --namespace NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("reveal"))
