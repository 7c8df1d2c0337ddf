"""The pass of a reprocess: objects are read and parsed again, and the new rows of each table are staged as files.

Rows keep the batch, the arrival and the position they had, so that what comes out is what the first reading would have
given under the declaration of now. Nothing is committed here.

Where only some tables are selected, the others and quarantine stay as they are, with one exception: a row in quarantine
that fits now, and belongs to selected tables only, leaves it. One that belongs to others too stays, or it would be in
some of its tables and missing in the rest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from deltaworks.engine.table_files import FileTarget, TableWriters
from deltaworks.errors import ContractError
from deltaworks.events.evolution import EvolvedColumns
from deltaworks.events.parse import BatchStamp, Payload
from deltaworks.events.parser_inputs import NO_PARSER_INPUTS, ParserInputs
from deltaworks.events.reasons import QUARANTINE_TABLE
from deltaworks.recovery.reprocess.selection import READ_THREADS, SourceObject
from deltaworks.sources.base import split_balanced
from deltaworks.sources.objects.payloads import FileOpener, FileReference
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources.selection import require_object_source
from deltaworks.tables.files import WrittenFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: Objects of this size together make a task.
TASK_BYTES = 64 << 20
Opener = Callable[[FileReference], Payload]
#: Positions of rows in quarantine, by seq.
Positions = Mapping[int, frozenset[int]]
#: A payload, with the batch it was read in and when.
StampedPayload = tuple[tuple[int, int], Payload]


@dataclass(frozen=True, slots=True)
class RereadScope:
    """Which tables get rows. `quarantined` are the rows in quarantine now, where only some tables are read again."""

    tables: frozenset[str]
    all_tables: bool
    quarantined: Positions = field(default_factory=dict)


@dataclass(slots=True)
class RereadResult:
    """What a pass did: files and rows by table, and by `seq` the keys of objects that could not be read.

    `records` counts those of a stream, by batch.
    """

    files: dict[str, list[WrittenFile]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    records: dict[int, int] = field(default_factory=dict)
    missing_keys: dict[int, str] = field(default_factory=dict)
    released: set[tuple[int, int]] = field(default_factory=set)
    unmatched: int = 0
    still_quarantined: int = 0
    failure: str = ""

    def add(self, other: RereadResult) -> None:
        """Take in what another task did."""
        for table, files in other.files.items():
            self.files.setdefault(table, []).extend(files)
        for table, rows in other.rows.items():
            self.rows[table] = self.rows.get(table, 0) + rows
        for batch, records in other.records.items():
            self.records[batch] = self.records.get(batch, 0) + records
        self.missing_keys |= other.missing_keys
        self.released |= other.released
        self.unmatched += other.unmatched
        self.still_quarantined += other.still_quarantined
        self.failure = self.failure or other.failure


@dataclass(frozen=True, slots=True)
class RereadSettings:
    """What a pass makes of payloads: rows of which tables, and where their files go; None only counts them.

    `inputs` are those of today: rows that are read again have the answers that new ones have.
    """

    scope: RereadScope
    destination: FileTarget | None
    evolved: EvolvedColumns | None = None
    inputs: ParserInputs = NO_PARSER_INPUTS


class Rereader:
    """Reads payloads again within one task. Used by one thread."""

    def __init__(
        self,
        spec: PipelineSpec,
        scope: RereadScope,
        opener: Opener | None = None,
        *,
        readers: int = 1,
        evolved: EvolvedColumns | None = None,
        inputs: ParserInputs = NO_PARSER_INPUTS,
    ) -> None:
        """`opener` reads objects, so many of them at once; records need none."""
        self._readers = readers
        self._parser = inputs.create_parser(spec, evolved=evolved)
        self._fingerprint = spec.fingerprint()
        self._scope = scope
        self._opener = opener
        self.result = RereadResult()

    def read_objects(self, objects: Iterable[SourceObject]) -> Iterator[tuple[str, pa.Table]]:
        """The rows of the selected tables, in parts; objects that cannot be read are noted and left out."""
        yield from self.read_payloads(self._open_objects(objects))

    def read_payloads(self, payloads: Iterable[StampedPayload]) -> Iterator[tuple[str, pa.Table]]:
        """The rows of payloads, in parts: those that follow each other with one stamp are read together."""
        stamped = ((stamp, payload.seq in self._scope.quarantined, payload) for stamp, payload in payloads)
        for ((batch_id, at_us), beside), group in groupby(stamped, lambda one: one[:2]):
            stamp = BatchStamp(batch_id, at_us, self._fingerprint)
            if beside:
                for _, _, payload in group:
                    yield from self._read_with_quarantine(payload, stamp)
                continue
            for table, rows in self._parser.parse((payload for _, _, payload in group), stamp):
                if table in self._scope.tables:
                    yield table, rows
                elif table == QUARANTINE_TABLE:
                    self.result.unmatched += rows.num_rows

    def _open_objects(self, objects: Iterable[SourceObject]) -> Iterator[StampedPayload]:
        if self._opener is None:
            raise TypeError("objects are read by an opener")
        with ThreadPoolExecutor(self._readers) as pool:
            waiting = iter(objects)
            while some := list(itertools.islice(waiting, self._readers)):
                for source, payload in zip(some, pool.map(self._opener, map(_file_reference, some)), strict=True):
                    if payload.data is None:
                        self.result.missing_keys[source.seq] = source.key
                    else:
                        yield (source.batch_id, source.ingested_at_us), payload

    def _read_with_quarantine(self, source: Payload, stamp: BatchStamp) -> Iterator[tuple[str, pa.Table]]:
        """A payload with rows in quarantine, read whole: the tables they belong to now decide what becomes of them."""
        parsed = list(self._parser.parse([source], stamp))
        before = self._scope.quarantined[source.seq]
        places: dict[int, set[str]] = {}
        for table, rows in parsed:
            for position in rows.column("_position").to_pylist():
                places.setdefault(position, set()).add(table)
        fitting = {position for position in before if places.get(position) and QUARANTINE_TABLE not in places[position]}
        released = {position for position in fitting if places[position] <= self._scope.tables}
        staying = pa.array(sorted(fitting - released), pa.int64())
        self.result.released |= {(source.seq, position) for position in released}
        self.result.still_quarantined += len(staying)
        self.result.unmatched += sum(QUARANTINE_TABLE in tables for at, tables in places.items() if at not in before)
        for table, rows in parsed:
            if table in self._scope.tables:
                kept = rows.filter(pc.invert(pc.is_in(rows.column("_position"), value_set=staying)))
                if kept.num_rows:
                    yield table, kept


def _file_reference(source: SourceObject) -> FileReference:
    return FileReference(source.seq, source.key, source.etag, source.version_id, source.arrived_at_us)


def open_landing(environment: EnvironmentSpec, spec: PipelineSpec) -> FileOpener:
    """Opens objects of the landing bucket as the pipeline's stream does."""
    source = require_object_source(spec.source, pipeline=spec.pipeline, unsupported="there is nothing to read again")
    return FileOpener.for_source(environment.landing, source, lake=environment.lake)


