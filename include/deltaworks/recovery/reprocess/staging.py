"""Stages the new rows of a reprocess as files and records them. Changes no table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.reprocess import ReprocessPlan, StagedFiles, StagedTable
from deltaworks.engine.writers import FileTarget
from deltaworks.errors import ContractError
from deltaworks.events.evolution import EvolvedColumns, evolved_columns
from deltaworks.events.parse import ParserInputs
from deltaworks.events.reasons import ENTIRE_OBJECT, QUARANTINE_TABLE, ReasonCode
from deltaworks.events.source_fields import row_keys
from deltaworks.recovery.quarantine.open_rows import Quarantine
from deltaworks.recovery.reprocess.read_records import read_records, reject_incomplete_batches, reject_missing_records
from deltaworks.recovery.reprocess.records import RecordResolver
from deltaworks.recovery.reprocess.replace_rows import table_missing_error
from deltaworks.recovery.reprocess.reread import (
    Opener,
    RereadResult,
    RereadScope,
    RereadSettings,
    reread_in_process,
    reread_with_spark,
)
from deltaworks.recovery.reprocess.selection import ObjectResolver, ResolvedObjects, SeqRanges
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.record_sources import RecordSourceSpec
from deltaworks.tables.files import write_file
from deltaworks.tables.lake import Lake, arrow_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KEYS_SHOWN = 5
#: Positions of quarantined rows by seq.
QuarantinedPositions = dict[int, frozenset[int]]


def staging_folder(plan: ReprocessPlan, table: str) -> str:
    """Returns the folder of a table's staged rows."""
    return paths.reprocess_staging(plan.pipeline, plan.id, table)


@dataclass(frozen=True, slots=True)
class RereadOutcome:
    """The result of a reread: the ranges whose rows it replaces, the missing keys, and where the records were read
    from.
    """

    result: RereadResult
    ranges: SeqRanges
    missing_keys: tuple[str, ...] = ()
    origins: Mapping[str, int] = field(default_factory=dict)


class RereadPlan(Protocol):
    """Interface for reading the selection of a reprocess plan again, from objects or from stream records."""

    def read(self, plan: ReprocessPlan, quarantined: QuarantinedPositions, work: RereadSettings) -> RereadOutcome:
        """Reads the selection in one pass.

        Raises:
            ContractError: REPROCESS_STOPPED; or an object or record that landed before is missing now, unless the plan
                allows it.
        """


class ObjectReread:
    """Reads landed objects again; up to `direct_bytes` without Spark."""

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        lake: Lake,
        objects: ObjectStore,
        spec: PipelineSpec,
        opener: Opener,
        *,
        direct_bytes: int,
    ) -> None:
        self._direct_bytes = direct_bytes
        self._spark = spark
        self._resolver = ObjectResolver(lake, objects, spec)
        self._spec = spec
        self._opener = opener

    def read(self, plan: ReprocessPlan, quarantined: QuarantinedPositions, work: RereadSettings) -> RereadOutcome:
        """Reads the selected objects, see `RereadPlan.read`. Also raises ContractError REPROCESS_OBJECTS_MISSING."""
        resolved = self._resolver.resolve_again(SeqRanges(plan.ranges), through_batch=plan.through_batch)
        if resolved.bytes < self._direct_bytes:
            result = reread_in_process(resolved.objects, opener=self._opener, spec=self._spec, settings=work)
        else:
            result = reread_with_spark(
                self._spark(), resolved.objects, opener=self._opener, spec=self._spec, settings=work
            )
        newly_missing = self._newly_missing(plan, result, quarantined)
        return RereadOutcome(result, ranges_without_missing(resolved, result.missing_keys), newly_missing)

    @staticmethod
    def _newly_missing(plan: ReprocessPlan, result: RereadResult, quarantined: QuarantinedPositions) -> tuple[str, ...]:
        """Returns missing objects that were readable before. An object that was never readable remains a quarantined
        row.
        """
        before = {seq for seq, positions in quarantined.items() if ENTIRE_OBJECT in positions}
        newly_missing = tuple(key for seq, key in sorted(result.missing_keys.items()) if seq not in before)
        if newly_missing and not plan.allow_missing:
            raise ContractError(
                "REPROCESS_OBJECTS_MISSING",
                f"{len(newly_missing)} of {plan.objects} objects cannot be read any more: "
                f"{', '.join(newly_missing[:_KEYS_SHOWN])}{', …' * (len(newly_missing) > _KEYS_SHOWN)}.",
            )
        return newly_missing


