"""Announces new rows of stream tables and of gold that the stream builds, as events of Airflow's assets.

Airflow itself only knows what its tasks wrote when they ended, and a stream's task runs for hours. So the stream's
process compares the tables' logs and creates an asset event per changed table, at most one in `asset_seconds`. DAGs
that are scheduled on the asset run then. Tables whose asset no DAG names are not read.

An Airflow that does not answer delays events and ends nothing. A commit may be announced twice after a crash, never
lost while the stream runs: the next event covers it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from deltaworks.airflow_client.api import AirflowApi
from deltaworks.airflow_client.login import airflow_login
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.foreign_errors import describe_cause
from deltaworks.errors import ConfigError
from deltaworks.lineage.runs import batch_lineage
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.dag_ids import asset_name
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.commit import refresh
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history

if TYPE_CHECKING:
    from deltalake import DeltaTable

log = logging.getLogger(__name__)
#: Interval of comparing the logs. With a scheduler that looks every few seconds, a DAG starts well within a minute.
_LOOK_SECONDS: Final = 10.0
#: Interval of asking Airflow for assets, which new DAGs add.
_ASSETS_SECONDS: Final = 120.0
_CLOSE_SECONDS: Final = 10.0
#: Minimum interval of events if the environment does not declare Airflow.
_DEFAULT_SECONDS: Final = 60.0
_TIMEOUT_SECONDS: Final = 10.0


class AssetClient(Protocol):
    """What the announcer needs of Airflow's API."""

    def assets(self, pattern: str) -> Mapping[str, int]:
        """Returns ids of assets by name."""
        ...

    def create_asset_event(self, asset_id: int, extra: Mapping[str, Any]) -> None:
        """Creates an event of an asset."""
        ...


@dataclass(slots=True)
class _WatchedTable:
    """A table with its open handle, the version up to which it was announced, when, and whether that fails."""

    kind: str
    name: str
    handle: DeltaTable | None = None
    version: int | None = None
    announced_at: float = float("-inf")
    is_failing: bool = False


def announced_tables(spec: PipelineSpec) -> dict[str, str]:
    """Returns the tables that the stream's process announces, with the kind in the name of their asset."""
    kinds = {table.name: "bronze" for table in spec.tables}
    return kinds | {table.name: "gold" for table in spec.gold.stream_refreshed_tables}


