"""Entry point of a pipeline's stream: `spark-submit spark_jobs/ingest_stream.py --pipeline games`."""

from __future__ import annotations

import argparse
import sys

from deltaworks.control import paths
from deltaworks.control.backoff import RestartBackoff
from deltaworks.control.job import run_job
from deltaworks.control.objects import open_objects
from deltaworks.engine.runner import IngestRun
from deltaworks.errors import job_line
from deltaworks.lineage.runs import stream_lineage
from deltaworks.operations.stream_parts import STREAM_PARTS
from deltaworks.specs.project import load_catalog
from deltaworks.specs.share_conf import stream_share
from deltaworks.tables.spark_session import build_session


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--available-now", action="store_true", help="read the available input, then end")
    arguments = parser.parse_args()
    catalog = load_catalog(skip_invalid=True)
    share = stream_share(catalog.pipeline(arguments.pipeline), catalog.environment)
    objects = open_objects(catalog.environment.lake)
    with RestartBackoff(objects, paths.pipeline_control(arguments.pipeline, "failures.json")).run_with_backoff():
        spark = build_session(catalog.environment, app_name=f"stream.{arguments.pipeline}", ui=True, share=share)
        print(job_line("UI", spark.sparkContext.uiWebUrl or ""), flush=True)
        with stream_lineage(spark, catalog, [arguments.pipeline]):
            result = IngestRun(
                spark, catalog, arguments.pipeline, parts=STREAM_PARTS, available_now=arguments.available_now
            ).run()
    print(f"ended by {result.ended_by}: {result.batches} batches, {result.rows} rows, {result.seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(run_job(main))
