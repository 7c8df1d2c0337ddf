"""The record of a mutation batch: what it covers, fixed before anything is written, and its end with what it did.

Batches of a pipeline have numbers without gaps. Batch n + 1 is fixed only after batch n has ended, by one of any number
of processes: whoever creates its object. A batch that died is completed within the bounds it was begun with. The format
is versioned and documented in docs/reference/formats.md.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordPart, RecordStore

_KIND = RecordKind(
    noun="record of a mutation batch",
    unreadable_condition="MUTATION_BATCH_UNREADABLE",
    hint="Run the release that wrote it, or restore the object from the storage's versions.",
    vanished_condition="MUTATION_BATCH_UNREADABLE",
    vanished_hint="Run the mutation batch again.",
)
#: Records of as many batches are kept: ten weeks of one every ten minutes.
MAX_RECORDED_BATCHES = 10_000
#: How a batch ended: it was applied, or its tables were recreated before it was.
APPLIED, SUPERSEDED = "applied", "superseded"


class VersionRange(RecordPart):
    """What came to a table: versions after `after` and up to `up_to`; -1 means from its birth on.

    `table_id` tells the table from another one that takes its place.
    """

    table: str
    table_id: str
    after: int
    up_to: int

    @property
    def is_empty(self) -> bool:
        """Whether nothing came."""
        return self.after >= self.up_to


class MutationBatch(Record):
    """A mutation batch, fixed. With an `organisation` it covers requests of that one alone, and bounds no later one.

    `everything` says that what was applied before is not relied on: every interval is compared with the rows.
    """

    kind: ClassVar[RecordKind] = _KIND

    pipeline: str
    number: int
    generation: int
    requests: VersionRange
    tables: tuple[VersionRange, ...]
    run: str
    at: str
    spec_fingerprint: str
    code_version: str
    organisation: str | None = None
    everything: bool = False


class TableMutation(RecordPart):
    """What a batch did to one table. `pause_seconds` is how long the stream could not write it.

    `engine` is who merged: `spark` or `delta_rs`, empty where nothing was.
    """

    table: str
    rows: int
    files_removed: int
    files_added: int
    version: int
    attempts: int = 1
    pause_seconds: float = 0.0
    optimized: bool = False
    engine: str = ""


class MutationCompletion(Record):
    """The end of a batch. `requests` counts those of its span by operation; `seconds` are by phase.

    `values_not_fitting` are values of updates that are none of the column's type; rows keep what arrived.
    """

    kind: ClassVar[RecordKind] = _KIND

    pipeline: str
    number: int
    generation: int
    outcome: str
    at: str
    requests: dict[str, int] = Field(default_factory=dict)
    invalid_requests: int = 0
    invalid_values: int = 0
    tables: tuple[TableMutation, ...] = ()
    seconds: dict[str, float] = Field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows of mutable tables that were changed."""
        return sum(table.rows for table in self.tables)

    @property
    def pause_seconds(self) -> float:
        """The longest time the stream could not write one of the tables."""
        return max((table.pause_seconds for table in self.tables), default=0.0)


class MutationBatches:
    """The batches of one pipeline, as objects."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline
        self._records = RecordStore(objects, MutationBatch)
        self._ends = RecordStore(objects, MutationCompletion)

    def numbers(self) -> tuple[int, int]:
        """The newest batch that was fixed and the newest that has ended; 0 before the first. One listing."""
        fixed = ended = 0
        folder = paths.mutations(self._pipeline) + "/"
        for key in self._objects.list(folder):
            number, _, rest = key.removeprefix(folder).partition(".")
            if not number.isdigit():
                continue
            if rest == "json":
                fixed = max(fixed, int(number))
            elif rest == "done.json":
                ended = max(ended, int(number))
        return fixed, ended

    def batch(self, number: int) -> MutationBatch | None:
        """What a batch covers; None where there is none of this number.

        Raises:
            ContractError: MUTATION_BATCH_UNREADABLE.
        """
        return self._records.read(paths.mutation_batch(self._pipeline, number))

    def completion(self, number: int) -> MutationCompletion | None:
        """How a batch ended; None while it has not.

        Raises:
            ContractError: MUTATION_BATCH_UNREADABLE.
        """
        return self._ends.read(paths.mutation_completion(self._pipeline, number))

    def get_or_create(self, batch: MutationBatch) -> MutationBatch:
        """Fix a batch; returns the one that is fixed, which is another process's where that one was first. Idempotent.

        Raises:
            ContractError: MUTATION_BATCH_UNREADABLE.
        """
        return self._records.get_or_create(paths.mutation_batch(self._pipeline, batch.number), batch)

    def complete(self, end: MutationCompletion) -> None:
        """Note how a batch ended. The first note stays."""
        self._ends.create(paths.mutation_completion(self._pipeline, end.number), end)

    def delete_old_records(self, *, keep: int = MAX_RECORDED_BATCHES) -> int:
        """Remove the records of batches before the newest `keep`; how many objects that were. One listing."""
        _, ended = self.numbers()
        folder, removed = paths.mutations(self._pipeline) + "/", 0
        for key in self._objects.list(folder):
            number, _, _ = key.removeprefix(folder).partition(".")
            if number.isdigit() and int(number) <= ended - keep:
                self._objects.delete(key)
                removed += 1
        return removed

    def last_full_batch(self) -> MutationBatch | None:
        """The newest batch that was applied to all organisations: where the next one begins.

        Batches of one organisation come by hand, so that few are looked at.
        """
        _, number = self.numbers()
        while number > 0:
            batch, end = self.batch(number), self.completion(number)
            if batch is None:
                return None
            if batch.organisation is None and end is not None and end.outcome == APPLIED:
                return batch
            number -= 1
        return None

    def newest_ended_before(self, at: str) -> int:
        """The newest batch that had ended at this ISO time; 0 where none had. Reads a few objects."""
        low, (_, high) = 0, self.numbers()
        while low < high:
            middle = (low + high + 1) // 2
            end = self.completion(middle)
            # One that was tidied away is older than any that is there.
            low, high = (middle, high) if end is None or end.at <= at else (low, middle - 1)
        return low
