"""Pins the input versions of gold tables, and reads which versions a table was built from.

A build records the input versions in its commit's `userMetadata`, so they survive a job failure. After a commit that
changed rows without this record (RESTORE, DELETE) the input versions are unknown and the table is rebuilt in full.

Nothing here needs Spark, so that a gold table can be previewed without loading it.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.home import PipelineHome
from deltaworks.errors import DeltaworksError
from deltaworks.gold.model_tables import ScoredInput
from deltaworks.gold.parts import DATE_COLUMN, TIME_COLUMN, Part
from deltaworks.gold.plan import GoldPlan
from deltaworks.specs.gold import DedupeSpec, GoldTableSpec, cross_pipeline_table
from deltaworks.specs.models import MODEL_COLUMNS
from deltaworks.specs.mutation import NAMES_COLUMNS
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.changed_hours import max_seq_by_date
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history

#: Keys that a build adds to the commit's `userMetadata`.
BUILT_FROM = "built_from"
FINGERPRINT = "fingerprint"
LATE_ROWS = "late_rows"


@dataclass(frozen=True, slots=True)
class PinnedInput:
    """An input table at the version that a build reads; `version` and `table_id` are None if it does not exist.

    - `has_events`: rows are events, which may be duplicated.
    - `date_column`: the date of a row; empty if the table has none.
    - `diff_column`: a date column; changes are found by comparing the rows of two versions.
    - `time_column`: the timestamp of a row, within its date; empty if there is none.
    - `scored_input`: set for a model's table: the input whose rows the model scores.
    - `last_seq`: the greatest `_seq` of each date, for deduplicated events (`tables.changed_hours`).
    """

    name: str
    key: str
    version: int | None
    table_id: str | None
    columns: Mapping[str, str]
    has_events: bool = True
    date_column: str = DATE_COLUMN
    diff_column: str = ""
    time_column: str = ""
    scored_input: ScoredInput | None = None
    last_seq: Mapping[dt.date, int | None] | None = None
    #: The table, opened at the version. Opening it again would repeat the storage requests.
    delta_table: DeltaTable | None = field(default=None, repr=False, compare=False)


def pin_inputs(lake: Lake, spec: PipelineSpec, names: Sequence[str]) -> dict[str, PinnedInput]:
    """Pins the current versions of the named tables."""
    pinned = {}
    events = {table.name for table in spec.event_tables}
    deduplicated = events if spec.gold.dedupe is not None else set()
    date_columns = {table.name: table.partition_by for table in spec.gold.tables}
    date_columns |= {reference.name: "" for reference in spec.references}
    diff_columns = {table.name: table.checks.intervals.start for table in spec.gold.tables if table.checks.intervals}
    diff_columns |= {
        reference.name: reference.effective_date for reference in spec.references if reference.effective_date
    }
    scores = {model.name: ScoredInput(model.features, model.timestamp) for model in spec.models}
    date_columns |= dict.fromkeys(scores, "")
    diff_columns |= dict.fromkeys(scores, "valid_from_date")
    time_columns = {table.name: table.grain.column for table in spec.gold.tables if table.grain}
    time_columns |= {table.name: TIME_COLUMN for table in spec.tables if TIME_COLUMN in table.column_types()}
    for name in names:
        external_place = cross_pipeline_table(name)
        key = paths.table(*(external_place or (spec.pipeline, name)))
        table = lake.open(key)
        if external_place is not None and table is not None:
            # The partition column is declared by the other pipeline; read it from the log.
            date_columns[name] = table.metadata().partition_columns[0]
        pinned[name] = PinnedInput(
            name=name,
            key=key,
            version=table.version() if table else None,
            table_id=str(table.metadata().id) if table else None,
            columns=declared_columns(spec, name),
            has_events=name in events,
            date_column=date_columns.get(name, DATE_COLUMN),
            diff_column=diff_columns.get(name, ""),
            time_column=time_columns.get(name, ""),
            scored_input=scores.get(name),
            last_seq=max_seq_by_date(table, DATE_COLUMN) if table is not None and name in deduplicated else None,
            delta_table=table,
        )
    return pinned


class InputSizes:
    """Bytes of the input files that a plan reads, from the log."""

    def __init__(self, inputs: Mapping[str, PinnedInput], dedupe: DedupeSpec | None) -> None:
        self._inputs, self._dedupe = inputs, dedupe
        self._by_value: dict[tuple[str, str], dict[str, int]] = {}

    def bytes_of(self, plan: GoldPlan) -> int:
        """Returns the bytes of all inputs. An input that is read completely counts completely."""
        return sum(self._bytes_of_input(self._inputs[name], plan.input_of(name)) for name in plan.table.reads)

    def _bytes_of_input(self, pinned: PinnedInput, part: Part) -> int:
        part = part.without_hours()
        column = pinned.date_column if part.column == DATE_COLUMN else part.column
        sizes = self._sizes(pinned, column)
        if part.values is None or not sizes.keys() - {""}:
            return sum(sizes.values())
        if self._dedupe is not None and pinned.has_events and part.column == DATE_COLUMN:
            part = part.widen_days(max(1, self._dedupe.within_days))
        return sum(sizes.get(str(value), 0) for value in part.values or ())

    def _sizes(self, pinned: PinnedInput, column: str) -> dict[str, int]:
        """Returns the bytes of an input by value of its partition column; of the empty text if it has none."""
        key = (pinned.name, column)
        if key not in self._by_value:
            sizes: dict[str, int] = {}
            if pinned.delta_table is not None:
                added = pa.table(pinned.delta_table.get_add_actions(flatten=True))
                name = f"partition.{column}"
                values: list[Any] = added.column(name).to_pylist() if name in added.column_names else [""] * len(added)
                for value, size in zip(values, added.column("size_bytes").to_pylist(), strict=True):
                    sizes[str(value)] = sizes.get(str(value), 0) + int(size)
            self._by_value[key] = sizes
        return self._by_value[key]


def declared_columns(spec: PipelineSpec, name: str) -> Mapping[str, str]:
    """Returns the declared columns of an input with their types; empty for a gold table."""
    if cross_pipeline_table(name) is not None or name in {table.name for table in spec.gold.tables}:
        return {}
    if spec.mutations is not None and name == spec.mutations.names:
        return NAMES_COLUMNS
    keyed = {table.name: table.types for table in spec.keyed_tables}
    keyed |= {reference.name: reference.column_types() for reference in spec.references}
    keyed |= {model.name: MODEL_COLUMNS for model in spec.models}
    return keyed[name] if name in keyed else spec.table(name).column_types()


@dataclass(frozen=True, slots=True)
class BuiltFrom:
    """The input versions of a build, and the fingerprint of its definition. `reason` is set if they are unknown.

    `late_rows` are the rows of frozen dates that its answer lacks, by date. A negative number is the rows that a
    requested build of the date has read, although they are newer than `versions`.
    """

    versions: Mapping[str, int]
    fingerprint: str
    reason: str = ""
    late_rows: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_traceable(self) -> bool:
        """Whether the input versions of the table are known, so that it can be rebuilt incrementally."""
        return not self.reason


def read_built_from(lake: Lake, key: str, table: DeltaTable | None = None) -> BuiltFrom:
    """Reads the input versions of a gold table from its newest commit that changed rows.

    Args:
        table: the table, if it is already open.
    """
    table = table or lake.open(key)
    if table is None:
        return _untraceable("it does not exist yet")
    for commit in commit_history(lake, key, newest=table.version()):
        if BUILT_FROM in commit.metadata:
            late_rows = commit.metadata.get(LATE_ROWS) or {}
            return BuiltFrom(commit.metadata[BUILT_FROM], str(commit.metadata.get(FINGERPRINT)), late_rows=late_rows)
        if commit.changes_rows:
            return _untraceable(f"its version {commit.version} ({commit.operation}) is not a build")
    return _untraceable("its log no longer contains the versions it was built from")


def _untraceable(reason: str) -> BuiltFrom:
    return BuiltFrom({}, "", reason)


def fingerprint(table: GoldTableSpec, sql: str, dedupe: DedupeSpec | None, inputs: Mapping[str, PinnedInput]) -> str:
    """Returns a digest of the definition: SQL, settings that affect rows, and the ids of the inputs."""
    definition = [
        sql,
        table.model_dump(mode="json", exclude={"description", "columns", "checks", "refresh", "lag", "frozen_after"}),
        dedupe.model_dump(mode="json", exclude={"within_hours" if table.grain is None else "within_days"})
        if dedupe
        else None,
        {name: pinned.table_id for name, pinned in inputs.items()},
    ]
    return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()[:16]


def record_refreshed(
    home: PipelineHome, table: str, *, late_rows: Mapping[str, int] | None = None, now: dt.datetime | None = None
) -> None:
    """Records the time at which a build found or brought the table up to date.

    Args:
        late_rows: the rows of frozen dates that it lacks, by date.
    """
    record = {"at": now.isoformat() if now else iso_now()} | ({LATE_ROWS: dict(late_rows)} if late_rows else {})
    home.objects.put(paths.gold_state(home.pipeline, table), json.dumps(record).encode())


def record_failed(home: PipelineHome, table: str, error: DeltaworksError, *, now: dt.datetime | None = None) -> None:
    """Records that a build of the table failed, and keeps the time at which it was last up to date.

    The first of consecutive failures decides since when. The next build that succeeds replaces the record.
    """
    key = paths.gold_state(home.pipeline, table)
    stored = home.objects.get(key)
    try:
        record = json.loads(stored.data) if stored is not None else {}
        before = {name: record[name] for name in ("at", "seen_at", "failing_since", LATE_ROWS) if name in record}
    except (ValueError, TypeError):
        before = {}
    at = now.isoformat() if now else iso_now()
    failure = {"condition": error.condition, "message": error.message[:500], "hint": error.hint}
    home.objects.put(key, json.dumps({"failing_since": at, **before, **failure}).encode())
