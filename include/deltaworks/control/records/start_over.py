"""The record of a pipeline that starts over, or rolls back: what it gives up, and what its next generation begins with.

The record is created once, before anything changes, and fixes what is done: whoever goes on after a crash does just
that. Until its end is on record, no stream, replay or reprocess of the pipeline begins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import decode_record
from deltaworks.errors import ContractError

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """A table as it was before: `version` is where time travel finds its rows.

    `restore_to` is the version a rollback brings it back to; None where it is made anew, without rows. What goes is
    counted then: `rows`, `files` and `bytes` that the other version has not.
    """

    table: str
    version: int
    rows: int
    files: int
    bytes: int
    restore_to: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOver:
    """A start over, fixed. Batches of the new generation are numbered from `first_batch` on, after those before.

    `to_batch` is the last batch that stays, where a pipeline is rolled back; None where all are given up.
    """

    pipeline: str
    generation: int
    first_batch: int
    start: dict[str, Any] | None
    spec_fingerprint: str
    code_version: str
    tables: tuple[GivenUp, ...]
    by: str
    reason: str
    run: str
    at: str
    to_batch: int | None = None
    format: int = FORMAT

    def encode(self) -> bytes:
        """The object's bytes."""
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def decode(cls, data: bytes, *, key: str) -> StartOver:
        """Read the object.

        Raises:
            ContractError: START_OVER_UNREADABLE for a torn object or a format of a later release.
        """

        def make(record: dict[str, Any]) -> StartOver:
            return cls(**{**record, "tables": tuple(GivenUp(**each) for each in record["tables"])})

        return decode_record(data, make, expected=FORMAT, unreadable=partial(_unreadable, key))


def _unreadable(key: str, error: Exception) -> ContractError:
    return ContractError(
        "START_OVER_UNREADABLE",
        f"{key} is no record of a start over this release can read: {error}.",
        hint="Restore it from the storage's versions, or run the release that wrote it.",
    )


def read_start_over(objects: ObjectStore, pipeline: str, generation: int) -> StartOver | None:
    """The record of the start over that began, or is to begin, this generation; None where there is none."""
    key = paths.start_over(pipeline, generation)
    found = objects.get(key)
    return StartOver.decode(found.data, key=key) if found else None


def fix_start_over(objects: ObjectStore, planned: StartOver) -> StartOver:
    """Create the record; the one that is there where somebody was first."""
    objects.put_if_absent(paths.start_over(planned.pipeline, planned.generation), planned.encode())
    fixed = read_start_over(objects, planned.pipeline, planned.generation)
    assert fixed is not None
    return fixed


def end_start_over(objects: ObjectStore, done: StartOver, *, versions: Mapping[str, int] | None = None) -> None:
    """Note that all of it is done, and as which version each table was put back. Idempotent."""
    data = json.dumps({"versions": dict(versions or {})}).encode()
    objects.put_if_absent(paths.start_over_end(done.pipeline, done.generation), data)


def rolled_back_at(objects: ObjectStore, pipeline: str, table: str) -> list[int]:
    """The versions of a table by which rollbacks of its whole pipeline put it back; its rows since land again."""
    found = []
    for generation in range(2, newest_start_over(objects, pipeline)[0] + 1):
        end = objects.get(paths.start_over_end(pipeline, generation))
        version = (json.loads(end.data).get("versions") or {}).get(table) if end else None
        found += [] if version is None else [int(version)]
    return found


def surviving_batches(objects: ObjectStore, pipeline: str, generation: int, *, current: int) -> int | None:
    """The last batch of a generation whose rows the tables still have, -1 for none; None while it is the present."""
    bounds = []
    for later in range(generation + 1, current + 1):
        begun = read_start_over(objects, pipeline, later)
        bounds.append(-1 if begun is None or begun.to_batch is None else begun.to_batch)
    return min(bounds, default=None)


def newest_start_over(objects: ObjectStore, pipeline: str) -> tuple[int, bool]:
    """The highest generation a start over is on record for, 1 where there is none, and whether that has ended."""
    folder = paths.pipeline_control(pipeline, "start_over") + "/"
    names = {key.removeprefix(folder) for key in objects.list(folder)}
    newest = max((int(name[1:7]) for name in names if name[1:7].isdigit()), default=1)
    end = paths.start_over_end(pipeline, newest).removeprefix(folder)
    return newest, newest == 1 or end in names


def refuse_unfinished_start_over(objects: ObjectStore, pipeline: str) -> None:
    """Refuse to begin anything on tables that are half made anew. One listing.

    Raises:
        ContractError: START_OVER_UNFINISHED.
    """
    generation, ended = newest_start_over(objects, pipeline)
    if not ended:
        raise ContractError(
            "START_OVER_UNFINISHED",
            f"Pipeline {pipeline!r} was to start over in generation {generation}, and that was broken off.",
            hint=f"`deltaworks pipelines start-over {pipeline} --no-dry-run` goes on with it.",
        )
