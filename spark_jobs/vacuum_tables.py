"""Entry point of VACUUM, a dry run unless told otherwise: `spark_jobs/vacuum_tables.py --pipeline games`."""

from __future__ import annotations

import argparse
import sys

from deltaworks.control.job import print_results, run_job
from deltaworks.maintenance.vacuum import vacuum_tables
from deltaworks.specs.catalog import load_catalog
from deltaworks.tables.spark.session import build_session


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--tables", type=lambda text: text.split(","), help="names with commas between them")
    parser.add_argument("--no-dry-run", dest="dry_run", action="store_false", help="delete the files")
    parser.add_argument("--retention-hours", type=int, help="by default what the pipeline declares")
    parser.add_argument("--allow-below-minimum", default="", metavar="REASON", help="why less than 168 h is to be kept")
    parser.add_argument("--mode", choices=("lite", "full"), help="by the log alone, or by listing; by default by turns")
    arguments = parser.parse_args()
    catalog = load_catalog(tolerant=True)
    catalog.pipeline(arguments.pipeline)
    spark = build_session(catalog.environment, app_name=f"vacuum_tables.{arguments.pipeline}")
    results = vacuum_tables(
        spark,
        catalog,
        arguments.pipeline,
        tables=arguments.tables,
        dry_run=arguments.dry_run,
        retention_hours=arguments.retention_hours,
        below_minimum=arguments.allow_below_minimum,
        mode=arguments.mode,
    )
    print_results(results)
    return 0


if __name__ == "__main__":
    sys.exit(run_job(main))
