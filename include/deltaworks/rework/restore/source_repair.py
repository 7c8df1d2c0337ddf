"""Reads the objects of lost batches again and stages those of their rows that a table would lack, for its one commit.

A row that the files which stay have already, by its place in its object, is not staged; nor is one that is in
quarantine. Rows keep their batch, arrival and place. Objects are read one after the other by this process, without
Spark: `deltaworks reprocess` is for volumes for which that is too slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.records.rollback import Rollback, StagedRows
from deltaworks.errors import ContractError
from deltaworks.events.evolution import Evolved, evolved_columns
from deltaworks.events.origins import ROW_KEY_COLUMNS, RowKey, row_keys
from deltaworks.events.reasons import QUARANTINE
from deltaworks.rework.quarantine.open_rows import Quarantine
from deltaworks.rework.reprocess.plan import landing_opener
from deltaworks.rework.reprocess.reread import Opener, Rereader, RereadScope
from deltaworks.rework.reprocess.selection import Resolver, Selection, SourceObject
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.features import reasons_for_spark
from deltaworks.tables.files import WrittenFile, split_by_partition, write_file
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import stats_of
from deltaworks.tables.restore import Target

#: Rows that are gathered into one file of each partition.
GATHERED_ROWS = 200_000
_KEYS_SHOWN = 5


def stage_lost(
    catalog: Catalog,
    lake: Lake,
    home: PipelineHome,
    rollback: Rollback,
    target: Target,
    *,
    allow_missing: bool = False,
) -> StagedRows:
    """Write the rows of lost batches that the target lacks, and fix their files. Idempotent: returns what is fixed.

    Args:
        target: what the table is to be made of without them.
        allow_missing: leave out the rows of objects that are gone.

    Raises:
        ConfigError: the source keeps no objects; REPROCESS_EMPTY.
        ContractError: RELAND_NEEDS_SPARK, RELAND_OBJECTS_GONE.
    """
    rollbacks = home.rollbacks
    fixed = rollbacks.staged(rollback.ordinal)
    if fixed is not None or not rollback.batches:
        return fixed or StagedRows(rows=0, files=(), gone=())
    staged = _Stager(catalog, lake, home, rollback, target).stage(allow_missing)
    return rollbacks.fix_staged(rollback.ordinal, staged)


class _Stager:
    def __init__(self, catalog: Catalog, lake: Lake, home: PipelineHome, rollback: Rollback, target: Target) -> None:
        self._environment = catalog.environment
        self._spec = catalog.pipeline(rollback.pipeline)
        self._rollback = rollback
        self._target = target
        self._lake = lake
        self._objects = home.objects
        self._key = paths.table(rollback.pipeline, rollback.table)

    def stage(self, allow_missing: bool) -> StagedRows:
        """Read the lost objects, leave out rows that are there, write the rest."""
        self._refuse_table()
        objects = self._lost_objects()
        seqs = {source.seq for source in objects}
        present = self._present(seqs) | self._quarantined(seqs)
        opener: Opener = landing_opener(self._environment, self._spec)
        scope = RereadScope(frozenset([self._rollback.table]), whole=False)
        rereader = Rereader(self._spec, scope, opener, evolved=self._evolved())
        files = list(self._written(_missing(rereader.rows(objects), present)))
        gone = tuple(key for _, key in sorted(rereader.did.gone.items()))
        if gone and not allow_missing:
            raise ContractError(
                "RELAND_OBJECTS_GONE",
                f"{len(gone)} of {len(objects)} objects that held lost rows cannot be read any more: "
                f"{', '.join(gone[:_KEYS_SHOWN])}{', …' * (len(gone) > _KEYS_SHOWN)}.",
                hint="Restore them in the landing bucket; or run it again with --allow-missing, which leaves them out.",
            )
        rows = sum(file.rows for file in files)
        return StagedRows(rows=rows, files=tuple(asdict(file) for file in files), gone=gone)

    def _refuse_table(self) -> None:
        handle = self._lake.open(self._key)
        reasons = ["the quarantine"] if self._rollback.table == QUARANTINE else []
        reasons += [] if handle is None else reasons_for_spark(handle)
        if reasons:
            batches = f"{min(self._rollback.batches)}-{max(self._rollback.batches)}"
            raise ContractError(
                "RELAND_NEEDS_SPARK",
                f"Rows of {self._rollback.pipeline}.{self._rollback.table} cannot be read again without Spark: it is, "
                f"or has, {', '.join(reasons)}.",
                hint=f"`deltaworks reprocess {self._rollback.pipeline} --batches {batches}` reads them through Spark.",
            )

    def _lost_objects(self) -> list[SourceObject]:
        lost = set(self._rollback.batches)
        selection = Selection(batches=(min(lost), max(lost)))
        resolved = Resolver(self._lake, self._objects, self._spec).resolve(selection)
        return [source for source in resolved.objects if source.batch_id in lost]

    def _present(self, seqs: set[int]) -> set[RowKey]:
        """The places of these objects that the files of the target hold."""
        root = arrow_path(self._lake.storage, self._key)
        first, last = min(seqs, default=0), max(seqs, default=0)
        present: set[RowKey] = set()
        for (path, _), added in self._target.files.items():
            stats = stats_of(added)
            low, high = ((stats.get(name) or {}).get("_seq") for name in ("minValues", "maxValues"))
            if low is not None and high is not None and (int(high) < first or int(low) > last):
                continue
            with self._lake.filesystem.open_input_file(f"{root}/{path}") as source:
                present |= set(row_keys(pq.read_table(source, columns=list(ROW_KEY_COLUMNS))))
        return {place for place in present if place[0] in seqs}

    def _quarantined(self, seqs: set[int]) -> set[RowKey]:
        """The places that are in quarantine and that no replay has landed since: no table lacks them."""
        condition = ds.field("_seq").isin(sorted(seqs))
        key = paths.table(self._rollback.pipeline, QUARANTINE)
        rows = self._lake.rows(key, columns=list(ROW_KEY_COLUMNS), filters=condition)
        closed = Quarantine(self._lake, self._rollback.pipeline).closed_places()
        return set() if rows is None else {place for place in row_keys(rows) if place not in closed}

    def _evolved(self) -> Evolved:
        table = self._spec.table(self._rollback.table)
        handle = self._lake.open(self._key) if table.evolve == "add_columns" else None
        return {} if handle is None else {table.name: evolved_columns(handle, table)}

    def _written(self, parts: Iterator[pa.Table]) -> Iterator[WrittenFile]:
        root = arrow_path(self._lake.storage, self._key)
        partition_by = self._spec.table(self._rollback.table).partition_by
        for together in _gathered(parts):
            for partition, rows in split_by_partition(together, partition_by):
                yield write_file(self._lake.filesystem, root, rows, partition=partition)


def _missing(parts: Iterable[tuple[str, pa.Table]], present: set[RowKey]) -> Iterator[pa.Table]:
    for _, rows in parts:
        kept = rows.filter(pa.array([place not in present for place in row_keys(rows)], pa.bool_()))
        if kept.num_rows:
            yield kept


def _gathered(parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
    waiting: list[pa.Table] = []
    for part in parts:
        waiting.append(part)
        if sum(rows.num_rows for rows in waiting) >= GATHERED_ROWS:
            yield pa.concat_tables(waiting, promote_options="default")
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting, promote_options="default")
