"""Entry point of gold builds: `spark-submit spark_jobs/rebuild_gold.py --pipeline games`."""

from __future__ import annotations

import argparse
import sys

from deltaworks.control.job import print_results, run_job
from deltaworks.gold.build import rebuild_gold
from deltaworks.gold.plan import dates_of
from deltaworks.gold.refresh import refresh_gold
from deltaworks.specs.catalog import load_catalog
from deltaworks.tables.spark.session import build_session


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--tables", type=lambda text: text.split(","), help="names with commas between them")
    parser.add_argument("--dates", type=dates_of, help="these only: 2026-01-01..2026-01-07 or with commas between")
    parser.add_argument("--full", action="store_true", help="build every partition, changed or not")
    parser.add_argument("--shadow", action="store_true", help="a full build beside the tables, swapped in once checked")
    parser.add_argument("--no-dry-run", dest="dry_run", action="store_false", help="of --shadow: build and swap")
    arguments = parser.parse_args()
    catalog = load_catalog(tolerant=True)
    catalog.pipeline(arguments.pipeline)
    spark = build_session(catalog.environment, app_name=f"rebuild_gold.{arguments.pipeline}")
    if arguments.shadow:
        dry_run, tables = arguments.dry_run, arguments.tables
        print_results(refresh_gold(spark, catalog, arguments.pipeline, tables=tables, dry_run=dry_run))
        return 0
    result = rebuild_gold(
        spark, catalog, arguments.pipeline, tables=arguments.tables, full=arguments.full, dates=arguments.dates
    )
    print_results(result.tables)
    return 0


if __name__ == "__main__":
    sys.exit(run_job(main))
