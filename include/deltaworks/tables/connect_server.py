"""The Spark Connect server: remote sessions in the driver of one Spark job, with all tables and views by name.

A lease allows only one per lake. Sessions share the driver's catalog, into which tables and views are registered as
they appear. Spark checks the token of each request; beyond that a session may do what the process may.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from deltaworks.control import paths
from deltaworks.control.foreign_errors import error_text
from deltaworks.control.leased_process import LeasedProcess
from deltaworks.control.objects import open_objects
from deltaworks.errors import ConfigError, DeltaworksError, job_line
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog
from deltaworks.specs.project_folder import declaration_state
from deltaworks.specs.share_conf import connect_share
from deltaworks.specs.sql_server import SparkConnectSpec
from deltaworks.specs.weak_secrets import reject_weak
from deltaworks.tables.spark_catalog import SparkCatalog
from deltaworks.tables.spark_session import build_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
LEASE_SECONDS: Final = 30.0
#: Interval of registering new tables, which opens each missing one.
CHECK_INTERVAL_SECONDS = 10.0
MAX_RUN_SECONDS: Final = 86_400.0
STALL_SECONDS: Final = 300.0


class SparkConnectProcess:
    """One run of the declared server. `run` returns at its time limit or when a stop is requested.

    Raises:
        ConfigError: SPARK_CONNECT_NOT_DECLARED.
    """

    def __init__(self, catalog: Catalog) -> None:
        declared = catalog.environment
        if declared.spark_connect is None:
            raise ConfigError(
                "SPARK_CONNECT_NOT_DECLARED", f"The environment {declared.environment} declares no spark_connect."
            )
        self._spec = declared.spark_connect
        lake = self._spec.storage(declared.lake)
        #: The environment in which the process reaches the lake with its own keys, and no landing bucket.
        self.environment = declared.model_copy(update={"lake": lake, "landing": lake})
        self._catalog = replace(catalog, environment=self.environment)
        self._leased_process = LeasedProcess(
            open_objects(self.environment.lake),
            paths.spark_connect_control(),
            name=paths.SPARK_CONNECT_PROCESS,
            ttl_seconds=LEASE_SECONDS,
            max_run_seconds=MAX_RUN_SECONDS,
            trigger_seconds=CHECK_INTERVAL_SECONDS,
            stall_seconds=STALL_SECONDS,
        )
        self._excluded: Mapping[str, str] = {}

    def run(self) -> None:
        """Serves until the run ends.

        Raises:
            ConfigError: SPARK_CONNECT_ADDRESS_UNAVAILABLE, REFERENCE_UNRESOLVED, SECRET_WEAK, or an error of
                `build_session`.
            ConcurrencyError: LEASE_HELD, another process serves.
            FencedError: LEASE_LOST, a successor has taken over.
        """
        with self._leased_process.hold_lease(state="starting"):
            spark = build_session(
                self.environment,
                app_name="spark_connect",
                ui=True,
                share=connect_share(self._spec, self.environment),
                conf=_server_conf(self._spec),
            )
            print(job_line("UI", spark.sparkContext.uiWebUrl or ""), flush=True)  # noqa: T201 - the line a launcher reads
            self._leased_process.heartbeat.update(ui=spark.sparkContext.uiWebUrl)
            tables = SparkCatalog(spark, on_progress=self._leased_process.record_progress)
            try:
                self._register(tables)
                with _listening(spark, self._spec) as address:
                    log.warning("Serving Spark Connect on %s", address)
                    self._serve(spark, tables)
            finally:
                spark.stop()

    def _serve(self, spark: SparkSession, tables: SparkCatalog) -> None:
        loaded = declaration_state(self._catalog.root)
        while not self._leased_process.should_stop:
            state = declaration_state(self._catalog.root)
            try:
                if state != loaded:
                    loaded = state
                    # Pipelines only: address, token and resources are those of the start.
                    self._catalog = replace(load_catalog(skip_invalid=True), environment=self.environment)
            except DeltaworksError as error:
                log.warning("Changed files are ignored until they are mended: %s", error)
            self._register(tables)
            is_running = _service(spark).listActiveExecutions().isRight()
            self._leased_process.heartbeat.update(state="running" if is_running else "idle")
            self._leased_process.pause(CHECK_INTERVAL_SECONDS)

    def _register(self, tables: SparkCatalog) -> None:
        excluded = tables.register(self._catalog)
        for name, reason in excluded.items():
            if self._excluded.get(name) != reason:
                log.warning("%s is excluded: %s", name, reason)
        self._excluded = excluded


def _server_conf(spec: SparkConnectSpec) -> dict[str, str]:
    """Returns the settings of the server. They contain its token and must stay in the driver's memory.

    Raises:
        ConfigError: REFERENCE_UNRESOLVED, SECRET_WEAK.
    """
    token = spec.token.resolve()
    reject_weak(token, location="spark_connect.token", variable=spec.token.name)
    return {
        "spark.connect.grpc.binding.address": spec.listen.host,
        "spark.connect.grpc.binding.port": str(spec.listen.port),
        "spark.connect.authenticate.token": token,
    }


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm


def _service(spark: SparkSession) -> Any:
    """Returns Spark's server, an object of Scala."""
    return getattr(getattr(_jvm(spark).org.apache.spark.sql.connect.service, "SparkConnectService$"), "MODULE$")


@contextmanager
def _listening(spark: SparkSession, spec: SparkConnectSpec) -> Iterator[str]:
    """Accepts sessions while the block runs. Yields the address.

    Raises:
        ConfigError: SPARK_CONNECT_ADDRESS_UNAVAILABLE.
    """
    service = _service(spark)
    try:
        service.start(spark.sparkContext._jsc.sc())
    except Exception as error:  # py4j wraps the error of the JVM
        if "BindException" not in error_text(error):
            raise
        raise ConfigError(
            "SPARK_CONNECT_ADDRESS_UNAVAILABLE",
            f"The server cannot listen on {spec.listen.host}:{spec.listen.port}.",
        ) from error
    try:
        yield f"{spec.listen.host}:{service.bindingAddress().getPort()}"
    finally:
        none = _jvm(spark).scala.Option.empty()
        service.stop(none, none)
