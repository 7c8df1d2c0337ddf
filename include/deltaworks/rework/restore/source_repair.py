"""Reads the objects of lost batches again and stages those of their rows that a table would lack, for its one commit.

A row that the files which stay have already, by its place in its object, is not staged; nor is one that is in
quarantine. Rows keep their batch, arrival and place. Objects are read one after the other by this process, without
Spark: for what takes longer than that allows there is `deltaworks reprocess`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import open_objects
from deltaworks.control.records.rollback import Rollback, StagedRows
from deltaworks.errors import ContractError
from deltaworks.events.evolution import Evolved, evolved_columns
from deltaworks.events.origins import ROW_KEY_COLUMNS, RowKey, row_keys
from deltaworks.events.reasons import QUARANTINE
from deltaworks.rework.quarantine.open_rows import Quarantine
from deltaworks.rework.reprocess.plan import landing_opener
from deltaworks.rework.reprocess.reread import Opener, Rereader, Wanted
from deltaworks.rework.reprocess.selection import Resolver, Selection, SourceObject
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.features import reasons_for_spark
from deltaworks.tables.files import WrittenFile, split_by_partition, write_file
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import stats_of
from deltaworks.tables.restore import Target

#: Rows that are gathered into one file of each partition.
GATHERED_ROWS = 200_000
_KEYS_TOLD = 5


def stage_lost(catalog: Catalog, done: Rollback, target: Target, *, allow_missing: bool = False) -> StagedRows:
    """Write the files of what the target lacks of the lost batches, and fix them. Idempotent: returns what is fixed.

    Args:
        target: what the table is to be made of without them.
        allow_missing: leave out the rows of objects that are gone.

    Raises:
        ConfigError: the source keeps no objects; REPROCESS_EMPTY.
        ContractError: RELAND_NEEDS_SPARK, RELAND_OBJECTS_GONE.
    """
    rollbacks = PipelineHome.open(catalog.environment.lake, done.pipeline).rollbacks
    fixed = rollbacks.staged(done.ordinal)
    if fixed is not None or not done.batches:
        return fixed or StagedRows(rows=0, files=(), gone=())
    return rollbacks.fix_staged(done.ordinal, _Stager(catalog, done, target).stage(allow_missing))


class _Stager:
    def __init__(self, catalog: Catalog, done: Rollback, target: Target) -> None:
        self._catalog = catalog
        self._spec = catalog.pipeline(done.pipeline)
        self._done = done
        self._target = target
        self._lake = Lake(catalog.environment.lake)
        self._objects = open_objects(catalog.environment.lake)
        self._key = paths.table(done.pipeline, done.table)

    def stage(self, allow_missing: bool) -> StagedRows:
        """Read, leave out what is there, write."""
        self._refuse_table()
        objects = self._lost_objects()
        seqs = {each.seq for each in objects}
        there = self._present(seqs) | self._quarantined(seqs)
        opener: Opener = landing_opener(self._catalog.environment, self._spec)
        wanted = Wanted(frozenset([self._done.table]), whole=False)
        rereader = Rereader(self._spec, wanted, opener, evolved=self._evolved())
        files = list(self._written(_absent(rereader.rows(objects), there)))
        gone = tuple(key for _, key in sorted(rereader.did.gone.items()))
        if gone and not allow_missing:
            raise ContractError(
                "RELAND_OBJECTS_GONE",
                f"{len(gone)} of {len(objects)} objects that held lost rows cannot be read any more: "
                f"{', '.join(gone[:_KEYS_TOLD])}{', …' * (len(gone) > _KEYS_TOLD)}.",
                hint="Restore them in the landing bucket; or run it again with --allow-missing, which leaves them out.",
            )
        rows = sum(file.rows for file in files)
        return StagedRows(rows=rows, files=tuple(asdict(file) for file in files), gone=gone)

    def _refuse_table(self) -> None:
        handle = self._lake.open(self._key)
        reasons = ["the quarantine"] if self._done.table == QUARANTINE else []
        reasons += [] if handle is None else reasons_for_spark(handle)
        if reasons:
            batches = f"{min(self._done.batches)}-{max(self._done.batches)}"
            raise ContractError(
                "RELAND_NEEDS_SPARK",
                f"Rows of {self._done.pipeline}.{self._done.table} cannot be read again here: it is, or has, "
                f"{', '.join(reasons)}.",
                hint=f"`deltaworks reprocess {self._done.pipeline} --batches {batches}` reads them through Spark.",
            )

    def _lost_objects(self) -> list[SourceObject]:
        lost = set(self._done.batches)
        selection = Selection(batches=(min(lost), max(lost)))
        resolved = Resolver(self._lake, self._objects, self._spec).resolve(selection)
        return [each for each in resolved.objects if each.batch_id in lost]

    def _present(self, seqs: set[int]) -> set[RowKey]:
        """The places of these objects that the files of the target hold."""
        root = arrow_path(self._lake.storage, self._key)
        first, last = min(seqs, default=0), max(seqs, default=0)
        found: set[RowKey] = set()
        for (path, _), added in self._target.files.items():
            stats = stats_of(added)
            low, high = ((stats.get(name) or {}).get("_seq") for name in ("minValues", "maxValues"))
            if low is not None and high is not None and (int(high) < first or int(low) > last):
                continue
            with self._lake.filesystem.open_input_file(f"{root}/{path}") as source:
                found |= set(row_keys(pq.read_table(source, columns=list(ROW_KEY_COLUMNS))))
        return {place for place in found if place[0] in seqs}

    def _quarantined(self, seqs: set[int]) -> set[RowKey]:
        """The places that are in quarantine, and that no replay has landed since: they lack in no table."""
        wanted = ds.field("_seq").isin(sorted(seqs))
        key = paths.table(self._done.pipeline, QUARANTINE)
        rows = self._lake.rows(key, columns=list(ROW_KEY_COLUMNS), filters=wanted)
        closed = Quarantine(self._lake, self._done.pipeline).closed_places()
        return set() if rows is None else {place for place in row_keys(rows) if place not in closed}

    def _evolved(self) -> Evolved:
        table = self._spec.table(self._done.table)
        handle = self._lake.open(self._key) if table.evolve == "add_columns" else None
        return {} if handle is None else {table.name: evolved_columns(handle, table)}

    def _written(self, parts: Iterator[pa.Table]) -> Iterator[WrittenFile]:
        root = arrow_path(self._lake.storage, self._key)
        partition_by = self._spec.table(self._done.table).partition_by
        for together in _gathered(parts):
            for partition, rows in split_by_partition(together, partition_by):
                yield write_file(self._lake.filesystem, root, rows, partition=partition)


def _absent(parts: Iterable[tuple[str, pa.Table]], there: set[RowKey]) -> Iterator[pa.Table]:
    for _, rows in parts:
        kept = rows.filter(pa.array([place not in there for place in row_keys(rows)], pa.bool_()))
        if kept.num_rows:
            yield kept


def _gathered(parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
    waiting: list[pa.Table] = []
    for part in parts:
        waiting.append(part)
        if sum(each.num_rows for each in waiting) >= GATHERED_ROWS:
            yield pa.concat_tables(waiting, promote_options="default")
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting, promote_options="default")
