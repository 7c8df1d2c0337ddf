"""One pass over a batch writes the files of all its tables.

Each task reads its share of the payloads, parses them, gathers the rows of every table and writes one file per
table and partition. What it returns is small: the files with their statistics. Nothing is committed here; files of
a task that dies, or that ran twice, are in no commit and are removed as orphans by maintenance.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltaworks.engine.announcements import with_announcements
from deltaworks.engine.duplicates.flags import FIRST_IDS, DuplicateWindow, TaskFlags
from deltaworks.engine.duplicates.window import TasksTogether
from deltaworks.engine.file_target import FileTarget
from deltaworks.errors import DeltaworksError
from deltaworks.events.evolution import Evolved, new_columns, together
from deltaworks.events.findings import Findings
from deltaworks.events.parse import BatchStamp, Parser, Payload
from deltaworks.events.reasons import QUARANTINE_PARTITION
from deltaworks.sources.base import SourceSlice, Told
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.files import WrittenFile, split_by_partition, write_file
from deltaworks.tables.statistics import DEFAULT_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What a task holds in Arrow at most, however many tables there are and however skewed the routing is.
FLUSH_BYTES = 256 << 20
#: What a table holds in Arrow before its rows are written: files of a tenth to a third of that.
FILE_BYTES = 128 << 20
WRITE_THREADS = 4

#: Stands where a task's record has the name of a table.
FINDINGS = ""


@dataclass(slots=True)
class Written:
    """What a pass wrote, the files of each table in the order of the slices, and what it found out.

    `new_columns` are the columns that tables have to be given before the files are committed; `facts` go on record.
    """

    files: dict[str, list[WrittenFile]] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)
    new_columns: Evolved = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


class TableWriters:
    """Gathers rows by table and writes them as files. Not safe to share between threads.

    A table that holds `file_bytes` is written on its own: its files roll. Where all tables together hold `flush_bytes`,
    the largest are written until half of that is left, so that a hundred small tables do not pay for one hot one.
    """

    def __init__(self, target: FileTarget, *, flush_bytes: int = FLUSH_BYTES, file_bytes: int = FILE_BYTES) -> None:
        self._target = target
        self._filesystem = target.filesystem()
        self._flush_bytes = flush_bytes
        self._file_bytes = file_bytes
        self._held: dict[str, list[pa.Table]] = {}
        self._bytes: dict[str, int] = {}
        self.held_bytes = 0
        self.files: list[tuple[str, WrittenFile]] = []

    def add(self, table: str, rows: pa.Table) -> None:
        """Take rows; writes out what has grown too large."""
        self._held.setdefault(table, []).append(rows)
        self._bytes[table] = self._bytes.get(table, 0) + rows.nbytes
        self.held_bytes += rows.nbytes
        if self._bytes[table] >= self._file_bytes:
            self._flush([table])
        if self.held_bytes >= self._flush_bytes:
            self._flush(self._largest())

    def _largest(self) -> list[str]:
        """The fewest tables that leave no more than half of the bound held, the largest first."""
        chosen, left = [], self.held_bytes
        for table in sorted(self._bytes, key=lambda name: -self._bytes[name]):
            if left <= self._flush_bytes // 2:
                break
            chosen.append(table)
            left -= self._bytes[table]
        return chosen

    def flush(self) -> None:
        """Write all rows held."""
        self._flush(list(self._held))

    def _flush(self, tables: Sequence[str]) -> None:
        """Write these tables, several files at once; what is cut into partitions at a time is bounded too."""
        with ThreadPoolExecutor(WRITE_THREADS) as pool:
            work = (
                (table, values, part)
                for table in tables
                for values, part in split_by_partition(pa.concat_tables(self._take(table)), self._by(table))
            )
            while some := list(itertools.islice(work, 4 * WRITE_THREADS)):
                self.files.extend(pool.map(self._write, some))

    def _by(self, table: str) -> tuple[str, ...]:
        return self._target.partition_by[table]

    def _take(self, table: str) -> list[pa.Table]:
        self.held_bytes -= self._bytes.pop(table)
        return self._held.pop(table)

    def _write(self, work: tuple[str, dict[str, str | None], pa.Table]) -> tuple[str, WrittenFile]:
        table, values, rows = work
        indexed = self._target.indexed.get(table, DEFAULT_COLUMNS)
        written = write_file(self._filesystem, self._target.roots[table], rows, partition=values, indexed=indexed)
        return table, written


@contextmanager
def _collector_paused() -> Iterator[None]:
    """No search for reference cycles meanwhile.

    Parsed events hold none and are freed by their counts. Python looks through all that are alive again and again as
    new ones are made, which took more than a quarter of the parser's time.
    """
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


def write_payloads(
    payloads: Iterable[Payload],
    spec: PipelineSpec,
    stamp: BatchStamp,
    target: FileTarget,
    *,
    evolved: Evolved | None = None,
    duplicates: Mapping[str, DuplicateWindow] | None = None,
    flush_bytes: int = FLUSH_BYTES,
    file_bytes: int = FILE_BYTES,
) -> list[Told]:
    """The work of one task: parse the payloads and write the files; `(table, file as a mapping)` each.

    What it found out beside rows comes last, under FINDINGS, where there is something. What must stop the stream, data
    or a storage that is away or denies, is told that way too: raised in a task, Spark would only try it again, and the
    driver would not learn what it was.
    """
    writers = TableWriters(target, flush_bytes=flush_bytes, file_bytes=file_bytes)
    parser = Parser(spec, evolved=evolved)
    flags = TaskFlags(duplicates, target.filesystem()) if duplicates else None
    try:
        with _collector_paused():
            for table, rows in with_announcements(spec, parser.parse(payloads, stamp)):
                writers.add(table, flags.mark(table, rows) if flags else rows)
        writers.flush()
    except DeltaworksError as error:
        parser.findings.failure = error
    told: list[Told] = [(table, asdict(file)) for table, file in writers.files]
    told += flags.told() if flags else []
    return [*told, (FINDINGS, {"text": parser.findings.encode()})] if parser.findings else told


def fan_out(
    spark: SparkSession,
    source: SourceSlice,
    *,
    spec: PipelineSpec,
    stamp: BatchStamp,
    target: FileTarget,
    evolved: Evolved | None = None,
    duplicates: Mapping[str, DuplicateWindow] | None = None,
) -> Written:
    """Write all tables of a batch in one Spark pass.

    Args:
        source: what the batch reads.
        evolved: the columns that tables were given while they ran.
        duplicates: of tables that flag copies, the files whose ids count.

    Raises:
        ContractError: the data is such that the pipeline declares to stop; nothing was committed.
        ConfigError, TransientError: OBJECT_FORBIDDEN, STORAGE_UNREACHABLE; nothing was committed.
    """
    # The spec travels as JSON: a pydantic model pickles too, but JSON stays readable in a task dump.
    declared = spec.model_dump_json()

    def work(payloads: Iterable[Payload]) -> list[Told]:
        pipeline = PipelineSpec.model_validate_json(declared)
        return write_payloads(payloads, pipeline, stamp, target, evolved=evolved, duplicates=duplicates)

    written = gathered(source.read(spark, work, tasks=spec.stream.tasks_per_batch), target, duplicates or {})
    if written.findings.failure is not None:
        raise written.findings.failure
    return written


def gathered(told: Iterable[Told], target: FileTarget, duplicates: Mapping[str, DuplicateWindow]) -> Written:
    """What all tasks have told, in their order; copies that two of them have between them are flagged now."""
    written, together = Written(), TasksTogether(target)
    left_out = {name: window.left_out for name, window in duplicates.items() if window.left_out}
    written.facts = {f"duplicates_left_out_{name}": files for name, files in left_out.items()}
    of_task: dict[str, list[WrittenFile]] = {}
    for table, record in told:
        if table == FINDINGS:
            written.findings.add(Findings.decode(record["text"]))
        elif table == FIRST_IDS:
            # What a task tells of a table comes behind its files of it.
            files = of_task.pop(record["table"], [])
            written.files.setdefault(record["table"], []).extend(together.settle(record["table"], record["ids"], files))
        elif table in duplicates:
            of_task.setdefault(table, []).append(WrittenFile(**record))
        else:
            written.files.setdefault(table, []).append(WrittenFile(**record))
    return written


def with_new_columns(one_pass: Callable[[Evolved], Written], spec: PipelineSpec, evolved: Evolved) -> Written:
    """A pass over a batch; a second one with the columns that the first one found fields for, where it did.

    Args:
        one_pass: writes the batch, given all columns that tables have been given while they ran.
        evolved: those they have by now.
    """
    written = one_pass(evolved)
    added = new_columns(spec, evolved, written.findings.new_fields)
    if added:
        # The files of the first pass are in no commit: orphans that maintenance removes.
        written = one_pass(together(evolved, added))
        written.new_columns = added
    return written


def partitioning(spec: PipelineSpec) -> dict[str, tuple[str, ...]]:
    """The partition columns of every bronze table and of quarantine."""
    return {table.name: table.partition_by for table in spec.tables} | {"quarantine": QUARANTINE_PARTITION}
