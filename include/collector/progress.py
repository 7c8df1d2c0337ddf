"""What of a spool is where it belongs, by source: written down before anything is deleted, and before an object is put.

One small file beside the segments, replaced as a whole and durably. Whoever holds the folder's lock writes it, from one
thread a source.
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
    """One source: everything up to `done` is where it belongs. `planned` is the object that is put next, or again.

    `objects`, `events` and `dead_letters` count what was done in all.
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
    """The progress of one spool folder. Safe to share between threads of the process that holds the folder.

    Raises:
        ContractError: SPOOL_PROGRESS_UNREADABLE.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._sources = _read(folder / FILE_NAME)

    def get(self, source: str) -> SourceProgress:
        """That of one source; the start where it has none."""
        with self._lock:
            return self._sources.get(source, SourceProgress())

    def all_sources(self) -> dict[str, SourceProgress]:
        """That of every source that has any."""
        with self._lock:
            return dict(self._sources)

    def set(self, source: str, progress: SourceProgress) -> None:
        """Write down the progress of a source; it has survived a power failure when this returns.

        Raises:
            OSError: the disk is full, or fails; what was written down before stands.
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
            f"{path} is no progress of a spool this release can read: {error.errors()[0]['msg']}.",
            hint="Put back the release that wrote it. Where the file is damaged, move it away: what is in the folder "
            "is then delivered once more, and gold counts each event once by its id.",
        ) from error
