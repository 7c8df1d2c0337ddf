"""Entry point of the purge of deleted rows, a dry run unless told otherwise: `purge_deleted.py --pipeline crm`."""

from __future__ import annotations

import argparse
import sys

from deltaworks.control.job import print_results, run_job
from deltaworks.mutations.purge import purge_deleted
from deltaworks.specs.catalog import load_catalog
from deltaworks.tables.spark.session import build_session


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--no-dry-run", dest="dry_run", action="store_false", help="remove the rows")
    arguments = parser.parse_args()
    catalog = load_catalog(tolerant=True)
    catalog.pipeline(arguments.pipeline)
    spark = build_session(catalog.environment, app_name=f"purge_deleted.{arguments.pipeline}")
    print_results(purge_deleted(spark, catalog, arguments.pipeline, dry_run=arguments.dry_run))
    return 0


if __name__ == "__main__":
    sys.exit(run_job(main))
