"""How long a table's log is: what a reader has to list and replay, by one listing of its folder."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass

from pyarrow import fs

from deltaworks.tables.lake import Lake, arrow_path

_COMMIT = re.compile(r"^\d{20}\.json$")
_CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLength:
    """Commits that are still in the log with their bytes, and the files of checkpoints with theirs.

    `checkpoint_at` is when the newest checkpoint was written, by the storage's clock; None where there is none.
    """

    commits: int
    commit_bytes: int
    checkpoint_files: int
    checkpoint_bytes: int
    checkpoint_at: dt.datetime | None

    @property
    def bytes(self) -> int:
        """All that is kept to know what the table is."""
        return self.commit_bytes + self.checkpoint_bytes


def log_length(lake: Lake, key: str) -> LogLength:
    """Measure the log of the table at `key`; all zero where there is none. One listing, of one folder."""
    selector = fs.FileSelector(f"{arrow_path(lake.storage, key)}/_delta_log", allow_not_found=True)
    commits = commit_bytes = checkpoint_files = checkpoint_bytes = 0
    newest: tuple[str, dt.datetime] | None = None
    for info in lake.filesystem.get_file_info(selector):
        found = _CHECKPOINT.match(info.base_name)
        if _COMMIT.match(info.base_name):
            commits, commit_bytes = commits + 1, commit_bytes + (info.size or 0)
        elif found is not None:
            checkpoint_files, checkpoint_bytes = checkpoint_files + 1, checkpoint_bytes + (info.size or 0)
            if info.mtime is not None and (newest is None or (found[1], info.mtime) > newest):
                newest = (found[1], info.mtime)
    return LogLength(
        commits=commits,
        commit_bytes=commit_bytes,
        checkpoint_files=checkpoint_files,
        checkpoint_bytes=checkpoint_bytes,
        checkpoint_at=newest[1].astimezone(dt.UTC) if newest is not None else None,
    )