def reread_with_spark(
    spark: SparkSession,
    objects: Sequence[SourceObject],
    *,
    opener: Opener,
    spec: PipelineSpec,
    settings: RereadSettings,
) -> RereadResult:
    """Read the objects again in one Spark pass and stage the rows of the selected tables.

    Raises:
        ContractError: REPROCESS_STOPPED, the data is such that the pipeline declares to stop.
    """
    slices = split_balanced(
        objects,
        [max(1, source.size) for source in objects],
        max(1, sum(source.size for source in objects) // TASK_BYTES + 1),
    )
    declared, scope = spec.model_dump_json(), settings.scope
    shares = [
        (
            share,
            RereadScope(
                scope.tables,
                scope.all_tables,
                {o.seq: scope.quarantined[o.seq] for o in share if o.seq in scope.quarantined},
            ),
        )
        for share in slices
    ]

    def task(parts: Iterable[tuple[list[SourceObject], RereadScope]]) -> Iterator[dict[str, Any]]:
        pipeline = PipelineSpec.model_validate_json(declared)
        for share, own in parts:
            rereader = Rereader(pipeline, own, opener, evolved=settings.evolved, inputs=settings.inputs)
            yield asdict(stage_parts(rereader.read_objects(share), rereader, settings.destination))

    did = RereadResult()
    for record in spark.sparkContext.parallelize(shares, len(shares)).mapPartitions(task).collect():
        files = {table: [WrittenFile(**file) for file in files] for table, files in record.pop("files").items()}
        did.add(RereadResult(files=files, **record))
    raise_task_failure(did, spec)
    return did


def reread_in_process(
    objects: Sequence[SourceObject], *, opener: Opener, spec: PipelineSpec, settings: RereadSettings
) -> RereadResult:
    """What `reread` does, in this process: a few objects are read sooner than a session is open.

    Raises:
        ContractError: REPROCESS_STOPPED.
    """
    rereader = Rereader(
        spec, settings.scope, opener, readers=READ_THREADS, evolved=settings.evolved, inputs=settings.inputs
    )
    did = stage_parts(rereader.read_objects(objects), rereader, settings.destination)
    raise_task_failure(did, spec)
    return did


def raise_task_failure(did: RereadResult, spec: PipelineSpec) -> None:
    """Raise what a task met that the pipeline declares to stop at.

    Raises:
        ContractError: REPROCESS_STOPPED.
    """
    if did.failure:
        raise ContractError(
            "REPROCESS_STOPPED",
            f"The data is such that {spec.pipeline!r} declares to stop: {did.failure}",
            hint="Change the rule or the declaration, or leave the object out.",
        )


def stage_parts(parts: Iterable[tuple[str, pa.Table]], rereader: Rereader, target: FileTarget | None) -> RereadResult:
    """The work of one task: write the rows, or only count them where there is no target."""
    writers = None if target is None else TableWriters(target)
    did = rereader.result
    try:
        for table, rows in parts:
            did.rows[table] = did.rows.get(table, 0) + rows.num_rows
            if writers is not None:
                writers.add(table, rows)
    except ContractError as error:
        # Returned, not raised: Spark would only try the task again.
        did.failure = str(error)
        return did
    if writers is not None:
        writers.flush()
        for table, file in writers.files:
            did.files.setdefault(table, []).append(file)
    return did
