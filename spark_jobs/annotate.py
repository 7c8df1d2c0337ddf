"""The job of the operation `annotate`: `python spark_jobs/annotate.py --pipeline NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("annotate"))
