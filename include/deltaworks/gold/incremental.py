"""Keeps the answers of mergeable gold tables up with their inputs, at the cost of the new rows.

For each date of an input it holds which data files have been read, and the partial results of the tables over their
rows. The Delta log says what changed since: rows of added files are read and added; a compaction only exchanges the
names of files; files that are removed otherwise (a restore, an erasure, a reprocessing) end the date, which is read
again when it is next needed. Before an answer is given, the files read are compared with the live ones.

Copies of an event count once: the row that arrived first within the window of dates. For each date the hashes of all
ids are held (`HashRuns`), so new rows are looked up, and none is read again. Rows that arrived before ones already
counted, as after a replay, could make a counted row the copy. Then the dates around are read again.

This state is derived from the tables at one version and can be thrown away at any time; it ends with the process.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from deltalake import DeltaTable

from deltaworks.errors import DeltaworksError, FencedError, TransientError
from deltaworks.gold.event_keys import ARRIVAL, Arrivals, find_duplicates
from deltaworks.gold.file_scan import FileScan, added_files, has_plain_files
from deltaworks.gold.partial_sums import HASH_KEYS, PartialSums, input_rows
from deltaworks.gold.parts import DATE_COLUMN, Part
from deltaworks.gold.plan import Answer
from deltaworks.gold.table_build import TableJob
from deltaworks.specs.checks.refresh_class import MergeableQuery, Refresh, classify
from deltaworks.specs.gold import DedupeSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.arrow_types import rows_as_declared
from deltaworks.tables.files import open_data_file, open_parquet
from deltaworks.tables.id_hashes import HashRuns, IdHashes, hash_ids, spilled
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import Action, is_absolute_path, read_commits, stats_of

log = logging.getLogger(__name__)
#: Most rows of a date and the dates around it that are read to begin the date. Spark reads more in parallel.
MAX_ROWS: Final = 60_000_000
#: Ids held for all dates; the dates used least recently end beyond it. 16 bytes each, in files without a name.
MAX_IDS: Final = 100_000_000
#: Rows that are aggregated at once.
_CHUNK_ROWS: Final = 1 << 20
_READER_THREADS: Final = 4
_SINGLE_REQUEST_BYTES: Final = 4 << 20
_ID_COLUMN, _NO_COLUMN = "event_id", "_row"


class _Unsupported(Exception):
    """The input cannot be read here; the message says why."""


#: Errors of an input that cannot be read here. Spark reads it, or fails with an error of its own.
_LEFT_TO_SPARK = (_Unsupported, DeltaworksError, OSError, LookupError, pa.ArrowException, duckdb.Error, ValueError)


@dataclass(frozen=True, slots=True)
class _File:
    """A data file of one date. `min_seq`, `max_seq`: of a new file, the range of its rows' `_seq`; None if unknown."""

    path: str
    date: dt.date
    size: int
    rows: int
    min_seq: int | None = None
    max_seq: int | None = None


@dataclass(slots=True)
class _DateState:
    """The rows read of one date: its files, the ids of their rows, and how many rows were copies."""

    files: set[str] = field(default_factory=set)
    ids: HashRuns = field(default_factory=HashRuns)
    max_seq: int = -1
    duplicates: int = 0
    used_at: int = 0


@dataclass(frozen=True, slots=True)
class _Rows:
    """Ids and arrival of the rows of a file, in its order. `has_id` is false where the id is null."""

    file: _File
    high: Any
    low: Any
    has_id: npt.NDArray[np.bool_]
    seqs: Any
    positions: Any


