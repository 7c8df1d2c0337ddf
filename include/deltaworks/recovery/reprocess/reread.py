"""Reads objects again, parses them and stages the new rows of each table as files. Commits nothing.

Rows keep their batch, arrival time and position, so the result equals a first read under the present declaration.

If only some tables are selected, all other tables stay unchanged, and so does quarantine with one exception: a
quarantined row that fits now and belongs only to selected tables is removed from quarantine. A row that also belongs to
other tables stays, since those tables would lack it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from deltaworks.engine.writers import FileTarget, TableWriters
from deltaworks.errors import ContractError
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.evolution import EvolvedColumns
from deltaworks.events.parse import NO_PARSER_INPUTS, ParserInputs
from deltaworks.events.reasons import QUARANTINE_TABLE
from deltaworks.recovery.reprocess.selection import READ_THREADS, SourceObject
from deltaworks.sources.base import split_balanced
from deltaworks.sources.objects.payloads import FileOpener, FileReference
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources import require_object_source
from deltaworks.tables.driver_collect import collect_bytes
from deltaworks.tables.files import WrittenFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: Bytes of objects per Spark task.
TASK_BYTES = 64 << 20
Opener = Callable[[FileReference], Payload]
#: Positions of quarantined rows by seq.
Positions = Mapping[int, frozenset[int]]
#: A payload with its batch id and ingest time.
PayloadOfBatch = tuple[tuple[int, int], Payload]


@dataclass(frozen=True, slots=True)
class RereadScope:
    """The tables that receive rows. `quarantined` are the positions of quarantined rows, if only some tables are read
    again.
    """

    tables: frozenset[str]
    all_tables: bool
    quarantined: Positions = field(default_factory=dict)


@dataclass(slots=True)
class RereadResult:
    """Staged files and numbers of rows by table, and the keys of unreadable objects by `seq`.

    `records` counts stream records by batch.
    """

    files: dict[str, list[WrittenFile]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    records: dict[int, int] = field(default_factory=dict)
    missing_keys: dict[int, str] = field(default_factory=dict)
    released: set[tuple[int, int]] = field(default_factory=set)
    unmatched: int = 0
    still_quarantined: int = 0
    failure: str = ""

    def encode(self) -> str:
        """Encodes the result of a Spark task as JSON."""
        return json.dumps({**asdict(self), "released": sorted(self.released)})

    @classmethod
    def decode(cls, text: str) -> RereadResult:
        """Parses the output of `encode`."""
        record = json.loads(text)
        return cls(
            files={table: [WrittenFile(**file) for file in files] for table, files in record.pop("files").items()},
            records={int(batch): records for batch, records in record.pop("records").items()},
            missing_keys={int(seq): key for seq, key in record.pop("missing_keys").items()},
            released={(seq, position) for seq, position in record.pop("released")},
            **record,
        )

    def add(self, other: RereadResult) -> None:
        """Adds the result of another Spark task."""
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
    """Parser settings of a reread, and the folder for staged files. Without a folder, rows are only counted.

    `inputs` are the present look-up tables, so that rows are enriched like new ones.
    """

    scope: RereadScope
    destination: FileTarget | None
    evolved: EvolvedColumns | None = None
    inputs: ParserInputs = NO_PARSER_INPUTS


class Rereader:
    """Parses payloads again within one task. Not thread-safe."""

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
        """Creates a rereader. `opener` reads objects with `readers` threads; stream records do not need it."""
        self._readers = readers
        self._parser = inputs.create_parser(spec, evolved=evolved)
        self._fingerprint = spec.fingerprint()
        self._scope = scope
        self._opener = opener
        self.result = RereadResult()

    def read_objects(self, objects: Iterable[SourceObject]) -> Iterator[tuple[str, pa.Table]]:
        """Yields the rows of the selected tables in batches; unreadable objects are recorded and skipped."""
        yield from self.read_payloads(self._open_objects(objects))

    def read_payloads(self, payloads: Iterable[PayloadOfBatch]) -> Iterator[tuple[str, pa.Table]]:
        """Yields the rows of payloads in batches. Consecutive payloads of one ingest batch are parsed together."""
        stamped = ((stamp, payload.seq in self._scope.quarantined, payload) for stamp, payload in payloads)
        for ((batch_id, at_us), positions), group in groupby(stamped, lambda one: one[:2]):
            stamp = BatchMetadata(batch_id, at_us, self._fingerprint)
            if positions:
                for _, _, payload in group:
                    yield from self._read_with_quarantine(payload, stamp)
                continue
            for table, rows in self._parser.parse((payload for _, _, payload in group), stamp):
                if table in self._scope.tables:
                    yield table, rows
                elif table == QUARANTINE_TABLE:
                    self.result.unmatched += rows.num_rows

    def _open_objects(self, objects: Iterable[SourceObject]) -> Iterator[PayloadOfBatch]:
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

    def _read_with_quarantine(self, source: Payload, stamp: BatchMetadata) -> Iterator[tuple[str, pa.Table]]:
        """Parses a payload that has quarantined rows, and decides which of these leave quarantine."""
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
                remaining = rows.filter(pc.invert(pc.is_in(rows.column("_position"), value_set=staying)))
                if remaining.num_rows:
                    yield table, remaining


def _file_reference(source: SourceObject) -> FileReference:
    return FileReference(source.seq, source.key, source.etag, source.version_id, source.arrived_at_us)


def open_landing(environment: EnvironmentSpec, spec: PipelineSpec) -> FileOpener:
    """Returns the opener of landed objects, configured like the pipeline's stream."""
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
    """Reads the objects again in one Spark pass and stages the rows of the selected tables.

    Raises:
        ContractError: REPROCESS_STOPPED, the pipeline is declared to stop at such data.
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

    def task(parts: Iterable[tuple[list[SourceObject], RereadScope]]) -> Iterator[bytes]:
        pipeline = PipelineSpec.model_validate_json(declared)
        for share, own in parts:
            rereader = Rereader(pipeline, own, opener, evolved=settings.evolved, inputs=settings.inputs)
            yield stage_parts(rereader.read_objects(share), rereader, settings.destination).encode().encode()

    did = RereadResult()
    for encoded in collect_bytes(spark.sparkContext.parallelize(shares, len(shares)).mapPartitions(task)):
        did.add(RereadResult.decode(encoded.decode()))
    raise_task_failure(did, spec)
    return did


def reread_in_process(
    objects: Sequence[SourceObject], *, opener: Opener, spec: PipelineSpec, settings: RereadSettings
) -> RereadResult:
    """Reads the objects again in this process, which is faster than a Spark session for a few objects.

    Raises:
        ContractError: REPROCESS_STOPPED.
    """
    rereader = Rereader(
        spec, settings.scope, opener, readers=READ_THREADS, evolved=settings.evolved, inputs=settings.inputs
    )
    did = stage_parts(rereader.read_objects(objects), rereader, settings.destination)
    raise_task_failure(did, spec)
    return did


def raise_task_failure(result: RereadResult, spec: PipelineSpec) -> None:
    """Raises the failure of a task.

    Raises:
        ContractError: REPROCESS_STOPPED.
    """
    if result.failure:
        raise ContractError(
            "REPROCESS_STOPPED", f"{spec.pipeline!r} is declared to stop at such data: {result.failure}"
        )


def stage_parts(parts: Iterable[tuple[str, pa.Table]], rereader: Rereader, target: FileTarget | None) -> RereadResult:
    """Writes the rows of one task, or only counts them without a destination."""
    writers = None if target is None else TableWriters(target)
    did = rereader.result
    try:
        for table, rows in parts:
            did.rows[table] = did.rows.get(table, 0) + rows.num_rows
            if writers is not None:
                writers.add(table, rows)
    except ContractError as error:
        # Returned, not raised, since Spark would retry the task.
        did.failure = str(error)
        return did
    if writers is not None:
        writers.flush()
        for table, file in writers.files:
            did.files.setdefault(table, []).append(file)
    return did
