"""Entry point of a group of streams: `spark-submit spark_jobs/ingest_group.py --group small`."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from deltaworks.control.health.heartbeat import group_backoff
from deltaworks.control.job import run_job
from deltaworks.control.objects import open_objects
from deltaworks.engine.group_run import GroupRun
from deltaworks.errors import job_line
from deltaworks.lineage.runs import stream_lineage
from deltaworks.operations.stream_parts import STREAM_PARTS
from deltaworks.specs.groups import stream_groups
from deltaworks.specs.project import load_catalog
from deltaworks.tables.spark_session import build_session


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--group", required=True)
    parser.add_argument("--available-now", action="store_true", help="read the available input, then end")
    arguments = parser.parse_args()
    load = partial(load_catalog, skip_invalid=True)
    catalog = load()
    with group_backoff(open_objects(catalog.environment.lake), arguments.group).run_with_backoff():
        spark = build_session(catalog.environment, app_name=f"stream_group.{arguments.group}", ui=True)
        print(job_line("UI", spark.sparkContext.uiWebUrl or ""), flush=True)
        run = GroupRun(
            spark, arguments.group, catalog, load=load, parts=STREAM_PARTS, available_now=arguments.available_now
        )
        group = stream_groups(catalog).get(arguments.group)
        with stream_lineage(spark, catalog, list(group.members) if group else []):
            result = run.run()
    print(f"ended by {result.ended_by}: {result.batches} batches, {result.rows} rows, {result.seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(run_job(main))
