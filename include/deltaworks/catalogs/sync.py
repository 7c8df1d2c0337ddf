"""Keeps the declared catalogs up: compares a pipeline's tables with their entries, and makes the changes.

Idempotent. A catalog that fails raises an alert and is tried again by the next synchronisation; the others are
synchronised. Nothing waits for a catalog: streams synchronise in a thread of their own. It compares shortly after the
stream's start, which creates tables and adds declared columns, and then regularly, since keyed and gold tables appear
later and columns can be added by events. A comparison reads the newest metadata of each table and of its entry; without
a difference nothing is written. A failure never ends the stream.

A Hive metastore needs a session of its own, so the night and the command synchronise it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from deltaworks.alerts.raising import raise_alert, resolve_alert
from deltaworks.catalogs.base import CatalogClient, EntryChange, in_scheme, plan_changes
from deltaworks.control import paths
from deltaworks.control.job import as_deltaworks_error
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import ConfigError, DeltaworksError
from deltaworks.specs.base import nearest_names_hint
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment_sections import CatalogSpec, GlueCatalogSpec, HiveCatalogSpec, UnityCatalogSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.entries import TableEntry, read_pipeline_entry
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ALERT_CAUSE: Final = "CATALOG_NOT_SYNCHRONIZED"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """Changes of one catalog, and its error if it failed."""

    catalog: str
    changes: tuple[EntryChange, ...] = ()
    error: DeltaworksError | None = None

    @property
    def pending(self) -> list[EntryChange]:
        """Changes that are needed and were not made."""
        return [change for change in self.changes if change.action != "none" and not change.applied]


def selected_catalogs(
    catalog: Catalog, pipeline: str, names: Collection[str] = (), *, has_spark: bool = True
) -> list[CatalogSpec]:
    """Returns the catalogs that have the tables of a pipeline.

    Args:
        names: only these catalogs.
        has_spark: whether a Hive metastore can be reached.

    Raises:
        ConfigError: CATALOG_UNKNOWN.
    """
    declared = catalog.environment.catalogs
    unknown = sorted({*names} - {one.name for one in declared})
    if unknown:
        hint = nearest_names_hint(unknown, [one.name for one in declared], prefix="Declared in the environment:")
        raise ConfigError("CATALOG_UNKNOWN", f"There is no catalog {', '.join(unknown)}.", hint=hint)
    return [
        one
        for one in declared
        if one.includes(pipeline)
        and (not names or one.name in names)
        and (has_spark or not isinstance(one, HiveCatalogSpec))
    ]


def sync_pipeline(
    catalog: Catalog,
    pipeline: str,
    *,
    names: Collection[str] = (),
    drop: bool | None = None,
    dry_run: bool = False,
    open_session: Callable[[HiveCatalogSpec], SparkSession] | None = None,
) -> list[SyncResult]:
    """Registers the tables of a pipeline in the catalogs of the environment; returns a result per catalog.

    Args:
        names: only these catalogs.
        drop: whether entries of tables that no longer exist are dropped; by default as each catalog declares.
        dry_run: only compares.
        open_session: opens a session for a Hive metastore; without it such catalogs are left out.

    Raises:
        ConfigError: CATALOG_UNKNOWN.
    """
    specs = selected_catalogs(catalog, pipeline, names, has_spark=open_session is not None)
    if not specs:
        return []
    objects = open_objects(catalog.environment.lake)
    tables = _read_tables(Lake(catalog.environment.lake), catalog.pipeline(pipeline))
    results = []
    for one in specs:
        try:
            client = _open_client(one, open_session)
            try:
                changes = _sync(one.name, client, tables, drop=one.drop if drop is None else drop, dry_run=dry_run)
            finally:
                client.close()
            result = SyncResult(catalog=one.name, changes=tuple(changes))
        except Exception as error:
            result = SyncResult(catalog=one.name, error=as_deltaworks_error(error))
        results.append(result)
        if not dry_run:
            _report(objects, pipeline, result)
    return results


def _open_client(spec: CatalogSpec, open_session: Callable[[HiveCatalogSpec], SparkSession] | None) -> CatalogClient:
    # Imported here: a stream loads only the client of its catalog.
    if isinstance(spec, GlueCatalogSpec):
        from deltaworks.catalogs.glue import GlueCatalog

        return GlueCatalog(spec)
    if isinstance(spec, UnityCatalogSpec):
        from deltaworks.catalogs.unity import UnityCatalog

        return UnityCatalog(spec)
    from deltaworks.catalogs.hive import HiveCatalog

    assert open_session is not None
    return HiveCatalog(lambda: open_session(spec))


@dataclass(frozen=True, slots=True, kw_only=True)
class _PipelineTables:
    """The existing tables of a pipeline, and names of tables that cannot be read. `root` is the URI of their folder."""

    spec: PipelineSpec
    root: str
    entries: tuple[TableEntry, ...]
    unreadable: tuple[str, ...]


def _read_tables(lake: Lake, spec: PipelineSpec) -> _PipelineTables:
    entries, unreadable = [], []
    for name in spec.table_kinds:
        try:
            entry = read_pipeline_entry(lake, spec, name)
        except Exception as error:
            log.warning("pipeline=%s table=%s its catalog entries stay as they are: %s", spec.pipeline, name, error)
            unreadable.append(name)
            continue
        entries += [entry] if entry is not None else []
    root = lake.storage.uri(paths.table(spec.pipeline, "")).rstrip("/")
    return _PipelineTables(spec=spec, root=root, entries=tuple(entries), unreadable=tuple(unreadable))


def _sync(name: str, client: CatalogClient, tables: _PipelineTables, *, drop: bool, dry_run: bool) -> list[EntryChange]:
    """Compares one catalog and makes its due changes; returns all, with those that were made marked."""
    pipeline, entries = tables.spec.pipeline, {entry.name: entry for entry in tables.entries}
    registered = client.registered(pipeline)
    changes = plan_changes(
        name,
        client,
        pipeline,
        tables.entries,
        registered,
        root=in_scheme(tables.root, client.scheme),
        unreadable=tables.unreadable,
    )
    if not dry_run and any(change.action == "create" for change in changes):
        client.ensure_schema(pipeline, tables.spec.description)
    results = []
    for change in changes:
        table = change.table.partition(".")[2]
        is_due = not dry_run and (change.action in ("create", "update") or (change.action == "drop" and drop))
        if is_due and change.action == "drop":
            client.drop(pipeline, table)
        elif is_due:
            client.put(entries[table], registered.get(table))
        results.append(replace(change, applied=is_due))
    return results


def _report(objects: ObjectStore, pipeline: str, result: SyncResult) -> None:
    """Raises or resolves the alert of a catalog. Never raises an exception."""
    subject = f"{pipeline}.{result.catalog}"
    try:
        if result.error is None:
            resolve_alert(objects, cause=ALERT_CAUSE, subject=subject)
        else:
            log.warning("pipeline=%s catalog=%s is not synchronised: %s", pipeline, result.catalog, result.error)
            raise_alert(objects, cause=ALERT_CAUSE, subject=subject, summary=str(result.error))
    except Exception as error:
        log.warning("the alert of %s: %s", subject, error)


#: Times of comparisons after the start, in seconds; then one every `_INTERVAL_SECONDS`.
_FIRST_SECONDS: Final = (5.0, 60.0)
_INTERVAL_SECONDS: Final = 600.0
_CLOSE_SECONDS: Final = 5.0


@contextmanager
def kept_up(catalog: Catalog, pipeline: str, *, has_lease: Callable[[], bool]) -> Iterator[None]:
    """Synchronises the catalogs of a pipeline while the block runs; does nothing if none is declared.

    Args:
        has_lease: whether this process still owns the pipeline; without it nothing is changed.
    """
    if not selected_catalogs(catalog, pipeline, has_spark=False):
        yield
        return
    keeper = CatalogKeeper(lambda: sync_pipeline(catalog, pipeline), has_lease=has_lease)
    keeper.start()
    try:
        yield
    finally:
        keeper.close()


class CatalogKeeper(threading.Thread):
    """The thread. `close` waits some seconds for a running synchronisation; a daemon thread blocks no exit.

    Args:
        synchronize: makes one pass; its exceptions are logged.
        waits: seconds before each of the first passes.
        interval_seconds: seconds between later passes.
    """

    def __init__(
        self,
        synchronize: Callable[[], object],
        *,
        has_lease: Callable[[], bool],
        waits: tuple[float, ...] = _FIRST_SECONDS,
        interval_seconds: float = _INTERVAL_SECONDS,
    ) -> None:
        super().__init__(name="catalogs", daemon=True)
        self._synchronize, self._has_lease = synchronize, has_lease
        self._waits, self._interval_seconds = [*waits], interval_seconds
        self._closing = threading.Event()

    def run(self) -> None:
        while not self._closing.wait(self._waits.pop(0) if self._waits else self._interval_seconds):
            if not self._has_lease():
                return
            try:
                self._synchronize()
            except Exception as error:  # Any failure: the stream continues, and the next pass retries.
                log.warning("catalogs are not synchronised: %s", error)

    def close(self) -> None:
        """Ends the thread."""
        self._closing.set()
        self.join(_CLOSE_SECONDS)
