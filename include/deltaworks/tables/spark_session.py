"""Opens the Spark session of every job with Deltaworks' settings, the environment's storages, and time zone UTC.

Also sets temporary session settings for one commit, such as `userMetadata`, and retries after conflicts.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter

from deltaworks.control.job import as_deltaworks_error
from deltaworks.errors import ConfigError
from deltaworks.specs.catalog import PROJECT_ROOT, project_root
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.share_conf import launch_settings
from deltaworks.specs.shares import Share
from deltaworks.specs.spark_conf import check_log_store, check_master, project_paths, session_conf, submit_conf

USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
log = logging.getLogger(__name__)
MAX_ATTEMPTS = 6
#: Condition code of a conflict with another writer.
CONFLICT_CONDITION = "DELTA_CONFLICT"


def build_session(
    environment: EnvironmentSpec,
    *,
    app_name: str,
    master: str | None = None,
    ui: bool = False,
    share: Share | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Returns the process's Spark session; creates it on first use.

    Under spark-submit, master and class path come from there; otherwise they are set here.

    Args:
        master: used if spark-submit gave none; by default DELTAWORKS_SPARK_MASTER or `local[2]`.
        ui: serve Spark's UI on a free port.
        share: the job's part of the cluster's cores and memory, used without spark-submit; by default the complete
            cluster.
        conf: further settings, which stay in the driver's memory.

    Raises:
        ConfigError: JARS_MISSING; LOG_STORE_UNSAFE, the lake is on shared storage without Deltaworks' log store;
            SPARK_UNPROTECTED.
    """
    root = project_root()
    conf = session_conf(environment) | dict(conf or {})
    check_log_store(conf, shared=environment.lake.scheme == "s3")
    builder = SparkSession.builder.appName(app_name)
    if not _launched_by_spark_submit():
        _check_jars(root)
        # By default workers start the first `python3` on the PATH, which lacks this environment's libraries.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        master = master or os.environ.get("DELTAWORKS_SPARK_MASTER", "local[2]")
        check_master(environment, master)
        launch = launch_settings(share, master, environment) if share is not None else None
        master = launch.master if launch is not None else master
        builder = builder.master(master)
        conf = submit_conf(environment, root, launch) | conf
        if master.startswith("local"):
            # The driver may have imported this package by other means than the PYTHONPATH that workers inherit.
            conf["spark.executorEnv.PYTHONPATH"] = str(PROJECT_ROOT / "include")
    conf["spark.ui.enabled"] = str(ui).lower()
    # A free port, because several drivers share a machine; heartbeat and task link show it.
    conf["spark.ui.port"] = "0"
    conf["spark.executorEnv.TZ"] = "UTC"
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    _ship_library(spark)
    return spark


def _launched_by_spark_submit() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _check_jars(root: Path) -> None:
    jars, _ = project_paths(root)
    if not any(jars.glob("delta-spark*.jar")):
        raise ConfigError("JARS_MISSING", f"{jars} has no Delta jar.")


def _ship_library(spark: SparkSession) -> None:
    """Sends this package to executors on other machines; local ones import it from its folder."""
    if str(spark.sparkContext.master).startswith("local"):
        return
    spec = importlib.util.find_spec("deltaworks")
    if spec is None or not spec.submodule_search_locations:
        return
    package = Path(next(iter(spec.submodule_search_locations)))
    folder = tempfile.mkdtemp(prefix="deltaworks-package-")
    archive = shutil.make_archive(f"{folder}/deltaworks", "zip", root_dir=package.parent, base_dir=package.name)
    spark.sparkContext.addPyFile(archive)


@contextmanager
def override_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Overrides session settings while the block runs, and restores them afterwards."""
    previous = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in previous.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def retry_conflicts(table: str) -> Retrying:
    """Returns a retry policy for commits that conflict with other writers: a few attempts with increasing waits."""

    def log_conflict(state: RetryCallState) -> None:
        problem = state.outcome.exception() if state.outcome else None
        log.warning("table=%s attempt=%d met another writer: %s", table, state.attempt_number, problem)

    return Retrying(
        retry=retry_if_exception(_is_conflict),
        stop=stop_after_attempt(MAX_ATTEMPTS),
        wait=wait_exponential_jitter(initial=0.2, max=5.0),
        before_sleep=log_conflict,
        reraise=True,
    )


def _is_conflict(error: BaseException) -> bool:
    return as_deltaworks_error(error).condition == CONFLICT_CONDITION
