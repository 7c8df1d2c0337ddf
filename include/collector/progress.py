"""Delivery progress per source, stored before segments are deleted and before an object is put.

One small file with the segments, replaced atomically and durably. Written by the process that has locked the folder,
from one thread per source.
"""

from __future__ import annotations

import threading
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from collector.packing import ObjectPlan
from collector.spool_folder import replace_durably
from deltaworks.errors import ContractError

FILE_NAME = "progress.json"


class SourceProgress(BaseModel):
    """Progress of one source: everything up to `delivered_up_to` is delivered. `planned_object` is the object to put
    next.

    `objects`, `events` and `dead_letters` are totals.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    delivered_up_to: int = 0
    planned_object: ObjectPlan | None = None
    objects: int = 0
    events: int = 0
    dead_letters: int = 0


class _ProgressFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = 1
    sources: dict[str, SourceProgress] = {}


class Progress:
    """The progress of one spool folder. Thread-safe within the process that has locked the folder.

    Raises:
        ContractError: SPOOL_PROGRESS_UNREADABLE.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._sources = _read(folder / FILE_NAME)

    def get(self, source: str) -> SourceProgress:
        """Returns the progress of one source; the initial one if none is stored."""
        with self._lock:
            return self._sources.get(source, SourceProgress())

    def all_sources(self) -> dict[str, SourceProgress]:
        """Returns the stored progress of all sources."""
        with self._lock:
            return dict(self._sources)

    def set(self, source: str, progress: SourceProgress) -> None:
        """Stores the progress of a source; durable on return.

        Raises:
            OSError: the disk is full or fails; the former progress is unchanged.
        """
        with self._lock:
            sources = {**self._sources, source: progress}
            replace_durably(
                self._folder / FILE_NAME, _ProgressFile(sources=sources).model_dump_json(exclude_none=True).encode()
            )
            self._sources = sources


def _read(path: Path) -> dict[str, SourceProgress]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    try:
        return dict(_ProgressFile.model_validate_json(data).sources)
    except ValidationError as error:
        raise ContractError(
            "SPOOL_PROGRESS_UNREADABLE",
            f"{path} is not a progress file that this release can read: {error.errors()[0]['msg']}.",
        ) from error
