"""The control records and table keys of one pipeline.

Opens nothing until it is used. Tables are keys here; `deltaworks.tables.lake.Lake` opens them.

Readers can claim a table version, so that VACUUM keeps its files. Streams of this project need no claims, because their
positions are known. Other readers do: a training job on a pinned version, a long export, an external reader of the
change feed. A claim expires and is renewed by repeating it, so a vanished reader pins nothing for ever.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from pydantic import ConfigDict

from deltaworks.control import paths
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.provenance import current_run
from deltaworks.control.records.generations import GenerationStore, Rollbacks, StartOvers
from deltaworks.control.records.held_tables import HeldTableRecords
from deltaworks.control.records.mutation import MutationBatches
from deltaworks.control.records.prepared import PreparedBatches, PreparedReplays
from deltaworks.control.records.reprocess import ReprocessRecords
from deltaworks.control.records.store import Record, RecordKind, RecordStore
from deltaworks.errors import ConfigError
from deltaworks.specs.base import NAME_PATTERN
from deltaworks.specs.storage import StorageSpec

if TYPE_CHECKING:
    from deltaworks.control.records.approval import Approvals
    from deltaworks.control.records.model import ModelRuns
    from deltaworks.control.records.specs import SpecRecords


MAX_PIN_HOURS = 30 * 24


class ReaderRecord(Record):
    """A claim: the reader needs `version` of the table, and later ones, until `until`."""

    model_config = ConfigDict(extra="ignore")
    kind: ClassVar[RecordKind] = RecordKind(
        noun="claim of a reader",
        unreadable_condition="READER_UNREADABLE",
        hint="The pinned version is unknown. Repeat the claim with `deltaworks tables pin`, or delete the object "
        "if its reader no longer exists.",
        error=ConfigError,
    )

    reader: str
    table: str
    version: int
    claimed_at: str
    until: str
    by: str

    def is_active_at(self, now: datetime) -> bool:
        """Whether the claim is still valid."""
        until = parse_iso(self.until)
        return until is not None and now < until


class ReaderClaims:
    """The claims on the tables of one pipeline."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline
        self._records = RecordStore(objects, ReaderRecord)

    def pin(self, table: str, *, reader: str, version: int, hours: float) -> ReaderRecord:
        """Claims a table version for `hours`, or renews the claim. Does not restore deleted files.

        Raises:
            ConfigError: READER_INVALID.
        """
        if not NAME_PATTERN.match(reader) or version < 0 or not 0 < hours <= MAX_PIN_HOURS:
            raise ConfigError(
                "READER_INVALID",
                f"{reader!r} cannot pin version {version} of {self._pipeline}.{table} for {hours:g} h.",
                hint=f"Use lower-case letters, digits and underscores, and at most {MAX_PIN_HOURS} h.",
            )
        now = utc_now()
        record = ReaderRecord(
            reader=reader,
            table=table,
            version=version,
            claimed_at=now.isoformat(timespec="milliseconds"),
            until=(now + timedelta(hours=hours)).isoformat(timespec="milliseconds"),
            by=current_run(),
        )
        self._objects.put(paths.reader_record(self._pipeline, table, reader), record.encode())
        return record

    def unpin(self, table: str, *, reader: str) -> bool:
        """Deletes a claim; returns False if there was none."""
        key = paths.reader_record(self._pipeline, table, reader)
        if self._objects.get(key) is None:
            return False
        self._objects.delete(key)
        return True

    def read(self) -> list[ReaderRecord]:
        """Reads all claims on the pipeline's tables, expired ones included.

        Raises:
            ConfigError: READER_UNREADABLE: the pinned version is unknown.
        """
        claims = (self._records.read(key) for key in self._objects.list(paths.reader_records(self._pipeline)))
        return [claim for claim in claims if claim is not None]


class PipelineHome:
    """Keys and records of one pipeline. Cheap to create and thread-safe."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self.objects = objects
        self.pipeline = pipeline

    @classmethod
    def open(cls, storage: StorageSpec, pipeline: str) -> PipelineHome:
        """Opens the records of a pipeline in the given storage."""
        return cls(open_objects(storage), pipeline)

    @cached_property
    def prepared(self) -> PreparedBatches:
        """Prepared batches: the files of each batch, fixed before the first commit."""
        return PreparedBatches(self.objects, self.pipeline)

    @cached_property
    def replays(self) -> PreparedReplays:
        """Prepared replays of quarantined rows, fixed before the first commit."""
        return PreparedReplays(self.objects, self.pipeline)

    @cached_property
    def generations(self) -> GenerationStore:
        """The generation and the Spark checkpoints of the ingest query."""
        return GenerationStore(self.objects, self.pipeline)

    @cached_property
    def start_overs(self) -> StartOvers:
        """Start-over records, one for each generation after the first."""
        return StartOvers(self.objects, self.pipeline)

    @cached_property
    def rollbacks(self) -> Rollbacks:
        """Restores of single tables."""
        return Rollbacks(self.objects, self.pipeline)

    @cached_property
    def mutations(self) -> MutationBatches:
        """Batches of updates and deletes."""
        return MutationBatches(self.objects, self.pipeline)

    @cached_property
    def approvals(self) -> Approvals:
        """Approvals of operations. Imported lazily: only operations use them."""
        from deltaworks.control.records.approval import Approvals

        return Approvals(self.objects, self.pipeline)

    @cached_property
    def models(self) -> ModelRuns:
        """Training runs of models. Imported lazily: only training and gold builds use them."""
        from deltaworks.control.records.model import ModelRuns

        return ModelRuns(self.objects, self.pipeline)

    @cached_property
    def held(self) -> HeldTableRecords:
        """Tables whose commits are held back, and requests to resume them."""
        return HeldTableRecords(self.objects, self.pipeline)

    @cached_property
    def readers(self) -> ReaderClaims:
        """Claims of readers that pin versions of tables."""
        return ReaderClaims(self.objects, self.pipeline)

    @cached_property
    def specs(self) -> SpecRecords:
        """Specs that the stream has run with. Imported lazily: the module imports all of `deltaworks.specs`."""
        from deltaworks.control.records.specs import SpecRecords

        return SpecRecords(self.objects, self.pipeline)

    def reprocess(self, reprocess_id: str) -> ReprocessRecords:
        """Returns the records of one reprocess.

        Raises:
            ConfigError: REPROCESS_ID_INVALID.
        """
        return ReprocessRecords(self.objects, self.pipeline, reprocess_id)

    def table(self, name: str) -> str:
        """Returns the key of a bronze, live, gold or quarantine table."""
        return paths.table(self.pipeline, name)

    def control(self, name: str = "") -> str:
        """Returns the key of the control folder, or of one table or object in it."""
        return paths.pipeline_control(self.pipeline, name)
