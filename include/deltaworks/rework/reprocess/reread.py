"""The pass of a reprocess: objects are read and parsed again, and the new rows of each table are staged as files.

Rows keep the batch, the arrival and the position they had, so that what comes out is what the first reading would have
given under the declaration of now. Nothing is committed here.

Where only some tables are selected, the others and quarantine stay as they are, with one exception: a row in quarantine
that fits now, and belongs to selected tables only, leaves it. One that belongs to others too stays, or it would be in
some of its tables and missing in the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from deltaworks.engine.table_files import FileTarget, TableWriters
from deltaworks.errors import ContractError
from deltaworks.events.evolution import Evolved
from deltaworks.events.parse import BatchStamp, Parser, Payload
from deltaworks.events.reasons import QUARANTINE
from deltaworks.rework.reprocess.selection import SourceObject
from deltaworks.sources.base import balanced
from deltaworks.sources.objects.payloads import FileReference
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.files import WrittenFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Objects of this size together make a task.
TASK_BYTES = 64 << 20
Opener = Callable[[FileReference], Payload]
#: Positions of rows in quarantine, by seq.
Positions = Mapping[int, frozenset[int]]


@dataclass(frozen=True, slots=True)
class RereadScope:
    """Which tables get rows. `quarantined` are the rows in quarantine now, where only some tables are read again."""

    tables: frozenset[str]
    whole: bool
    quarantined: Positions = field(default_factory=dict)


@dataclass(slots=True)
class Reread:
    """What a pass did: files by table, and by `seq` the keys of objects that could not be read."""

    files: dict[str, list[WrittenFile]] = field(default_factory=dict)
    gone: dict[int, str] = field(default_factory=dict)
    released: set[tuple[int, int]] = field(default_factory=set)
    not_fitting: int = 0
    kept_in_quarantine: int = 0
    failure: str = ""

    def add(self, other: Reread) -> None:
        """Take in what another task did."""
        for table, files in other.files.items():
            self.files.setdefault(table, []).extend(files)
        self.gone |= other.gone
        self.released |= other.released
        self.not_fitting += other.not_fitting
        self.kept_in_quarantine += other.kept_in_quarantine
        self.failure = self.failure or other.failure


class Rereader:
    """Reads objects again within one task. Used by one thread."""

    def __init__(
        self, spec: PipelineSpec, scope: RereadScope, opener: Opener, *, evolved: Evolved | None = None
    ) -> None:
        self._parser = Parser(spec, evolved=evolved)
        self._fingerprint = spec.fingerprint()
        self._scope = scope
        self._opener = opener
        self.did = Reread()

    def rows(self, objects: Iterable[SourceObject]) -> Iterator[tuple[str, pa.Table]]:
        """The rows of the selected tables, in parts; objects that cannot be read are noted and left out."""
        for (batch_id, at_us), group in groupby(objects, lambda source: (source.batch_id, source.ingested_at_us)):
            stamp = BatchStamp(batch_id, at_us, self._fingerprint)
            plain: list[SourceObject] = []
            for source in group:
                if source.seq in self._scope.quarantined:
                    yield from self._beside_quarantine(source, stamp)
                else:
                    plain.append(source)
            for table, rows in self._parser.parse(self._payloads(plain), stamp):
                if table in self._scope.tables:
                    yield table, rows
                elif table == QUARANTINE:
                    self.did.not_fitting += rows.num_rows

    def _payloads(self, objects: Iterable[SourceObject]) -> Iterator[Payload]:
        for source in objects:
            payload = self._opener(
                FileReference(source.seq, source.key, source.etag, source.version_id, source.arrived_at_us)
            )
            if payload.data is None:
                self.did.gone[source.seq] = source.key
            else:
                yield payload

    def _beside_quarantine(self, source: SourceObject, stamp: BatchStamp) -> Iterator[tuple[str, pa.Table]]:
        """An object with rows in quarantine, read whole: the tables they belong to now decide what becomes of them."""
        parsed = list(self._parser.parse(self._payloads([source]), stamp))
        before = self._scope.quarantined[source.seq]
        places: dict[int, set[str]] = {}
        for table, rows in parsed:
            for position in rows.column("_position").to_pylist():
                places.setdefault(position, set()).add(table)
        fitting = {position for position in before if places.get(position) and QUARANTINE not in places[position]}
        released = {position for position in fitting if places[position] <= self._scope.tables}
        staying = pa.array(sorted(fitting - released), pa.int64())
        self.did.released |= {(source.seq, position) for position in released}
        self.did.kept_in_quarantine += len(staying)
        self.did.not_fitting += sum(QUARANTINE in tables for at, tables in places.items() if at not in before)
        for table, rows in parsed:
            if table in self._scope.tables:
                kept = rows.filter(pc.invert(pc.is_in(rows.column("_position"), value_set=staying)))
                if kept.num_rows:
                    yield table, kept


def reread(
    spark: SparkSession,
    objects: Sequence[SourceObject],
    *,
    opener: Opener,
    spec: PipelineSpec,
    scope: RereadScope,
    target: FileTarget,
    evolved: Evolved | None = None,
) -> Reread:
    """Read the objects again in one Spark pass and stage the rows of the selected tables.

    Raises:
        ContractError: REPROCESS_STOPPED, the data is such that the pipeline declares to stop.
    """
    slices = balanced(
        objects,
        [max(1, source.size) for source in objects],
        max(1, sum(source.size for source in objects) // TASK_BYTES + 1),
    )
    declared = spec.model_dump_json()
    shares = [
        (
            share,
            RereadScope(
                scope.tables,
                scope.whole,
                {o.seq: scope.quarantined[o.seq] for o in share if o.seq in scope.quarantined},
            ),
        )
        for share in slices
    ]

    def work(parts: Iterable[tuple[list[SourceObject], RereadScope]]) -> Iterator[dict[str, Any]]:
        pipeline = PipelineSpec.model_validate_json(declared)
        for share, own in parts:
            yield asdict(_staged(share, Rereader(pipeline, own, opener, evolved=evolved), target))

    did = Reread()
    for record in spark.sparkContext.parallelize(shares, len(shares)).mapPartitions(work).collect():
        files = {table: [WrittenFile(**file) for file in files] for table, files in record.pop("files").items()}
        did.add(Reread(files=files, **record))
    if did.failure:
        raise ContractError(
            "REPROCESS_STOPPED",
            f"The data is such that {spec.pipeline!r} declares to stop: {did.failure}",
            hint="Change the rule or the declaration, or leave the object out.",
        )
    return did


def _staged(share: Sequence[SourceObject], rereader: Rereader, target: FileTarget) -> Reread:
    """The work of one task."""
    writers = TableWriters(target)
    try:
        for table, rows in rereader.rows(share):
            writers.add(table, rows)
    except ContractError as error:
        # Returned, not raised: Spark would only try the task again.
        rereader.did.failure = str(error)
        return rereader.did
    writers.flush()
    for table, file in writers.files:
        rereader.did.files.setdefault(table, []).append(file)
    return rereader.did