class IncrementalGold:
    """Answers of the mergeable gold tables of one pipeline, held from build to build. Used by one thread."""

    def __init__(self, lake: Lake, spec: PipelineSpec) -> None:
        self._lake, self._spec = lake, spec
        self._refreshes: dict[tuple[str, str], Refresh] = {}
        self._inputs: dict[str, _Input] = {}

    def answers(self, jobs: Iterable[TableJob]) -> dict[str, Answer]:
        """Returns the answers of those jobs that can be computed here, by table.

        Each input is read up to its pinned version. An input that cannot be read is left to Spark, which reports why.

        Raises:
            TransientError, FencedError: nothing can be read or built now.
        """
        by_input: dict[str, list[tuple[TableJob, MergeableQuery]]] = {}
        for job in jobs:
            if (query := self._query(job)) is not None:
                by_input.setdefault(job.plan.table.reads[0], []).append((job, query))
        answers: dict[str, Answer] = {}
        for name, readers in by_input.items():
            try:
                answers |= self._answers_over(name, readers)
            except (TransientError, FencedError):
                self._inputs.pop(name, None)
                raise
            except _LEFT_TO_SPARK as error:
                self._inputs.pop(name, None)
                log.info("pipeline=%s input=%s is left to Spark: %s", self._spec.pipeline, name, error)
        return answers

    def _query(self, job: TableJob) -> MergeableQuery | None:
        """Returns the query of a job that rebuilds single dates of a mergeable table."""
        plan = job.plan
        if plan.output_dates is None or plan.keys is not None or plan.since is not None or plan.output_hours:
            return None
        if plan.table.checks.has_result_checks:
            return None
        key = (plan.table.name, job.sql)
        if key not in self._refreshes:
            self._refreshes[key] = classify(plan.table, job.sql, self._spec)
        return self._refreshes[key].query

    def _answers_over(self, name: str, readers: Sequence[tuple[TableJob, MergeableQuery]]) -> dict[str, Answer]:
        pinned = readers[0][0].inputs[name]
        opened = pinned.delta_table
        if opened is None or pinned.version is None:
            raise _Unsupported("it does not exist")
        held = self._inputs.get(name)
        if held is None or held.table_id != pinned.table_id or held.version > pinned.version:
            dedupe = self._spec.gold.dedupe if pinned.has_events else None
            held = self._inputs[name] = _Input(self._lake, pinned.key, str(pinned.table_id), dedupe)
        for job, query in readers:
            held.register(job.plan.table.name, query)
        held.advance(opened, {job.plan.table.name: job.plan.output_dates or frozenset() for job, _ in readers})
        return {
            job.plan.table.name: held.answer(job.plan.table.name, job.plan.output_dates or frozenset())
            for job, _ in readers
        }


