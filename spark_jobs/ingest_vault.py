"""The job of the operation `ingest_vault`: `python spark_jobs/ingest_vault.py --namespace NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("ingest_vault"))
