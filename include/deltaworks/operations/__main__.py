"""Runs an operation as a process: `python -m deltaworks.operations vacuum_tables --pipeline games …`.

Operations that Spark runs have an entry point of their own in `spark_jobs/`, because spark-submit takes a file.
"""

from __future__ import annotations

import sys

from deltaworks.operations.job import main
from deltaworks.operations.registry import OPERATIONS

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in OPERATIONS:
        sys.exit(f"usage: python -m deltaworks.operations OPERATION …, one of: {', '.join(OPERATIONS)}")
    sys.exit(main(sys.argv[1], sys.argv[2:]))