class _Input:
    """The state held for one input: its dates, and the partial results of the tables that read it."""

    def __init__(self, lake: Lake, key: str, table_id: str, dedupe: DedupeSpec | None) -> None:
        self.table_id, self.version = table_id, -1
        self._lake, self._key, self._dedupe = lake, key, dedupe
        self._root = arrow_path(lake.storage, key)
        self._dates: dict[dt.date, _DateState] = {}
        self._sums: dict[str, PartialSums] = {}
        self._columns: pa.Schema = pa.schema([])
        self._round = 0

    @property
    def _window(self) -> int:
        return 0 if self._dedupe is None else self._dedupe.within_days

    def register(self, table: str, query: MergeableQuery) -> None:
        """Adds a gold table; one with another query begins again."""
        held = self._sums.get(table)
        if held is None or held.query != query:
            self._sums[table] = PartialSums(query)

    def answer(self, table: str, dates: frozenset[dt.date]) -> Answer:
        """Returns the answer of a table for dates to which `advance` has brought it."""
        duplicates = sum(self._dates[date].duplicates for date in dates if date in self._dates)
        return Answer(self._sums[table].answer(dates), duplicates)

    def advance(self, opened: DeltaTable, needed: Mapping[str, frozenset[dt.date]]) -> None:
        """Reads the files added up to the version of `opened`, and begins the needed dates of each table.

        Raises:
            _Unsupported, OSError, ArrowException, duckdb.Error, ValueError: the input cannot be read here.
        """
        if not has_plain_files(opened):
            raise _Unsupported("its rows are not those of its files")
        self._round += 1
        self._columns = pa.schema(opened.schema().to_arrow())
        live, version = _live_files(opened), opened.version()
        if self._dates and version > self.version:
            self._follow(version)
        self.version = version
        for date in sorted(self._dates):
            if self._dates[date].files != {file.path for file in live.get(date, ())}:
                self._end(date)
        missing = {table: {date for date in dates if date not in self._sums[table]} for table, dates in needed.items()}
        if any(missing.values()):
            self._begin(missing, live)
        self._evict({date for dates in needed.values() for date in dates})

    # What the log says.

    def _follow(self, version: int) -> None:
        """Follows the commits after the version held, and adds the rows of their files."""
        added: list[_File] = []
        for _, actions in read_commits(self._lake, self._key, range(self.version + 1, version + 1)):
            if actions is None:
                self._dates.clear()
                self._end_sums(lambda date: True)
                return
            for action in actions:
                self._follow_action(action, added)
        if added:
            self._add(added)

    def _follow_action(self, action: Action, added: list[_File]) -> None:
        kind = "add" if "add" in action else "remove"
        body = action.get(kind)
        if body is None:
            return
        date = _date_of(body)
        state = None if date is None else self._dates.get(date)
        if date is None or state is None:
            return
        path = unquote(body["path"])
        if kind == "remove":
            state.files.discard(path)
            if body.get("dataChange", True):
                added[:] = [file for file in added if file.date != date]
                self._end(date)
            return
        changes_rows = body.get("dataChange", True)
        if changes_rows and path in state.files:  # it replaces the rows read under this name
            self._end(date)
            return
        state.files.add(path)
        if changes_rows:
            added.append(_file_of_action(body, path, date))

    def _end(self, date: dt.date) -> None:
        """Forgets a date, and the answers that its ids have decided."""
        self._dates.pop(date, None)
        self._end_sums(lambda other: abs((other - date).days) <= self._window)

    def _end_sums(self, ends: Callable[[dt.date], bool]) -> None:
        for sums in self._sums.values():
            for date in [date for date in sums.dates if ends(date)]:
                sums.drop(date)

    # New rows.

    def _add(self, added: Sequence[_File]) -> None:
        """Adds the rows of new files to the dates that are held."""
        added = [file for file in added if file.date in self._dates]
        for file in added:
            self._end_overtaken(file)
        with ThreadPoolExecutor(_READER_THREADS) as pool:
            tables = list(pool.map(self._read_all, added))
        if self._dedupe is None:
            masks = [np.ones(rows.num_rows, dtype=np.bool_) for rows in tables]
        else:
            masks = self._first_of_new([self._identified(*pair) for pair in zip(added, tables, strict=True)])
        by_date: dict[dt.date, list[pa.Table]] = {}
        for file, rows, is_first in zip(added, tables, masks, strict=True):
            by_date.setdefault(file.date, []).append(rows.filter(pa.array(is_first)))
            state = self._dates[file.date]
            state.duplicates += int(len(is_first) - is_first.sum())
            state.max_seq = max(state.max_seq, -1 if file.max_seq is None else file.max_seq)
        for date, parts in by_date.items():
            self._aggregate(date, parts, list(self._sums))

    def _end_overtaken(self, file: _File) -> None:
        """Ends the answers of dates in which a row may have arrived after one of the new file, though counted first."""
        if self._dedupe is None:
            return
        for date in _around(file.date, self._window):
            state = self._dates.get(date)
            if state is not None and (file.min_seq is None or file.min_seq <= state.max_seq):
                for sums in self._sums.values():
                    sums.drop(date)
                    sums.drop(file.date)

    def _first_of_new(self, files: Sequence[_Rows]) -> list[npt.NDArray[np.bool_]]:
        """Returns a mask for each new file of the rows that arrived first, and adds its ids."""
        is_first = []
        for rows, is_copy in zip(files, _copies_among(files, self._window), strict=True):
            held = (self._dates[date].ids for date in _around(rows.file.date, self._window) if date in self._dates)
            earlier = [ids.contains(rows.high, rows.low) & rows.has_id for ids in held]
            is_first.append(~np.logical_or.reduce([is_copy, *earlier]))
        for rows in files:
            ids = IdHashes.from_hashes(rows.high[rows.has_id], rows.low[rows.has_id])
            self._dates[rows.file.date].ids.add(ids)
        return is_first

    # Dates that begin.

    def _begin(self, missing: Mapping[str, set[dt.date]], live: Mapping[dt.date, Sequence[_File]]) -> None:
        """Reads the missing dates of each table, and the ids of the dates around them."""
        dates = {date for needed in missing.values() for date in needed}
        around = {near for date in dates for near in _around(date, self._window)}
        if sum(file.rows for date in around for file in live.get(date, ())) > MAX_ROWS:
            raise _Unsupported(f"{len(around)} dates have more than {MAX_ROWS:,} rows")
        is_first = {} if self._dedupe is None else self._begin_ids(sorted(around), live)
        for date in sorted(dates):
            tables = [table for table, needed in missing.items() if date in needed]
            for table in tables:
                self._sums[table].begin(date)
            files = live.get(date, ())
            if date not in self._dates:
                self._dates[date] = _DateState(files={file.path for file in files})
            masks = (is_first[file.path] for file in files if file.path in is_first)
            self._dates[date].duplicates = sum(int(len(mask) - mask.sum()) for mask in masks)
            self._begin_rows(date, files, is_first, tables)

    def _begin_rows(
        self,
        date: dt.date,
        files: Sequence[_File],
        is_first: Mapping[str, npt.NDArray[np.bool_]],
        tables: Sequence[str],
    ) -> None:
        parts, rows, names = [], 0, self._columns_of(tables)
        for file in files:
            table = self._read(file, names)
            parts.append(table.filter(pa.array(is_first[file.path])) if file.path in is_first else table)
            rows += parts[-1].num_rows
            if rows >= _CHUNK_ROWS:
                self._aggregate(date, parts, tables)
                parts, rows = [], 0
        self._aggregate(date, parts, tables)

    def _begin_ids(
        self, dates: Sequence[dt.date], live: Mapping[dt.date, Sequence[_File]]
    ) -> dict[str, npt.NDArray[np.bool_]]:
        """Reads the ids of these dates. Returns a mask for each file of the rows that arrived first."""
        files = [file for date in dates for file in live.get(date, ())]
        with ThreadPoolExecutor(_READER_THREADS) as pool:
            read = list(pool.map(self._read_ids, files))
        is_copy = _copies_among(read, self._window)
        for date in dates:
            of_date = [rows for rows in read if rows.file.date == date]
            previous = self._dates.get(date)
            state = self._dates[date] = _DateState(files={rows.file.path for rows in of_date})
            state.max_seq = max((int(rows.seqs.max()) for rows in of_date if len(rows.seqs)), default=-1)
            # Of the outermost dates, rows before them may decide; their answers are not begun.
            state.duplicates = 0 if previous is None else previous.duplicates
            halves = [
                np.concatenate([np.empty(0, np.uint64), *(half[rows.has_id] for half, rows in pairs)])
                for pairs in ([(rows.high, rows) for rows in of_date], [(rows.low, rows) for rows in of_date])
            ]
            state.ids.add(IdHashes.from_hashes(*halves))
        return {rows.file.path: ~copies for rows, copies in zip(read, is_copy, strict=True)}

    def _aggregate(self, date: dt.date, parts: Sequence[pa.Table], tables: Iterable[str]) -> None:
        if not parts:
            return
        rows = input_rows(pa.concat_tables(parts, promote_options="default"), date, DATE_COLUMN)
        for table in tables:
            if date in self._sums[table] and rows.num_rows:
                self._sums[table].add(date, rows)

    def _evict(self, needed: set[dt.date]) -> None:
        """Ends the dates used least recently while too many ids are held."""
        for date in {near for middle in needed for near in _around(middle, self._window)}:
            if (state := self._dates.get(date)) is not None:
                state.used_at = self._round
        oldest_first = sorted(self._dates, key=lambda date: self._dates[date].used_at)
        held = sum(len(state.ids) for state in self._dates.values())
        for date in oldest_first:
            if held <= MAX_IDS or self._dates[date].used_at == self._round:
                return
            held -= len(self._dates[date].ids)
            self._end(date)

    # Files.

    def _columns_of(self, tables: Iterable[str]) -> list[str]:
        return sorted({name for table in tables for name in self._sums[table].query.columns} - {DATE_COLUMN})

    def _read_all(self, file: _File) -> pa.Table:
        ids = [] if self._dedupe is None else [_ID_COLUMN, *ARRIVAL]
        return self._read(file, [*self._columns_of(self._sums), *ids])

    def _read_ids(self, file: _File) -> _Rows:
        rows = self._identified(file, self._read(file, [_ID_COLUMN, *ARRIVAL]))
        high, low, seqs, positions = map(spilled, (rows.high, rows.low, rows.seqs, rows.positions))
        return _Rows(file, high, low, rows.has_id, seqs, positions)

    def _read(self, file: _File, names: Iterable[str]) -> pa.Table:
        if is_absolute_path(file.path):
            raise _Unsupported("it references a file of another table")
        columns = pa.schema([self._columns.field(name) for name in dict.fromkeys(names)])
        path = f"{self._root}/{file.path}"
        with open_data_file(
            self._lake.filesystem, path, file.size, single_request_bytes=_SINGLE_REQUEST_BYTES
        ) as source:
            parquet = open_parquet(source, pre_buffer=True)
            count = parquet.metadata.num_rows
            if count != file.rows:
                raise _Unsupported(f"{file.path} has {count} rows instead of {file.rows}")
            present = [name for name in columns.names if name in parquet.schema_arrow.names]
            if not present:  # a count of rows needs no column
                return pa.table({_NO_COLUMN: pa.nulls(count), **{c.name: pa.nulls(count, c.type) for c in columns}})
            batches = [rows_as_declared(batch, columns) for batch in parquet.read(present).to_batches()]
        return pa.Table.from_batches(batches, schema=columns)

    def _identified(self, file: _File, rows: pa.Table) -> _Rows:
        seqs, positions = (rows.column(name) for name in ARRIVAL)
        if seqs.null_count or positions.null_count:
            raise _Unsupported(f"rows of {file.path} have no place of arrival")
        ids = rows.column(_ID_COLUMN).combine_chunks()
        high, low = hash_ids(ids, HASH_KEYS)
        seq_numbers, places = (values.cast(pa.int64()).to_numpy() for values in (seqs, positions))
        return _Rows(file, high, low, np.asarray(ids.is_valid()), seq_numbers, places)


