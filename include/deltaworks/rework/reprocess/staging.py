"""Stages the new rows of a reprocess: the pass over the objects, and what it wrote as one record.

Files lie in a folder of the reprocess's own until they are committed. Nothing here changes a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.reprocess import ReprocessPlan, StagedFiles, StagedTable
from deltaworks.engine.table_files import FileTarget
from deltaworks.errors import ContractError
from deltaworks.events.evolution import Evolved, evolved_columns
from deltaworks.events.origins import row_keys
from deltaworks.events.reasons import QUARANTINE, WHOLE_OBJECT
from deltaworks.rework.quarantine.open_rows import Quarantine
from deltaworks.rework.reprocess.replace_rows import table_absent
from deltaworks.rework.reprocess.reread import Opener, Reread, RereadScope, reread
from deltaworks.rework.reprocess.selection import Resolved, Resolver, SeqRanges
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.files import write_file
from deltaworks.tables.lake import Lake, arrow_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KEYS_SHOWN = 5
#: Positions of rows in quarantine, by seq.
Quarantined = dict[int, frozenset[int]]


def staging_folder(plan: ReprocessPlan, table: str) -> str:
    """Where the new rows of a table wait for their commit."""
    return paths.reprocess_staging(plan.pipeline, plan.id, table)


class Stager:
    """Stages one plan. Used by one thread."""

    def __init__(self, spark: SparkSession, lake: Lake, objects: ObjectStore, spec: PipelineSpec) -> None:
        self._spark = spark
        self._lake = lake
        self._objects = objects
        self._spec = spec

    def stage(self, plan: ReprocessPlan, opener: Opener) -> StagedFiles:
        """Read the plan's objects and stage the rows of its tables.

        Raises:
            ContractError: REPROCESS_OBJECTS_GONE, unless the plan allows it; REPROCESS_STOPPED.
        """
        resolver = Resolver(self._lake, self._objects, self._spec)
        resolved = resolver.within(SeqRanges(plan.ranges), up_to_batch=plan.up_to_batch)
        quarantined = self._quarantined(resolved.ranges) if plan.mode == "in_place" else {}
        did = self._reread(plan, resolved, quarantined, opener)
        newly_gone = self._newly_gone(plan, did, quarantined)
        ranges = without(resolved, did.gone)
        tables = [_staged_table(name, did, ranges) for name in plan.tables]
        if plan.whole:
            tables.append(_staged_table(QUARANTINE, did, ranges))
        elif did.released:
            tables.append(self._quarantine_without(plan, did.released))
        return StagedFiles(
            tables=tuple(tables),
            gone=newly_gone,
            not_fitting=did.not_fitting,
            kept_in_quarantine=did.kept_in_quarantine,
        )

    def _reread(self, plan: ReprocessPlan, resolved: Resolved, quarantined: Quarantined, opener: Opener) -> Reread:
        tables = frozenset([*plan.tables, QUARANTINE] if plan.whole else plan.tables)
        beside = {} if plan.whole or plan.mode == "shadow" else quarantined
        return reread(
            self._spark,
            resolved.objects,
            opener=opener,
            spec=self._spec,
            scope=RereadScope(tables, plan.whole, beside),
            target=self._target(plan, tables),
            evolved=self._evolved(),
        )

    @staticmethod
    def _newly_gone(plan: ReprocessPlan, did: Reread, quarantined: Quarantined) -> tuple[str, ...]:
        """Lost objects that could be read the first time. Those that could not are and stay a row in quarantine."""
        before = {seq for seq, positions in quarantined.items() if WHOLE_OBJECT in positions}
        gone = tuple(key for seq, key in sorted(did.gone.items()) if seq not in before)
        if gone and not plan.allow_missing:
            raise ContractError(
                "REPROCESS_OBJECTS_GONE",
                f"{len(gone)} of {plan.objects} objects cannot be read any more: "
                f"{', '.join(gone[:_KEYS_SHOWN])}{', …' * (len(gone) > _KEYS_SHOWN)}.",
                hint="Restore them; or begin a reprocess with --allow-missing, which leaves their rows as they are.",
            )
        return gone

    def _evolved(self) -> Evolved:
        evolved = {}
        for table in self._spec.tables:
            if table.evolve == "add_columns":
                handle = self._lake.open(paths.table(self._spec.pipeline, table.name))
                evolved[table.name] = () if handle is None else evolved_columns(handle, table)
        return evolved

    def _target(self, plan: ReprocessPlan, tables: frozenset[str]) -> FileTarget:
        folders = {name: staging_folder(plan, name) for name in tables}
        return FileTarget.of(self._lake.storage, folders, partition_by=dict.fromkeys(tables, ()))

    def _quarantined(self, ranges: SeqRanges) -> Quarantined:
        key = paths.table(self._spec.pipeline, QUARANTINE)
        rows = self._lake.rows(key, columns=["_seq", "_position"], filters=ranges.expression())
        # A row that a replay has landed is in its tables, though it is in quarantine still.
        closed = Quarantine(self._lake, self._spec.pipeline).closed_places()
        positions: dict[int, set[int]] = {}
        for row in rows.to_pylist() if rows is not None else ():
            if (row["_seq"], row["_position"]) not in closed:
                positions.setdefault(row["_seq"], set()).add(row["_position"])
        return {seq: frozenset(of_seq) for seq, of_seq in positions.items()}

    def _quarantine_without(self, plan: ReprocessPlan, released: set[tuple[int, int]]) -> StagedTable:
        """The rows in quarantine of the objects concerned, staged without those that fit now."""
        ranges = SeqRanges.of(seq for seq, _ in released)
        key = paths.table(plan.pipeline, QUARANTINE)
        rows = self._lake.rows(key, filters=ranges.expression())
        if rows is None:
            raise table_absent(key)
        kept = rows.filter(pa.array([place not in released for place in row_keys(rows)], pa.bool_()))
        if not kept.num_rows:
            return StagedTable(table=QUARANTINE, rows=0, files=(), ranges=ranges.ranges)
        root = arrow_path(self._lake.storage, staging_folder(plan, QUARANTINE))
        file = write_file(self._lake.filesystem, root, kept, partition={})
        return StagedTable(table=QUARANTINE, rows=kept.num_rows, files=(file.path,), ranges=ranges.ranges)


def _staged_table(name: str, did: Reread, ranges: SeqRanges) -> StagedTable:
    files = did.files.get(name, [])
    return StagedTable(
        table=name,
        rows=sum(file.rows for file in files),
        files=tuple(file.path for file in files),
        ranges=ranges.ranges,
    )


def without(resolved: Resolved, gone: dict[int, str]) -> SeqRanges:
    """The ranges without objects that are gone: their rows stay as they are."""
    if not gone:
        return resolved.ranges
    kept: list[tuple[int, int]] = []
    for first, last in resolved.ranges:
        inside = [source.seq for source in resolved.objects if first <= source.seq <= last]
        kept += SeqRanges.of((seq for seq in inside if seq not in gone), among=inside).ranges
    return SeqRanges(tuple(kept))
