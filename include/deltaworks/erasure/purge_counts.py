"""What is counted of the people who go in one version of a table."""

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