class AssetAnnouncer:
    """Compares the tables of a pipeline and creates events. Used by one thread.

    Args:
        client: returns the client of Airflow, at the first need.
        clock: seconds of a monotonic clock.
    """

    def __init__(
        self,
        catalog: Catalog,
        pipeline: str,
        client: Callable[[], AssetClient],
        *,
        every_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalog, self._pipeline, self._open_client = catalog, pipeline, client
        self._every_seconds, self._clock = every_seconds, clock
        self._lake, self._started_at = Lake(catalog.environment.lake), utc_now()
        tables = announced_tables(catalog.pipeline(pipeline))
        self._tables = [_WatchedTable(kind, name) for name, kind in tables.items()]
        self._client: AssetClient | None = None
        self._assets: Mapping[str, int] = {}
        self._assets_at = float("-inf")

    def announce(self, *, now_due: bool = False) -> list[str]:
        """Creates an event for each table with rows of commits since the announcer was created, or since the table's
        last event; returns the assets' names.

        Args:
            now_due: whether tables are announced before their interval is over, at the end of a run.

        Raises:
            Exception: of the first table that could not be read or announced, after all were tried; the next call
                catches up.
        """
        self._refresh_assets()
        announced: list[str] = []
        errors: list[Exception] = []
        for table in self._tables:
            name = asset_name(table.kind, self._pipeline, table.name)
            is_due = now_due or self._clock() - table.announced_at >= self._every_seconds
            try:
                if name in self._assets and is_due and self._announce_table(table, name):
                    announced.append(name)
                table.is_failing = False
            except Exception as error:
                # Warns once per outage, as the thread does.
                level = logging.DEBUG if table.is_failing else logging.WARNING
                cause = describe_cause(error)
                log.log(level, "pipeline=%s table=%s was not announced: %s", self._pipeline, table.name, cause)
                table.is_failing = True
                errors.append(error)
        self._emit_lineage(announced)
        if errors:
            raise errors[0]
        return announced

    def _refresh_assets(self) -> None:
        if self._clock() - self._assets_at < _ASSETS_SECONDS:
            return
        self._client = self._client or self._open_client()
        self._assets = self._client.assets(f".{self._pipeline}.")
        self._assets_at = self._clock()

    def _announce_table(self, table: _WatchedTable, name: str) -> bool:
        if table.handle is None:
            table.handle = self._lake.open(paths.table(self._pipeline, table.name))
        else:
            refresh(table.handle)
        if table.handle is None:
            return False
        version = table.handle.version()
        if table.version is None:
            table.version = self._version_at_start(table, version)
        if version <= table.version or not self._has_new_rows(table, table.version, version):
            table.version = version
            return False
        extra = {"pipeline": self._pipeline, "table": table.name, "version": version}
        assert self._client is not None
        self._client.create_asset_event(self._assets[name], extra)
        table.version, table.announced_at = version, self._clock()
        return True

    def _version_at_start(self, table: _WatchedTable, version: int) -> int:
        """Returns the newest version that was committed before the announcer was created; -1 without one."""
        history = commit_history(self._lake, paths.table(self._pipeline, table.name), newest=version)
        return next((one.version for one in history if one.at < self._started_at), -1)

    def _has_new_rows(self, table: _WatchedTable, before: int, version: int) -> bool:
        """Returns whether a commit changed rows; OPTIMIZE and changed descriptions do not."""
        key = paths.table(self._pipeline, table.name)
        return any(one.changes_rows for one in commit_history(self._lake, key, newest=version, limit=version - before))

    def _emit_lineage(self, announced: Iterable[str]) -> None:
        """Emits a run of gold's job for tables that the stream has built; the stream's own run reports the others."""
        gold = [name.rpartition(".")[2] for name in announced if name.startswith("gold.")]
        if gold:
            with batch_lineage(self._catalog, self._pipeline, "gold") as written:
                for name in gold:
                    written.add(name)


@contextmanager
def asset_events(catalog: Catalog, pipeline: str, *, has_lease: Callable[[], bool]) -> Iterator[None]:
    """Announces tables while the block runs; does nothing without a login to Airflow."""
    every_seconds = None if catalog.environment.airflow is None else catalog.environment.airflow.asset_seconds
    try:
        login = airflow_login(catalog.environment)
    except ConfigError as error:
        log.info("pipeline=%s no asset events: %s", pipeline, error)
        yield
        return
    if catalog.environment.airflow is not None and every_seconds is None:
        yield
        return

    def client() -> AssetClient:
        return AirflowApi(login, timeout_seconds=_TIMEOUT_SECONDS, should_retry=False)

    announcer = AssetAnnouncer(catalog, pipeline, client, every_seconds=every_seconds or _DEFAULT_SECONDS)
    thread = AnnouncerThread(announcer, has_lease=has_lease)
    thread.start()
    try:
        yield
    finally:
        thread.close()


class AnnouncerThread(threading.Thread):
    """Looks at the tables regularly, and once more at the end. A daemon thread blocks no exit.

    Args:
        has_lease: whether this process still owns the pipeline.
    """

    def __init__(
        self, announcer: AssetAnnouncer, *, has_lease: Callable[[], bool], look_seconds: float | None = None
    ) -> None:
        super().__init__(name="asset events", daemon=True)
        self._announcer, self._has_lease = announcer, has_lease
        self._look_seconds = _LOOK_SECONDS if look_seconds is None else look_seconds
        self._closing = threading.Event()
        self._is_failing = False

    def run(self) -> None:
        while not self._closing.wait(self._look_seconds):
            if not self._has_lease():
                return
            self._look()
        if self._has_lease():
            self._look(now_due=True)

    def close(self) -> None:
        """Announces what is left, within some seconds, and ends the thread."""
        self._closing.set()
        self.join(_CLOSE_SECONDS)

    def _look(self, *, now_due: bool = False) -> None:
        try:
            self._announcer.announce(now_due=now_due)
            self._is_failing = False
        except Exception as error:  # Any failure: the stream continues, and the next look catches up.
            # Warns once per outage: it would fill the driver's log.
            log.log(logging.DEBUG if self._is_failing else logging.WARNING, "no asset events: %s", error)
            self._is_failing = True
