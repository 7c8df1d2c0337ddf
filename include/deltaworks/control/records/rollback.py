"""The record of a rollback: one table, the version it goes back to, and the batches and replays that are lost with it.

A restore does not take transactions back: the table still says that it has every batch since. So this record outranks
them. It is created once, before anything changes, and names what comes back in the same commit, under a transaction of
the rollback's own. Rollbacks of a pipeline have ordinals without gaps; the next one begins when the last has ended.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordPart, RecordStore, UnversionedRecord
from deltaworks.errors import ContractError

_KIND = RecordKind(
    noun="record of a rollback",
    unreadable_condition="ROLLBACK_UNREADABLE",
    hint="Restore it from the storage's versions, or run the release that wrote it.",
)
#: What becomes of rows that landed after the version a table goes back to: the files their batches had written come
#: back in the same commit; their objects are read again after it; or they stay out.
RowSource = Literal["prepared", "source", "none"]


class LostCommit(RecordPart):
    """What one batch, or one replay of quarantined rows, had added to the table after that version."""

    kind: Literal["batch", "replay"]
    generation: int
    number: int
    rows: int
    files: int


class Rollback(Record):
    """A rollback, fixed. `from_version` is where time travel finds what goes; `undone` names other changes that go.

    `dropped_files` are paths that are left out although the version has them: they are gone from the storage. With
    `reapply` it has not ended before rows of erased people, which old files bring back, are out again.
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
    reapply_erasures: bool = Field(default=False, exclude_if=lambda value: not value)

    @property
    def batches(self) -> tuple[int, ...]:
        """The numbers of the batches among what is lost."""
        return tuple(share.number for share in self.lost if share.kind == "batch")


class StagedRows(Record):
    """Rows that were read again for a rollback: their files as `tables.files.WrittenFile` mappings, which its commit
    names; `gone` are keys of objects whose rows are left out.
    """

    kind: ClassVar[RecordKind] = _KIND

    rows: int
    files: tuple[dict[str, Any], ...]
    missing: tuple[str, ...]


class RollbackCompletion(UnversionedRecord):
    """The end of a rollback: the version of the table that it became."""

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
        """The highest ordinal; 0 before the first. One listing."""
        return max(self._ordinals(), default=0)

    def read(self, ordinal: int) -> Rollback | None:
        """One record, None where there is none.

        Raises:
            ContractError: ROLLBACK_UNREADABLE.
        """
        return self._records.read(paths.rollback(self._pipeline, ordinal))

    def unfinished(self) -> Rollback | None:
        """The one that was begun and has not ended; only the newest can be."""
        newest = self.newest()
        if not newest or self.completion(newest) is not None:
            return None
        return self.read(newest)

    def table_rollbacks(self, table: str) -> list[tuple[Rollback, RollbackCompletion | None]]:
        """Every rollback of a table with its end, None where it has not ended."""
        records = ((ordinal, self.read(ordinal)) for ordinal in self._ordinals())
        return [
            (record, self.completion(ordinal))
            for ordinal, record in records
            if record is not None and record.table == table
        ]

    def get_or_create(self, planned: Rollback) -> Rollback:
        """Create the record; returns the one that stands, which is another process's where that one was first.

        Raises:
            ContractError: ROLLBACK_UNREADABLE, RECORD_VANISHED.
        """
        return self._records.get_or_create(paths.rollback(self._pipeline, planned.ordinal), planned)

    def staged(self, ordinal: int) -> StagedRows | None:
        """The rows read again for a rollback; None before they are, or where none are."""
        return self._staged.read(paths.rollback_files(self._pipeline, ordinal))

    def get_or_create_staged(self, ordinal: int, staged: StagedRows) -> StagedRows:
        """Create the record of them; returns the one that stands.

        Raises:
            ContractError: ROLLBACK_UNREADABLE, RECORD_VANISHED.
        """
        return self._staged.get_or_create(paths.rollback_files(self._pipeline, ordinal), staged)

    def completion(self, ordinal: int) -> RollbackCompletion | None:
        """The end of a rollback; None before."""
        return self._ends.read(paths.rollback_completion(self._pipeline, ordinal))

    def record_completion(self, rollback: Rollback, *, version: int) -> None:
        """Note that all of it is done, and the version it became. Idempotent."""
        self._ends.create(
            paths.rollback_completion(self._pipeline, rollback.ordinal), RollbackCompletion(version=version)
        )

    def reject_unfinished(self) -> None:
        """Refuse what must not come between the parts of a rollback. One listing.

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