def _copies_among(files: Sequence[_Rows], window: int) -> list[npt.NDArray[np.bool_]]:
    """Returns a mask for each file of the rows whose id arrived earlier in one of these files, within the window."""
    masks = [np.zeros(len(rows.high), dtype=np.bool_) for rows in files]
    places = _repeated_places(files)
    if not places:
        return masks
    high, low, seqs, positions = (
        np.concatenate([getattr(files[number], name)[index] for number, index in places])
        for name in ("high", "low", "seqs", "positions")
    )
    days = np.array([files[number].file.date for number, _ in places], dtype="datetime64[D]").astype(np.int64)
    buckets = np.repeat(days, [len(index) for _, index in places])
    _, keys = np.unique(np.stack([high, low], axis=1), axis=0, return_inverse=True)
    arrivals = Arrivals(keys.reshape(-1).astype(np.int64), buckets, seqs.astype(np.int64), positions.astype(np.int64))
    is_copy = np.zeros(len(high), dtype=np.bool_)
    is_copy[find_duplicates(arrivals, window)] = True
    ends = np.cumsum([len(index) for _, index in places])[:-1]
    for (number, index), copies in zip(places, np.split(is_copy, ends), strict=True):
        masks[number][index] = copies
    return masks


def _repeated_places(files: Sequence[_Rows]) -> list[tuple[int, npt.NDArray[np.int64]]]:
    """Returns, by file, the rows whose id may occur more than once: their first half does."""
    halves = np.sort(np.concatenate([np.empty(0, np.uint64), *(rows.high[rows.has_id] for rows in files)]))
    repeated = np.unique(halves[1:][halves[1:] == halves[:-1]])
    if not len(repeated):
        return []
    places = []
    for number, rows in enumerate(files):
        at = np.minimum(np.searchsorted(repeated, rows.high), len(repeated) - 1)
        index = np.flatnonzero((repeated[at] == rows.high) & rows.has_id)
        if len(index):
            places.append((number, index))
    return places


