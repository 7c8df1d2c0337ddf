"""Entry point of a reprocess; it counts unless told otherwise: `spark_jobs/reprocess.py --pipeline games`."""

from __future__ import annotations

import sys

from deltaworks.control.job import print_results, run_job
from deltaworks.control.objects import open_objects
from deltaworks.control.records.reprocess import new_reprocess_id, reprocess_id_of_run
from deltaworks.errors import ConfigError
from deltaworks.rework.reprocess.arguments import parser, request
from deltaworks.rework.reprocess.plan import Planner, landing_opener
from deltaworks.rework.reprocess.run import Reprocess
from deltaworks.specs.catalog import load_catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.spark.session import build_session


def main() -> int:
    arguments = parser(__doc__).parse_args()
    catalog = load_catalog(tolerant=True)
    spec, storage = catalog.pipeline(arguments.pipeline), catalog.environment.lake
    asked = request(vars(arguments))
    if arguments.dry_run:
        if asked is None:
            raise ConfigError("REPROCESS_SELECTION", "Nothing is selected.", hint="Fill in one way to select.")
        planner = Planner(Lake(storage), open_objects(storage), spec)
        print_results([planner.count(asked, landing_opener(catalog.environment, spec), exact=arguments.exact)])
        return 0
    name = arguments.id or (reprocess_id_of_run(arguments.run) if arguments.run else new_reprocess_id())
    spark = build_session(catalog.environment, app_name=f"reprocess.{arguments.pipeline}")
    result = Reprocess(spark, catalog, arguments.pipeline).run(name, asked)
    print_results(result.tables)
    print_results([result])
    return 0


if __name__ == "__main__":
    sys.exit(run_job(main))
