"""The shadows of a gold table: which one a refresh works in, and which have done their work.

A shadow's number is the version of the application transaction by which it is swapped in. So the gold table's own log
says of every shadow whether it has been swapped in, whatever happened to the job.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyarrow import fs

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.errors import ContractError
from deltaworks.tables.folders import remove_folder
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log_state import TableState, state_at
from deltaworks.tables.steps import gold_refresh_step


@dataclass(frozen=True, slots=True)
class Shadows:
    """The shadows of one gold table. `last` is the newest that was swapped in, 0 before the first."""

    pipeline: str
    table: str
    last: int
    found: tuple[int, ...]

    @property
    def next_key(self) -> str:
        """Where the next refresh works."""
        return paths.gold_shadow(self.pipeline, self.table, self.last + 1)

    @property
    def begun(self) -> bool:
        """Whether a refresh was broken off before its swap: its shadow is taken on."""
        return self.last + 1 in self.found

    @property
    def swapped(self) -> str | None:
        """The shadow that was swapped in and has not been removed yet."""
        return paths.gold_shadow(self.pipeline, self.table, self.last) if self.last in self.found else None

    @property
    def left_over(self) -> list[str]:
        """Shadows that belong to no refresh of this table any more, as of one that was dropped and made again."""
        kept = (self.last, self.last + 1)
        return [paths.gold_shadow(self.pipeline, self.table, each) for each in self.found if each not in kept]


def find_shadows(lake: Lake, pipeline: str, table: str) -> Shadows:
    """Look for the shadows of a gold table. One listing of names."""
    opened = lake.open(paths.table(pipeline, table))
    app_id = gold_refresh_step(pipeline, table, 0).app_id
    last = (opened.transaction_version(app_id) if opened is not None else None) or 0
    folder = arrow_path(lake.storage, paths.gold_shadows(pipeline, table))
    listed = lake.filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    names = (info.base_name for info in listed if info.type is fs.FileType.Directory)
    return Shadows(pipeline, table, last, tuple(sorted(int(name) for name in names if name.isdigit())))


def shadow_state(lake: Lake, objects: ObjectStore, key: str) -> TableState | None:
    """What a shadow that was swapped in holds; None where its removal has begun, which comes after all looking."""
    try:
        return state_at(lake, objects, key)
    except ContractError:
        return None


def remove_shadow(lake: Lake, key: str) -> None:
    """Delete a shadow, its log first: one without a log is being removed, whoever finds it."""
    remove_folder(lake.storage, f"{key}/_delta_log")
    remove_folder(lake.storage, key)
