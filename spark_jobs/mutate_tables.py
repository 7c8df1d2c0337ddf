"""Entry point of mutation batches, which only count unless told otherwise: `mutate_tables.py --pipeline crm`."""

from __future__ import annotations

import argparse
import sys

from deltaworks.control.job import print_results, run_job
from deltaworks.mutations.apply import MutationRun
from deltaworks.mutations.report import forecast
from deltaworks.specs.catalog import load_catalog
from deltaworks.tables.spark.session import build_session


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--org", help="requests of this organisation alone")
    parser.add_argument("--everything", action="store_true", help="compare all rows with all requests anew")
    parser.add_argument("--no-dry-run", dest="dry_run", action="store_false", help="change the tables")
    arguments = parser.parse_args()
    catalog = load_catalog(tolerant=True)
    catalog.pipeline(arguments.pipeline)
    spark = build_session(catalog.environment, app_name=f"mutate_tables.{arguments.pipeline}")
    chosen = {"organisation": arguments.org, "everything": arguments.everything}
    if arguments.dry_run:
        found = forecast(spark, catalog, arguments.pipeline, **chosen)
        print_results([] if found is None else [found])
        return 0
    done = MutationRun(spark, catalog, arguments.pipeline).run(**chosen)
    print_results([*done.completed, *done.batches])
    return 0


if __name__ == "__main__":
    sys.exit(run_job(main))
