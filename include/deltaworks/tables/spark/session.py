"""The Spark session every job uses: opened with Deltaworks' settings, the storages of the environment, and UTC.

And what commits through it need: settings for the time of one, `userMetadata` among them, and attempts after a
conflict.
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
#: The condition of a conflict with another writer.
CONFLICT_CONDITION = "DELTA_CONFLICT"


def build_session(
    environment: EnvironmentSpec,
    *,
    app_name: str,
    master: str | None = None,
    ui: bool = False,
    share: Share | None = None,
) -> SparkSession:
    """The session of this process, created on first use.

    Under spark-submit the master and the class path come from there; started as plain Python, from here.

    Args:
        master: used where spark-submit gave none; by default DELTAWORKS_SPARK_MASTER or `local[2]`.
        ui: serve Spark's own pages on a free port.
        share: what the job takes of the cluster, used where spark-submit was given none; without it what the master
            gives, which of a standalone one is everything.

    Raises:
        ConfigError: JARS_MISSING; LOG_STORE_UNSAFE when the lake is shared and its log store is not ours;
            SPARK_UNPROTECTED.
    """
    root = project_root()
    conf = session_conf(environment)
    check_log_store(conf, shared=environment.lake.scheme == "s3")
    builder = SparkSession.builder.appName(app_name)
    if not _launched_by_spark_submit():
        _check_jars(root)
        # Workers start whatever `python3` is found otherwise, which lacks the environment's libraries.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        master = master or os.environ.get("DELTAWORKS_SPARK_MASTER", "local[2]")
        check_master(environment, master)
        launch = launch_settings(share, master, environment) if share is not None else None
        master = launch.master if launch is not None else master
        builder = builder.master(master)
        conf = submit_conf(environment, root, launch) | conf
        if master.startswith("local"):
            # The driver may have found this package by other ways than the PYTHONPATH its workers inherit.
            conf["spark.executorEnv.PYTHONPATH"] = str(PROJECT_ROOT / "include")
    conf["spark.ui.enabled"] = str(ui).lower()
    # Any free port: several drivers share a machine, and the heartbeat and the task's link say which it is.
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
        raise ConfigError(
            "JARS_MISSING",
            f"{jars} has no Delta jar.",
            hint="Run `make jars`, which resolves and compiles them once with Maven.",
        )


def _ship_library(spark: SparkSession) -> None:
    """Send this package to executors on other machines; on this one they import it from where it is."""
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
    """Settings of the session for the time of a block, put back as they were after it."""
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
    """Attempts that are repeated after a conflict with another writer, a few times and with growing pauses."""

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
