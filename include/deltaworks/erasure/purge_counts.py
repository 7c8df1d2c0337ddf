"""What is counted of the people who go, before and after, in one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from deltaworks.tables.log import FileId


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Whose rows are where in one version of a table.

    Args:
        rows: of the whole table.
        by_file: rows with any of the tokens, of files that have any.
        by_request: the same by whom they are of.
        dates: the same by the value of the first partition column, such as a date.
    """

    version: int
    rows: int
    by_file: Mapping[FileId, int] = field(default_factory=dict)
    by_request: Mapping[str, int] = field(default_factory=dict)
    dates: Mapping[str, int] = field(default_factory=dict)

    @property
    def hits(self) -> int:
        """Rows with any of the tokens."""
        return sum(self.by_file.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePurge:
    """What a purge did to one table: rows of everybody, of those who go, and of the others, before and after.

    `removed` are the paths below the table that VACUUM has to have deleted; `version` is None where nothing was there
    to be done. `bytes_written` is what the others' rows of those files became.
    """

    pipeline: str
    table: str
    version: int | None
    at_ms: int
    all_before: int
    erased_before: int
    all_after: int
    erased_after: int
    others_before: int
    others_after: int
    by_request: dict[str, int]
    dates: dict[str, int]
    removed: tuple[str, ...] = ()
    bytes_written: int = 0
