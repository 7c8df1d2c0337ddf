"""Entry point of a night's OPTIMIZE: `spark-submit spark_jobs/optimize_tables.py --pipeline games --round daily`."""

from __future__ import annotations

import argparse
import sys

from deltaworks.control.job import print_results, run_job
from deltaworks.maintenance.optimize_night import optimize_tables
from deltaworks.specs.catalog import load_catalog
from deltaworks.tables.spark.session import build_session


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--tables", type=lambda text: text.split(","), help="names with commas between them")
    parser.add_argument("--round", choices=("daily", "weekly"), default="daily", help="weekly has a second round")
    parser.add_argument("--minutes", type=float, help="for each round; by default what the pipeline declares")
    arguments = parser.parse_args()
    catalog = load_catalog(tolerant=True)
    catalog.pipeline(arguments.pipeline)
    spark = build_session(catalog.environment, app_name=f"optimize_tables.{arguments.pipeline}")
    optimize_tables(
        spark,
        catalog,
        arguments.pipeline,
        weekly=arguments.round == "weekly",
        minutes=arguments.minutes,
        tables=arguments.tables,
        report=print_results,
    )
    return 0


if __name__ == "__main__":
    sys.exit(run_job(main))
