"""The prepared replay: the one object that fixes which quarantined rows a replay lands, and in which files.

Replays of a pipeline have ordinals without gaps. Replay n + 1 can be prepared only after replay n is complete, and by
one of any number of processes: whoever creates its object. Everybody else completes what that one prepared.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.prepared import PreparedTable, prepared_tables
from deltaworks.control.records.store import decode_record
from deltaworks.errors import ContractError

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedReplay:
    """A replay, fixed. The last of `tables` is the record of its rows, which completes it."""

    pipeline: str
    ordinal: int
    replay_id: str
    run: str
    prepared_at: str
    spec_fingerprint: str
    code_version: str
    tables: tuple[PreparedTable, ...]
    format: int = FORMAT

    def encode(self) -> bytes:
        """The object's bytes."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes, *, key: str) -> PreparedReplay:
        """Read the object.

        Raises:
            ContractError: PREPARED_REPLAY_UNREADABLE for a torn object or a format of a later release.
        """

        def make(record: dict[str, Any]) -> PreparedReplay:
            return cls(**{**record, "tables": prepared_tables(record)})

        return decode_record(data, make, expected=FORMAT, unreadable=partial(_unreadable, key))


def _unreadable(key: str, error: Exception) -> ContractError:
    return ContractError(
        "PREPARED_REPLAY_UNREADABLE",
        f"{key} is no prepared replay of this release: {error}.",
        hint="Run the release that wrote it; it completes the replay.",
    )


def read_replay(objects: ObjectStore, pipeline: str, ordinal: int) -> PreparedReplay | None:
    """The prepared replay, or None while there is none."""
    key = paths.prepared_replay(pipeline, ordinal)
    found = objects.get(key)
    return PreparedReplay.decode(found.data, key=key) if found else None


def prepare_replay(objects: ObjectStore, replay: PreparedReplay) -> bool:
    """Fix the replay; False where another process fixed one of this ordinal first."""
    return objects.put_if_absent(paths.prepared_replay(replay.pipeline, replay.ordinal), replay.encode())