class RecordReread:
    """Reads stream records again, from the source or the archive."""

    def __init__(self, spark: SparkSession, lake: Lake, spec: PipelineSpec, resolver: RecordResolver) -> None:
        self._spark = spark
        self._lake = lake
        self._spec = spec
        self._resolver = resolver

    def read(self, plan: ReprocessPlan, quarantined: QuarantinedPositions, work: RereadSettings) -> RereadOutcome:
        """Reads the selected records, see `RereadPlan.read`.

        Also raises ContractError REPROCESS_RECORDS_EXPIRED, REPROCESS_RECORDS_MISSING or SOURCE_EXPIRED.
        """
        resolved = self._resolver.resolve_again(SeqRanges(plan.ranges), through_batch=plan.through_batch)
        parts = self._resolver.provenance(self._spark, resolved)
        if not plan.allow_missing:
            reject_missing_records(self._spec, parts.missing)
        did = read_records(self._spark, self._lake, self._resolver, parts, work)
        reject_incomplete_batches(resolved, parts, did)
        ranges = SeqRanges.merge(one.seqs for one in parts.readable)
        origins = {"source": len(parts.source), "archive": len(parts.archive)}
        return RereadOutcome(did, ranges, tuple(one.key for one in parts.missing), origins)


class Stager:
    """Stages the new rows of one reprocess plan as files. Not thread-safe."""

    def __init__(self, lake: Lake, spec: PipelineSpec) -> None:
        self._lake = lake
        self._spec = spec

    def stage(self, plan: ReprocessPlan, source: RereadPlan) -> StagedFiles:
        """Reads the selection of the plan and stages the rows of its tables.

        Raises:
            ContractError: REPROCESS_STOPPED, and the errors of `source`.
        """
        quarantined = self._quarantined_positions(SeqRanges(plan.ranges)) if plan.mode == "in_place" else {}
        names = frozenset([*plan.tables, QUARANTINE_TABLE] if plan.all_tables else plan.tables)
        positions = {} if plan.all_tables or plan.mode == "shadow" else quarantined
        inputs = ParserInputs.pin(self._spec, self._lake.storage)
        scope, target = RereadScope(names, plan.all_tables, positions), self._target(plan, names)
        work = RereadSettings(scope, target, self._evolved_columns(), inputs)
        reading = source.read(plan, quarantined, work)
        did, ranges = reading.result, reading.ranges
        tables = [_staged_table(name, did, ranges) for name in plan.tables]
        if plan.all_tables:
            tables.append(self._with_lost_records(plan, _staged_table(QUARANTINE_TABLE, did, ranges)))
        elif did.released:
            tables.append(self._stage_remaining_quarantine(plan, did.released))
        return StagedFiles(
            tables=tuple(tables),
            missing=reading.missing_keys,
            unmatched_events=did.unmatched,
            still_quarantined=did.still_quarantined,
            origins=dict(reading.origins),
        )

    def _with_lost_records(self, plan: ReprocessPlan, staged: StagedTable) -> StagedTable:
        """Adds the quarantined rows of records that expired before they were read, since no reread can produce them."""
        if not isinstance(self._spec.source, RecordSourceSpec):
            return staged
        key = paths.table(plan.pipeline, QUARANTINE_TABLE)
        rows = self._lake.rows(key, filters=SeqRanges(staged.ranges).expression())
        if rows is None:
            return staged
        codes = [{reason["code"] for reason in reasons} for reasons in rows.column("reasons").to_pylist()]
        lost = rows.filter(pa.array([ReasonCode.RECORDS_LOST in of_row for of_row in codes], pa.bool_()))
        if not lost.num_rows:
            return staged
        file = self._write_quarantine(plan, lost)
        return staged.model_copy(update={"rows": staged.rows + lost.num_rows, "files": (*staged.files, file)})

    def _evolved_columns(self) -> EvolvedColumns:
        evolved = {}
        for table in self._spec.tables:
            if table.evolve == "add_columns":
                handle = self._lake.open(paths.table(self._spec.pipeline, table.name))
                evolved[table.name] = () if handle is None else evolved_columns(handle, table)
        return evolved

    def _target(self, plan: ReprocessPlan, tables: frozenset[str]) -> FileTarget:
        folders = {name: staging_folder(plan, name) for name in tables}
        return FileTarget.of(self._lake.storage, folders, partition_by=dict.fromkeys(tables, ()))

    def _quarantined_positions(self, ranges: SeqRanges) -> QuarantinedPositions:
        key = paths.table(self._spec.pipeline, QUARANTINE_TABLE)
        rows = self._lake.rows(key, columns=["_seq", "_position"], filters=ranges.expression())
        # A replayed row is still in quarantine although it is also in its tables.
        closed = Quarantine(self._lake, self._spec.pipeline).closed_keys()
        positions: dict[int, set[int]] = {}
        for row in rows.to_pylist() if rows is not None else ():
            if (row["_seq"], row["_position"]) not in closed:
                positions.setdefault(row["_seq"], set()).add(row["_position"])
        return {seq: frozenset(of_seq) for seq, of_seq in positions.items()}

    def _stage_remaining_quarantine(self, plan: ReprocessPlan, released: set[tuple[int, int]]) -> StagedTable:
        """Stages the quarantined rows of these objects, except rows that fit now."""
        ranges = SeqRanges.from_seqs(seq for seq, _ in released)
        key = paths.table(plan.pipeline, QUARANTINE_TABLE)
        rows = self._lake.rows(key, filters=ranges.expression())
        if rows is None:
            raise table_missing_error(key)
        remaining = rows.filter(pa.array([place not in released for place in row_keys(rows)], pa.bool_()))
        if not remaining.num_rows:
            return StagedTable(table=QUARANTINE_TABLE, rows=0, files=(), ranges=ranges.ranges)
        file = self._write_quarantine(plan, remaining)
        return StagedTable(table=QUARANTINE_TABLE, rows=remaining.num_rows, files=(file,), ranges=ranges.ranges)

    def _write_quarantine(self, plan: ReprocessPlan, rows: pa.Table) -> str:
        """Stages quarantined rows as a file."""
        root = arrow_path(self._lake.storage, staging_folder(plan, QUARANTINE_TABLE))
        return write_file(self._lake.filesystem, root, rows, partition={}).path


def _staged_table(name: str, result: RereadResult, ranges: SeqRanges) -> StagedTable:
    files = result.files.get(name, [])
    return StagedTable(
        table=name,
        rows=sum(file.rows for file in files),
        files=tuple(file.path for file in files),
        ranges=ranges.ranges,
    )


def ranges_without_missing(resolved: ResolvedObjects, missing_keys: dict[int, str]) -> SeqRanges:
    """Returns the ranges without missing objects. The rows of missing objects stay unchanged."""
    if not missing_keys:
        return resolved.ranges
    remaining: list[tuple[int, int]] = []
    for first, last in resolved.ranges:
        inside = [source.seq for source in resolved.objects if first <= source.seq <= last]
        remaining += SeqRanges.from_seqs(
            (seq for seq in inside if seq not in missing_keys), existing_seqs=inside
        ).ranges
    return SeqRanges(tuple(remaining))
