"""Entry point of the Spark Connect server: `spark-submit spark_jobs/serve_spark_connect.py`."""

from __future__ import annotations

import sys

from deltaworks.control import paths
from deltaworks.control.backoff import RestartBackoff
from deltaworks.control.job import run_job
from deltaworks.control.objects import open_objects
from deltaworks.specs.project import load_catalog
from deltaworks.tables.connect_server import SparkConnectProcess


def main() -> int:
    process = SparkConnectProcess(load_catalog(skip_invalid=True))
    failures = paths.failures(paths.spark_connect_control())
    with RestartBackoff(open_objects(process.environment.lake), failures).run_with_backoff():
        process.run()
    return 0


if __name__ == "__main__":
    sys.exit(run_job(main))
