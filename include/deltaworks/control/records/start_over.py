"""The record of a pipeline that starts over, or rolls back: what it gives up, and what its next generation begins with.

The record is created once, before anything changes, and fixes what is done: whoever continues after a crash does just
that. Until its end is on record, no stream, replay or reprocess of the pipeline begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import ConfigDict

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordPart, RecordStore, UnversionedRecord
from deltaworks.errors import ContractError

_KIND = RecordKind(
    noun="record of a start over",
    unreadable_condition="START_OVER_UNREADABLE",
    hint="Restore it from the storage's versions, or run the release that wrote it.",
)


class TableLoss(RecordPart):
    """A table as it was before: `version` is where time travel finds its rows.

    `restore_to` is the version a rollback brings it back to; None where the table is recreated without rows. `rows`,
    `files` and `bytes` count what goes: what `version` has and the other version has not.
    """

    table: str
    version: int
    rows: int
    files: int
    bytes: int
    restore_to: int | None = None


class StartOver(Record):
    """A start over, fixed. Batches of the new generation are numbered from `first_batch` on, after those before.

    `to_batch` is the last batch that stays, where a pipeline is rolled back; None where all are given up.
    """

    kind: ClassVar[RecordKind] = _KIND
    indent: ClassVar[int | None] = 1

    pipeline: str
    generation: int
    first_batch: int
    start: dict[str, Any] | None
    spec_fingerprint: str
    code_version: str
    tables: tuple[TableLoss, ...]
    by: str
    reason: str
    run: str
    at: str
    to_batch: int | None = None


class StartOverCompletion(UnversionedRecord):
    """The end of a start over: the version as which each table was put back, where it was a rollback."""

    model_config = ConfigDict(extra="ignore")
    kind: ClassVar[RecordKind] = _KIND

    versions: dict[str, int] | None = None


class StartOvers:
    """The start overs of one pipeline, one a generation. Generation 1 has none."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline
        self._records = RecordStore(objects, StartOver)
        self._ends = RecordStore(objects, StartOverCompletion)

    def read(self, generation: int) -> StartOver | None:
        """The record of the start over that began, or is to begin, this generation; None where there is none.

        Raises:
            ContractError: START_OVER_UNREADABLE.
        """
        return self._records.read(paths.start_over(self._pipeline, generation))

    def get_or_create(self, planned: StartOver) -> StartOver:
        """Create the record; returns the one that stands, which is another process's where that one was first.

        Raises:
            ContractError: START_OVER_UNREADABLE, RECORD_VANISHED.
        """
        return self._records.get_or_create(paths.start_over(self._pipeline, planned.generation), planned)

    def record_completion(self, start_over: StartOver, *, versions: Mapping[str, int] | None = None) -> None:
        """Note that all of it is done, and as which version each table was put back. Idempotent."""
        key = paths.start_over_completion(self._pipeline, start_over.generation)
        self._ends.create(key, StartOverCompletion(versions=dict(versions or {})))

    def rollback_versions(self, table: str) -> list[int]:
        """The versions of a table by which rollbacks of its whole pipeline put it back; its rows since land again."""
        generations = range(2, self.newest()[0] + 1)
        ends = (self._ends.read(paths.start_over_completion(self._pipeline, generation)) for generation in generations)
        return [end.versions[table] for end in ends if end is not None and end.versions and table in end.versions]

    def last_surviving_batch(self, generation: int, *, current: int) -> int | None:
        """The last batch of a generation whose rows the tables still have, -1 for none; None while it is the present.

        Args:
            current: the pipeline's present generation.
        """
        bounds = []
        for later in range(generation + 1, current + 1):
            begun = self.read(later)
            bounds.append(-1 if begun is None or begun.to_batch is None else begun.to_batch)
        return min(bounds, default=None)

    def newest(self) -> tuple[int, bool]:
        """The highest generation a start over is on record for, 1 where there is none, and whether that has ended."""
        folder = paths.start_over(self._pipeline, 1).rpartition("/")[0] + "/"
        names = {key.removeprefix(folder) for key in self._objects.list(folder)}
        newest = max((int(name[1:7]) for name in names if name[1:7].isdigit()), default=1)
        end = paths.start_over_completion(self._pipeline, newest).removeprefix(folder)
        return newest, newest == 1 or end in names

    def reject_unfinished(self) -> None:
        """Refuse to begin anything on tables that are half recreated. One listing.

        Raises:
            ContractError: START_OVER_UNFINISHED.
        """
        generation, ended = self.newest()
        if not ended:
            raise ContractError(
                "START_OVER_UNFINISHED",
                f"Pipeline {self._pipeline!r} was to start over in generation {generation}, and was interrupted.",
                hint=f"`deltaworks pipelines start-over {self._pipeline} --no-dry-run` continues with it.",
            )
