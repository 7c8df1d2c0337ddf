"""One pass over a batch writes the files of all its tables.

Each task reads its share of the payloads, parses them, gathers the rows of every table and writes one file per
table and partition. Its output is small: the files with their statistics. Nothing is committed here; files of a task
that dies, or that ran twice, are in no commit and are removed as orphans by maintenance.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from deltaworks.engine.announcements import with_announcements
from deltaworks.engine.duplicates.flags import DuplicateWindow, TaskFlags
from deltaworks.engine.duplicates.window import TasksTogether
from deltaworks.engine.table_files import FILE_BYTES, FLUSH_BYTES, FileTarget, TableWriters
from deltaworks.errors import DeltaworksError
from deltaworks.events.evolution import Evolved, new_columns, together
from deltaworks.events.findings import Findings
from deltaworks.events.parse import BatchStamp, Parser, Payload
from deltaworks.events.reasons import QUARANTINE_PARTITION
from deltaworks.sources.base import Slice
from deltaworks.sources.task_output import TaskOutput, in_task_order
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.files import WrittenFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(slots=True)
class Written:
    """What a pass wrote: the files of each table in the order of its tasks, and what was noted beside them.

    `new_columns` are the columns that tables have to be given before the files are committed; `facts` go on record.
    """

    files: dict[str, list[WrittenFile]] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)
    new_columns: Evolved = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


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
) -> TaskOutput:
    """The work of one task: parse the payloads and write the files.

    What must stop the stream, data or a storage that is away or denies, is returned among the findings: raised in a
    task, Spark would only try it again, and the driver would not learn what it was.
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
    files: dict[str, list[WrittenFile]] = {}
    for table, file in writers.files:
        files.setdefault(table, []).append(file)
    return TaskOutput(
        files={table: tuple(of_table) for table, of_table in files.items()},
        findings=parser.findings,
        first_ids=flags.first_ids() if flags else {},
    )


def fan_out(
    spark: SparkSession,
    source: Slice,
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

    def work(payloads: Iterable[Payload]) -> TaskOutput:
        pipeline = PipelineSpec.model_validate_json(declared)
        return write_payloads(payloads, pipeline, stamp, target, evolved=evolved, duplicates=duplicates)

    outputs = source.read(spark, work, tasks=spec.stream.tasks_per_batch)
    written = merged_outputs(outputs, target, duplicates or {})
    if written.findings.failure is not None:
        raise written.findings.failure
    return written


def merged_outputs(
    outputs: Iterable[TaskOutput], target: FileTarget, duplicates: Mapping[str, DuplicateWindow]
) -> Written:
    """The outputs of all tasks as one, the same whatever order they come in.

    Copies that two tasks have between them are flagged here, by rewriting the files that hold them.
    """
    written, together = Written(), TasksTogether(target)
    skipped = {name: window.skipped_files for name, window in duplicates.items() if window.skipped_files}
    written.facts = {f"duplicates_left_out_{name}": files for name, files in skipped.items()}
    for output in in_task_order(outputs):
        written.findings.add(output.findings)
        for table, files in output.files.items():
            first_ids = output.first_ids.get(table)
            settled = files if first_ids is None else together.settle(table, first_ids, files)
            written.files.setdefault(table, []).extend(settled)
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
