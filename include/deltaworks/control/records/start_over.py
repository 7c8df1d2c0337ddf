"""Records of start-overs and pipeline rollbacks: the rows given up, and the start of the next generation.

The record is created before anything changes and fixes all actions, so a restart after a crash does the same. Until it
is complete, no stream, replay or reprocess of the pipeline starts.
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
    """One table before a start-over. Its rows stay readable by time travel to `version`.

    A rollback restores the table to `restore_to`; with None the table is recreated empty. The content of `version` that
    is lost is counted by `rows`, `files` and `bytes`.
    """

    table: str
    version: int
    rows: int
    files: int
    bytes: int
    restore_to: int | None = None


class StartOver(Record):
    """A start-over. Batches of the new generation are numbered from `first_batch` on, after all earlier ones.

    `to_batch` is the last batch that a rollback keeps; None if all are given up.
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
    """The completion of a start-over; for a rollback with the version each table was restored as."""

    model_config = ConfigDict(extra="ignore")
    kind: ClassVar[RecordKind] = _KIND

    versions: dict[str, int] | None = None


class StartOvers:
    """The start-overs of one pipeline, one per generation. Generation 1 has none."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline
        self._records = RecordStore(objects, StartOver)
        self._ends = RecordStore(objects, StartOverCompletion)

    def read(self, generation: int) -> StartOver | None:
        """Reads the start-over that begins this generation; None if there is none.

        Raises:
            ContractError: START_OVER_UNREADABLE.
        """
        return self._records.read(paths.start_over(self._pipeline, generation))

    def get_or_create(self, planned: StartOver) -> StartOver:
        """Creates the record unless it exists; returns the stored one.

        Raises:
            ContractError: START_OVER_UNREADABLE, RECORD_VANISHED.
        """
        return self._records.get_or_create(paths.start_over(self._pipeline, planned.generation), planned)

    def record_completion(self, start_over: StartOver, *, versions: Mapping[str, int] | None = None) -> None:
        """Records the completion, and the version each table was restored as. Idempotent."""
        key = paths.start_over_completion(self._pipeline, start_over.generation)
        self._ends.create(key, StartOverCompletion(versions=dict(versions or {})))

    def rollback_versions(self, table: str) -> list[int]:
        """Returns the versions to which pipeline rollbacks restored a table. Rows of later versions are written
        again."""
        generations = range(2, self.newest()[0] + 1)
        ends = (self._ends.read(paths.start_over_completion(self._pipeline, generation)) for generation in generations)
        return [end.versions[table] for end in ends if end is not None and end.versions and table in end.versions]

    def last_surviving_batch(self, generation: int, *, current: int) -> int | None:
        """Returns the last batch of a generation whose rows the tables still have: -1 for none, None for the current
        generation.

        Args:
            current: the pipeline's current generation.
        """
        bounds = []
        for later_generation in range(generation + 1, current + 1):
            start_over = self.read(later_generation)
            bounds.append(-1 if start_over is None or start_over.to_batch is None else start_over.to_batch)
        return min(bounds, default=None)

    def newest(self) -> tuple[int, bool]:
        """Returns the highest generation with a start-over (1 if there is none), and whether it is complete."""
        folder = paths.start_over(self._pipeline, 1).rpartition("/")[0] + "/"
        names = {key.removeprefix(folder) for key in self._objects.list(folder)}
        newest = max((int(name[1:7]) for name in names if name[1:7].isdigit()), default=1)
        end = paths.start_over_completion(self._pipeline, newest).removeprefix(folder)
        return newest, newest == 1 or end in names

    def reject_unfinished(self) -> None:
        """Raises if a start-over is incomplete. One listing.

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
