"""Records of rollbacks: one table, the version it is restored to, and the batches and replays to re-commit.

A restore does not revert transactions: the table's log still contains every later batch, so the log cannot tell which
rows are missing. The record does, and takes precedence. It is created before anything changes. The rows that return are
part of the restore's commit, under a transaction of the rollback. Rollbacks of a pipeline have ordinals without gaps;
the next one begins after the last is complete.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import ConfigDict

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordPart, RecordStore, UnversionedRecord
from deltaworks.errors import ContractError

_KIND = RecordKind(
    noun="record of a rollback",
    unreadable_condition="ROLLBACK_UNREADABLE",
    hint="Restore it from the storage's versions, or run the release that wrote it.",
)
#: Rows committed after the restored version: re-commit their prepared files in the same commit, re-read their input
#: afterwards, or leave them out.
RowSource = Literal["prepared", "source", "none"]


class LostCommit(RecordPart):
    """Rows that one batch or replay added after the restored version."""

    kind: Literal["batch", "replay"]
    generation: int
    number: int
    rows: int
    files: int


class Rollback(Record):
    """A rollback of one table.

    Removed rows are still in `from_version` for time travel; `undone_changes` lists other reverted changes. Files of
    the restored version that are missing from the storage are `dropped_files`. With `reapply_erasures` the rollback is
    complete only after rows of erased people, which old files bring back, are deleted again.
    """

    kind: ClassVar[RecordKind] = _KIND
    indent: ClassVar[int | None] = 1

    pipeline: str
    ordinal: int
    table: str
    generation: int
    from_version: int
    to_version: int
    row_source: RowSource
    lost: tuple[LostCommit, ...]
    undone_changes: tuple[str, ...]
    dropped_files: tuple[str, ...]
    by: str
    reason: str
    run: str
    at: str
    code_version: str
    reapply_erasures: bool = False

    @property
    def batches(self) -> tuple[int, ...]:
        """The numbers of the lost batches."""
        return tuple(share.number for share in self.lost if share.kind == "batch")


class StagedRows(Record):
    """Rows re-read for a rollback: files as `tables.files.WrittenFile` mappings, for its commit; `missing` are object
    keys whose rows are left out.
    """

    kind: ClassVar[RecordKind] = _KIND

    rows: int
    files: tuple[dict[str, Any], ...]
    missing: tuple[str, ...]


class RollbackCompletion(UnversionedRecord):
    """The completion of a rollback: the table version it committed."""

    model_config = ConfigDict(extra="ignore")
    kind: ClassVar[RecordKind] = _KIND

    version: int


class Rollbacks:
    """The rollbacks of one pipeline, oldest first."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline
        self._records = RecordStore(objects, Rollback)
        self._staged = RecordStore(objects, StagedRows)
        self._ends = RecordStore(objects, RollbackCompletion)

    def newest(self) -> int:
        """Returns the highest ordinal; 0 before the first. One listing."""
        return max(self._ordinals(), default=0)

    def read(self, ordinal: int) -> Rollback | None:
        """Reads one record; None if it does not exist.

        Raises:
            ContractError: ROLLBACK_UNREADABLE.
        """
        return self._records.read(paths.rollback(self._pipeline, ordinal))

    def unfinished(self) -> Rollback | None:
        """Returns the incomplete rollback; only the newest can be."""
        newest = self.newest()
        if not newest or self.completion(newest) is not None:
            return None
        return self.read(newest)

    def table_rollbacks(self, table: str) -> list[tuple[Rollback, RollbackCompletion | None]]:
        """Returns every rollback of a table with its completion, None if incomplete."""
        records = ((ordinal, self.read(ordinal)) for ordinal in self._ordinals())
        return [
            (record, self.completion(ordinal))
            for ordinal, record in records
            if record is not None and record.table == table
        ]

    def get_or_create(self, planned: Rollback) -> Rollback:
        """Creates the record unless it exists; returns the stored one.

        Raises:
            ContractError: ROLLBACK_UNREADABLE, RECORD_VANISHED.
        """
        return self._records.get_or_create(paths.rollback(self._pipeline, planned.ordinal), planned)

    def staged(self, ordinal: int) -> StagedRows | None:
        """Reads the re-read rows of a rollback; None if there are none yet."""
        return self._staged.read(paths.rollback_files(self._pipeline, ordinal))

    def get_or_create_staged(self, ordinal: int, staged: StagedRows) -> StagedRows:
        """Creates the record of re-read rows unless it exists; returns the stored one.

        Raises:
            ContractError: ROLLBACK_UNREADABLE, RECORD_VANISHED.
        """
        return self._staged.get_or_create(paths.rollback_files(self._pipeline, ordinal), staged)

    def completion(self, ordinal: int) -> RollbackCompletion | None:
        """Reads the completion of a rollback; None if it is not complete."""
        return self._ends.read(paths.rollback_completion(self._pipeline, ordinal))

    def record_completion(self, rollback: Rollback, *, version: int) -> None:
        """Records the completion and the committed version. Idempotent."""
        self._ends.create(
            paths.rollback_completion(self._pipeline, rollback.ordinal), RollbackCompletion(version=version)
        )

    def reject_unfinished(self) -> None:
        """Raises if a rollback is incomplete. One listing.

        Raises:
            ContractError: ROLLBACK_UNFINISHED.
        """
        unfinished = self.unfinished()
        if unfinished is not None:
            raise ContractError(
                "ROLLBACK_UNFINISHED",
                f"A rollback of {self._pipeline}.{unfinished.table} was interrupted.",
                hint=f"`deltaworks restore {self._pipeline} {unfinished.table} --no-dry-run` continues with it.",
            )

    def _ordinals(self) -> list[int]:
        folder = paths.rollback(self._pipeline, 1).rpartition("/")[0] + "/"
        names = {key.removeprefix(folder).partition(".")[0] for key in self._objects.list(folder)}
        return sorted(int(name) for name in names if name.isdigit())