def _live_files(opened: DeltaTable) -> dict[dt.date, list[_File]]:
    """Returns the data files of a table by date; files without a date hold rows of no answer."""
    files: dict[dt.date, list[_File]] = {}
    for file in added_files(opened, FileScan("", opened.version(), Part(DATE_COLUMN, None), DATE_COLUMN)):
        if file.date is not None:
            path = unquote(file.path)
            files.setdefault(file.date, []).append(_File(path, file.date, file.size, _counted(path, file.rows)))
    return files


def _counted(path: str, rows: int | None) -> int:
    if rows is None:
        raise _Unsupported(f"the log has no number of rows for {path}")
    return rows


def _date_of(body: Mapping[str, Any]) -> dt.date | None:
    try:
        return dt.date.fromisoformat((body.get("partitionValues") or {}).get(DATE_COLUMN) or "")
    except ValueError:
        return None


def _file_of_action(added: Action, path: str, date: dt.date) -> _File:
    stats = stats_of(added)
    bounds = ((stats.get(name) or {}).get("_seq") for name in ("minValues", "maxValues"))
    return _File(path, date, int(added["size"]), _counted(path, stats.get("numRecords")), *bounds)


def _around(date: dt.date, days: int) -> Iterator[dt.date]:
    return (date + dt.timedelta(days=offset) for offset in range(-days, days + 1))
