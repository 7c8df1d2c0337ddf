"""Entry point of OPTIMIZE with Z-order: `spark-submit spark_jobs/optimize_tables.py --pipeline games`."""

from __future__ import annotations

import argparse
import sys

from deltaworks.job import print_results, run_job
from deltaworks.maintenance.optimize import optimize_tables
from deltaworks.spark_session import build_session
from deltaworks.specs.catalog import load_catalog


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--tables", type=lambda text: text.split(","), help="names with commas between them")
    arguments = parser.parse_args()
    catalog = load_catalog(tolerant=True)
    catalog.pipeline(arguments.pipeline)
    spark = build_session(catalog.environment, app_name=f"optimize_tables.{arguments.pipeline}")
    print_results(optimize_tables(spark, catalog, arguments.pipeline, tables=arguments.tables))
    return 0


if __name__ == "__main__":
    sys.exit(run_job(main))
