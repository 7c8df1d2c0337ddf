"""The record of a rollback: one table, the version it goes back to, and the batches and replays that are lost with it.

A restore does not take transactions back: the table still says that it has every batch since. So this record outranks
them. It is created once, before anything changes, and names what comes back in the same commit, under a transaction of
the rollback's own. Rollbacks of a pipeline have ordinals without gaps; the next one begins when the last has ended.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import decode_record
from deltaworks.errors import ContractError

FORMAT = 1
#: What becomes of rows that landed after the version a table goes back to: the files their batches had written come
#: back in the same commit; their objects are read again after it; or they stay out.
Repair = Literal["prepared", "source", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LostShare:
    """What one batch, or one replay of quarantined rows, had added to the table after that version."""

    kind: Literal["batch", "replay"]
    generation: int
    number: int
    rows: int
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """A rollback, fixed. `from_version` is where time travel finds what goes; `undone` names other changes that go.

    `dropped_files` are paths that are left out although the version has them: they are gone from the storage.
    """

    pipeline: str
    ordinal: int
    table: str
    generation: int
    from_version: int
    to_version: int
    repair: Repair
    lost: tuple[LostShare, ...]
    undone: tuple[str, ...]
    dropped_files: tuple[str, ...]
    by: str
    reason: str
    run: str
    at: str
    code_version: str
    format: int = FORMAT

    @property
    def batches(self) -> tuple[int, ...]:
        """The numbers of the batches among what is lost."""
        return tuple(share.number for share in self.lost if share.kind == "batch")

    def encode(self) -> bytes:
        """The object's bytes."""
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def decode(cls, data: bytes, *, key: str) -> Rollback:
        """Read the object.

        Raises:
            ContractError: ROLLBACK_UNREADABLE for a torn object or a format of a later release.
        """

        def make(record: dict[str, Any]) -> Rollback:
            texts = {name: tuple(record[name]) for name in ("undone", "dropped_files")}
            return cls(**{**record, **texts, "lost": tuple(LostShare(**each) for each in record["lost"])})

        return decode_record(data, make, expected=FORMAT, unreadable=partial(_unreadable, key))


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRows:
    """Rows that were read again for a rollback: their files as `tables.files.WrittenFile` mappings, which its commit
    names; `gone` are keys of objects whose rows are left out.
    """

    rows: int
    files: tuple[dict[str, Any], ...]
    gone: tuple[str, ...]
    format: int = FORMAT

    @classmethod
    def decode(cls, data: bytes, *, key: str) -> StagedRows:
        """Read the object.

        Raises:
            ContractError: ROLLBACK_UNREADABLE.
        """

        def make(record: dict[str, Any]) -> StagedRows:
            return cls(**{**record, "files": tuple(record["files"]), "gone": tuple(record["gone"])})

        return decode_record(data, make, expected=FORMAT, unreadable=partial(_unreadable, key))


def _unreadable(key: str, error: Exception) -> ContractError:
    return ContractError(
        "ROLLBACK_UNREADABLE",
        f"{key} is no record of a rollback this release can read: {error}.",
        hint="Restore it from the storage's versions, or run the release that wrote it.",
    )


class Rollbacks:
    """The rollbacks of one pipeline, oldest first."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline

    def newest(self) -> int:
        """The highest ordinal; 0 before the first. One listing."""
        return max(self._ordinals(), default=0)

    def read(self, ordinal: int) -> Rollback | None:
        """One record, None where there is none."""
        key = paths.rollback(self._pipeline, ordinal)
        found = self._objects.get(key)
        return Rollback.decode(found.data, key=key) if found else None

    def unfinished(self) -> Rollback | None:
        """The one that was begun and has not ended; only the newest can be."""
        newest = self.newest()
        if not newest or self.end(newest) is not None:
            return None
        return self.read(newest)

    def of_table(self, table: str) -> list[tuple[Rollback, dict[str, Any] | None]]:
        """Every rollback of a table with its end, None where it has not ended."""
        records = ((ordinal, self.read(ordinal)) for ordinal in self._ordinals())
        return [(each, self.end(ordinal)) for ordinal, each in records if each is not None and each.table == table]

    def fix(self, planned: Rollback) -> Rollback:
        """Create the record; the one that is there where somebody was first."""
        self._objects.put_if_absent(paths.rollback(self._pipeline, planned.ordinal), planned.encode())
        fixed = self.read(planned.ordinal)
        assert fixed is not None
        return fixed

    def staged(self, ordinal: int) -> StagedRows | None:
        """The rows read again for a rollback; None before they are, or where none are."""
        key = paths.rollback_files(self._pipeline, ordinal)
        found = self._objects.get(key)
        return StagedRows.decode(found.data, key=key) if found else None

    def fix_staged(self, ordinal: int, staged: StagedRows) -> StagedRows:
        """Create the record of them; the one that is there where somebody was first."""
        data = json.dumps(asdict(staged), separators=(",", ":")).encode()
        self._objects.put_if_absent(paths.rollback_files(self._pipeline, ordinal), data)
        fixed = self.staged(ordinal)
        assert fixed is not None
        return fixed

    def end(self, ordinal: int) -> dict[str, Any] | None:
        """What is on record of its end: the `version` it became; None before."""
        found = self._objects.get(paths.rollback_end(self._pipeline, ordinal))
        return None if found is None else dict(json.loads(found.data))

    def fix_end(self, done: Rollback, *, version: int) -> None:
        """Note that all of it is done. Idempotent."""
        key = paths.rollback_end(self._pipeline, done.ordinal)
        self._objects.put_if_absent(key, json.dumps({"version": version}).encode())

    def _ordinals(self) -> list[int]:
        folder = paths.rollback(self._pipeline, 1).rpartition("/")[0] + "/"
        names = {key.removeprefix(folder).partition(".")[0] for key in self._objects.list(folder)}
        return sorted(int(name) for name in names if name.isdigit())


def refuse_unfinished_rollback(objects: ObjectStore, pipeline: str) -> None:
    """Refuse what must not come between the parts of a rollback. One listing.

    Raises:
        ContractError: ROLLBACK_UNFINISHED.
    """
    unfinished = Rollbacks(objects, pipeline).unfinished()
    if unfinished is not None:
        raise ContractError(
            "ROLLBACK_UNFINISHED",
            f"A rollback of {pipeline}.{unfinished.table} was broken off.",
            hint=f"`deltaworks restore {pipeline} {unfinished.table} --no-dry-run` goes on with it.",
        )
