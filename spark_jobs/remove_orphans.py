"""The job of the operation `remove_orphans`: `python spark_jobs/remove_orphans.py --pipeline NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("remove_orphans"))
