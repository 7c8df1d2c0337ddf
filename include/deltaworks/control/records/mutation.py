"""The record of a mutation batch: what it covers, fixed before anything is written, and its end with what it did.

Batches of a pipeline have numbers without gaps. Batch n + 1 is fixed only after batch n has ended, by one of any number
of processes: whoever creates its object. A batch that died is completed within the bounds it was begun with. The format
is versioned and documented in docs/formats.md.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import decode_record
from deltaworks.errors import ContractError

FORMAT = 1
#: Records of as many batches are kept: ten weeks of one every ten minutes.
KEPT_BATCHES = 10_000
#: How a batch ended: it was applied, or its tables were made anew before it was.
APPLIED, SUPERSEDED = "applied", "superseded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What came to a table: versions after `after` and up to `up_to`; -1 means from its birth on.

    `table_id` tells the table from another one that takes its place.
    """

    table: str
    table_id: str
    after: int
    up_to: int

    @property
    def empty(self) -> bool:
        """Whether nothing came."""
        return self.after >= self.up_to


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationBatch:
    """A mutation batch, fixed. With an `organisation` it covers requests of that one alone, and bounds no later one.

    `everything` says that what was applied before is not relied on: every interval is compared with the rows.
    """

    pipeline: str
    number: int
    generation: int
    requests: Span
    tables: tuple[Span, ...]
    run: str
    at: str
    spec_fingerprint: str
    code_version: str
    organisation: str | None = None
    everything: bool = False
    format: int = FORMAT

    def encode(self) -> bytes:
        """The object's bytes."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes, *, key: str) -> MutationBatch:
        """Read the object.

        Raises:
            ContractError: MUTATION_BATCH_UNREADABLE for a torn object or a format of a later release.
        """

        def make(record: dict[str, Any]) -> MutationBatch:
            spans = tuple(Span(**each) for each in record["tables"])
            return cls(**{**record, "requests": Span(**record["requests"]), "tables": spans})

        return decode_record(data, make, expected=FORMAT, unreadable=partial(_unreadable, key))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMutation:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationEnd:
    """The end of a batch. `requests` counts those of its span by operation; `seconds` are by phase.

    `values_not_fitting` are values of updates that are none of the column's type; rows keep what arrived.
    """

    pipeline: str
    number: int
    generation: int
    outcome: str
    at: str
    requests: dict[str, int] = field(default_factory=dict)
    not_understood: int = 0
    values_not_fitting: int = 0
    tables: tuple[TableMutation, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def rows(self) -> int:
        """Rows of mutable tables that were changed."""
        return sum(table.rows for table in self.tables)

    @property
    def pause_seconds(self) -> float:
        """The longest time the stream could not write one of the tables."""
        return max((table.pause_seconds for table in self.tables), default=0.0)

    def encode(self) -> bytes:
        """The object's bytes."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes, *, key: str) -> MutationEnd:
        """Read the object.

        Raises:
            ContractError: MUTATION_BATCH_UNREADABLE.
        """

        def make(record: dict[str, Any]) -> MutationEnd:
            return cls(**{**record, "tables": tuple(TableMutation(**each) for each in record["tables"])})

        return decode_record(data, make, expected=FORMAT, unreadable=partial(_unreadable, key))


class MutationBatches:
    """The batches of one pipeline, as objects."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline

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
        """What a batch covers; None where there is none of this number."""
        key = paths.mutation_batch(self._pipeline, number)
        found = self._objects.get(key)
        return MutationBatch.decode(found.data, key=key) if found else None

    def end(self, number: int) -> MutationEnd | None:
        """How a batch ended; None while it has not."""
        key = paths.mutation_end(self._pipeline, number)
        found = self._objects.get(key)
        return MutationEnd.decode(found.data, key=key) if found else None

    def fix(self, batch: MutationBatch) -> MutationBatch:
        """Fix a batch; returns what is fixed, which is another process's where that one was first."""
        key = paths.mutation_batch(batch.pipeline, batch.number)
        self._objects.put_if_absent(key, batch.encode())
        fixed = self.batch(batch.number)
        if fixed is None:
            raise ContractError(
                "MUTATION_BATCH_UNREADABLE", f"{key} was deleted meanwhile.", hint="Run the mutation batch again."
            )
        return fixed

    def complete(self, end: MutationEnd) -> None:
        """Note how a batch ended. The first note stays."""
        self._objects.put_if_absent(paths.mutation_end(end.pipeline, end.number), end.encode())

    def tidy(self, *, keep: int = KEPT_BATCHES) -> int:
        """Remove the records of batches before the newest `keep`; how many objects that were. One listing."""
        _, ended = self.numbers()
        folder, removed = paths.mutations(self._pipeline) + "/", 0
        for key in self._objects.list(folder):
            number, _, _ = key.removeprefix(folder).partition(".")
            if number.isdigit() and int(number) <= ended - keep:
                self._objects.delete(key)
                removed += 1
        return removed

    def last_whole(self) -> MutationBatch | None:
        """The newest batch that was applied to all organisations: where the next one begins.

        Batches of one organisation come by hand, so that few are looked at.
        """
        _, number = self.numbers()
        while number > 0:
            batch, end = self.batch(number), self.end(number)
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
            end = self.end(middle)
            # One that was tidied away is older than any that is there.
            low, high = (middle, high) if end is None or end.at <= at else (low, middle - 1)
        return low


def _unreadable(key: str, error: Exception) -> ContractError:
    return ContractError(
        "MUTATION_BATCH_UNREADABLE",
        f"{key} is no record of a mutation batch of this release: {error}.",
        hint="Run the release that wrote it, or restore the object from the storage's versions.",
    )
