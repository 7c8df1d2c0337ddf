"""Records of mutation batches: the covered version ranges, fixed before any write, and the result.

Batch numbers of a pipeline have no gaps. Batch n + 1 is created only after batch n is complete, by whichever process is
first. A crashed batch is completed within its recorded ranges. The format is documented in reference/formats.md.
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
#: Records of this many batches are kept: ten weeks at one every ten minutes.
MAX_RECORDED_BATCHES = 10_000
#: Outcomes: the batch was applied, or its tables were recreated first.
APPLIED, SUPERSEDED = "applied", "superseded"


class VersionRange(RecordPart):
    """Table versions greater than `after`, up to and including `up_to`; with `after` = -1 from the first version on.

    The id `table_id` distinguishes the table from one that replaces it.
    """

    table: str
    table_id: str
    after: int
    up_to: int

    @property
    def is_empty(self) -> bool:
        """Whether the range has no versions."""
        return self.after >= self.up_to


class MutationBatch(Record):
    """A mutation batch. With `organisation` it covers only requests of that one, and does not limit later batches.

    With `everything` the results of earlier batches are not trusted, and every interval is compared with the rows.
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
    """Result of a batch for one table. For `pause_seconds` the stream could not write it.

    The merge was done by `engine`: `spark`, `delta_rs`, or empty if nothing was merged.
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
    """The result of a batch. Requests are counted by operation; `seconds` are by phase.

    The requests were resolved by `engine`: `process`, `spark`, or empty if nothing was applied.
    Update values that do not match the column's type are counted as `invalid_values`; those rows keep their values.
    """

    kind: ClassVar[RecordKind] = _KIND

    pipeline: str
    number: int
    generation: int
    outcome: str
    at: str
    engine: str = ""
    requests: dict[str, int] = Field(default_factory=dict)
    invalid_requests: int = 0
    invalid_values: int = 0
    tables: tuple[TableMutation, ...] = ()
    seconds: dict[str, float] = Field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of changed rows."""
        return sum(table.rows for table in self.tables)

    @property
    def pause_seconds(self) -> float:
        """The longest time that the stream could not write a table."""
        return max((table.pause_seconds for table in self.tables), default=0.0)


class MutationBatches:
    """The mutation batches of one pipeline."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline
        self._records = RecordStore(objects, MutationBatch)
        self._ends = RecordStore(objects, MutationCompletion)

    def numbers(self) -> tuple[int, int]:
        """Returns the numbers of the newest created and the newest completed batch, each 0 if there is none. One
        listing.
        """
        fixed = ended = 0
        folder = paths.mutations(self._pipeline) + "/"
        for key in self._objects.list(folder):
            number, _, extension = key.removeprefix(folder).partition(".")
            if not number.isdigit():
                continue
            if extension == "json":
                fixed = max(fixed, int(number))
            elif extension == "done.json":
                ended = max(ended, int(number))
        return fixed, ended

    def batch(self, number: int) -> MutationBatch | None:
        """Reads a batch; None if it does not exist.

        Raises:
            ContractError: MUTATION_BATCH_UNREADABLE.
        """
        return self._records.read(paths.mutation_batch(self._pipeline, number))

    def completion(self, number: int) -> MutationCompletion | None:
        """Reads the result of a batch; None before it is complete.

        Raises:
            ContractError: MUTATION_BATCH_UNREADABLE.
        """
        return self._ends.read(paths.mutation_completion(self._pipeline, number))

    def get_or_create(self, batch: MutationBatch) -> MutationBatch:
        """Creates a batch unless its number exists; returns the stored one. Idempotent.

        Raises:
            ContractError: MUTATION_BATCH_UNREADABLE.
        """
        return self._records.get_or_create(paths.mutation_batch(self._pipeline, batch.number), batch)

    def complete(self, end: MutationCompletion) -> None:
        """Records the result of a batch. The first result wins."""
        self._ends.create(paths.mutation_completion(self._pipeline, end.number), end)

    def delete_old_records(self, *, keep: int = MAX_RECORDED_BATCHES) -> int:
        """Deletes the records of all but the newest `keep` batches; returns the number of objects. One listing."""
        _, ended = self.numbers()
        folder, removed = paths.mutations(self._pipeline) + "/", 0
        for key in self._objects.list(folder):
            number, _, _ = key.removeprefix(folder).partition(".")
            if number.isdigit() and int(number) <= ended - keep:
                self._objects.delete(key)
                removed += 1
        return removed

    def last_full_batch(self) -> MutationBatch | None:
        """Returns the newest batch applied to all organisations, after which the next one starts.

        Batches of one organisation are run manually, so only few are read.
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
        """Returns the newest batch completed by this ISO time; 0 if none. Reads a few objects."""
        low, (_, high) = 0, self.numbers()
        while low < high:
            middle = (low + high + 1) // 2
            end = self.completion(middle)
            # A deleted record is older than all existing ones.
            low, high = (middle, high) if end is None or end.at <= at else (low, middle - 1)
        return low
