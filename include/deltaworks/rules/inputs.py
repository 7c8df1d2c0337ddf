"""Tables that rules read. They are kept open between rounds; the freshness of their data is measured."""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from collections.abc import Callable, Collection, Mapping

import duckdb
from deltalake import DeltaTable

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import read_heartbeat
from deltaworks.control.health.limits import age_seconds
from deltaworks.specs.alert_rule import RuleSpec
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.gold import names_read
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.ages import TableAge, open_table_age
from deltaworks.tables.commit import refresh
from deltaworks.tables.duckdb_session import restrict_connection
from deltaworks.tables.lake import Lake
from deltaworks.tables.query import connect, table_keys

OpenTable = Callable[[str], DeltaTable | None]
_MEMORY_MIB = 1024
_THREADS = 2
#: Interval in which an unchanged table is opened again: it may have been recreated with fewer versions.
_REFRESH_SECONDS = 60.0
#: Age of a heartbeat from which its stream counts as dead.
_HEARTBEAT_SECONDS = 45.0


class RuleTables:
    """Delta tables of the lake, kept open between rounds. Not thread-safe."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._tables: dict[str, DeltaTable] = {}
        self._refreshed: set[str] = set()
        self._ages: dict[str, tuple[int, TableAge]] = {}
        self._refreshed_at: dict[str, float] = {}
        #: The commit that each table had when it was refreshed: version and ETag.
        self._commits: dict[str, tuple[int, str | None]] = {}

    def mark_stale(self) -> None:
        """Marks every table, so that it is refreshed on its next use."""
        self._refreshed.clear()

    def open(self, key: str) -> DeltaTable | None:
        """Returns the current table at a key, or None."""
        table = self._tables.get(key)
        if key in self._refreshed or (table is not None and self._is_newest(key, table)):
            return table
        if table is not None:
            try:
                table = self._refreshed_table(key, table)
            # Recreated, restored or deleted: open it again.
            except Exception:
                table = None
        table = table or self._lake.open(key)
        self._refreshed.add(key)
        self._refreshed_at[key] = time.monotonic()
        if table is None:
            self._tables.pop(key, None)
        else:
            self._tables[key] = table
            self._commits[key] = table.version(), self._commit_etag(key, table.version())
        return table

    def _refreshed_table(self, key: str, table: DeltaTable) -> DeltaTable | None:
        """Returns the table at its newest version; None if another one is in its place, which has no later commits."""
        version, etag = self._commits[key]
        if self._commit_etag(key, version) != etag:
            return None
        refresh(table)
        return table

    def _commit_etag(self, key: str, version: int) -> str | None:
        return self._lake.objects.etag(f"{key}/_delta_log/{version:020}.json")

    def _is_newest(self, key: str, table: DeltaTable) -> bool:
        """Whether the log has no next commit: one request for an object instead of a listing."""
        if time.monotonic() - self._refreshed_at.get(key, 0.0) > _REFRESH_SECONDS:
            return False
        if self._commit_etag(key, table.version() + 1) is not None:
            return False
        self._refreshed.add(key)
        return True

    def is_source_read(self, pipeline: str, now: dt.datetime) -> bool:
        """Whether a stream runs, has read all that its source has, and holds no table back, by its heartbeat.

        An unreadable or old heartbeat says that it has not.
        """
        try:
            beat = read_heartbeat(self._lake.objects, paths.heartbeat(paths.pipeline_control(pipeline)))
        except ValueError:
            return False
        if beat is None or beat.state not in ("running", "idle") or beat.oldest_pending_at is not None:
            return False
        if beat.held or beat.gold_failures:
            return False
        return age_seconds(beat.written_at, now) <= max(_HEARTBEAT_SECONDS, 3 * beat.trigger_seconds)

    def age(self, key: str, name: str) -> TableAge | None:
        """Returns the age of a table's data, or None. Reads the log only if the table has a new version."""
        table = self.open(key)
        if table is None:
            return None
        version, age = self._ages.get(key, (-1, None))
        if age is None or version != table.version():
            version, age = table.version(), open_table_age(self._lake, key, name, table)
            self._ages[key] = version, age
        return age


@dataclasses.dataclass(frozen=True, slots=True)
class InputFreshness:
    """The freshness of a rule's inputs: the newest row time of the most delayed input, None if an input has no rows.

    For a rule by time of arrival, it is the time of the last commit with rows. `is_source_read` is only determined for
    rules for which a label set without rows counts as zero. Declared tables that do not exist yet are in `missing`.
    Names for messages, such as `cdn_minute (gold)`, are in `labels`. The inputs that delay the rule are `oldest`, each
    a table such as `video_qos.cdn_minute`.
    """

    newest_at: dt.datetime | None
    missing: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    oldest: tuple[str, ...] = ()
    is_source_read: bool = False


def input_freshness(spec: PipelineSpec, rule: RuleSpec, tables: RuleTables, now: dt.datetime) -> InputFreshness:
    """Returns the freshness of a rule's inputs; reference and mapping tables do not count."""
    keys, static_tables, landed = table_keys(spec), _static_tables(spec), {table.name for table in spec.tables}
    times: dict[str, dt.datetime | None] = {}
    missing, names = [], source_tables(spec, rule.reads)
    for name in names:
        age = tables.age(keys[name], name)
        if age is None:
            missing.append(name)
        elif rule.time_axis == "arrival":
            if name in landed:
                times[name] = age.last_change_at
        elif name not in static_tables:
            times[name] = age.newest_row_at
    known_times = [at for at in times.values() if at is not None]
    newest_at = min(known_times) if known_times and len(known_times) == len(times) else None
    return InputFreshness(
        newest_at,
        tuple(missing),
        tuple(f"{name} ({_table_kind(spec, name)})" for name in names),
        tuple(f"{spec.pipeline}.{name}" for name in missing or [name for name, at in times.items() if at == newest_at]),
        rule.no_data == "zero" and tables.is_source_read(spec.pipeline, now),
    )


def source_tables(spec: PipelineSpec, reads: Collection[str]) -> list[str]:
    """Returns the tables among these names, and the tables that the views among them read."""
    views: Mapping[str, tuple[str, ...]] = {view.name: view.reads for view in spec.views}
    return [name for name in names_read(views, reads) if name not in views]


def connect_tables(
    catalog: Catalog, spec: PipelineSpec, rules: Collection[RuleSpec], open_table: OpenTable
) -> duckdb.DuckDBPyConnection:
    """Opens a DuckDB connection that can read only the tables of these rules, with memory and thread limits."""
    single_catalog = dataclasses.replace(catalog, pipelines={spec.pipeline: spec})
    reads = sorted({name for rule in rules for name in rule.reads})
    connection, _ = connect(single_catalog, statement=" ".join(reads) or "nothing", open_table=open_table)
    restrict_connection(connection, spec.pipeline, memory_mib=_MEMORY_MIB, threads=_THREADS)
    return connection


def _static_tables(spec: PipelineSpec) -> set[str]:
    names = {reference.name for reference in spec.references}
    return names | ({spec.mutations.names, spec.mutations.intervals} if spec.mutations is not None else set())


def _table_kind(spec: PipelineSpec, name: str) -> str:
    if name in {table.name for table in spec.gold.tables}:
        return "gold"
    if name in {*(table.name for table in spec.live), *(table.name for table in spec.keyed_tables)}:
        return "live"
    return "reference" if name in _static_tables(spec) else "bronze"
