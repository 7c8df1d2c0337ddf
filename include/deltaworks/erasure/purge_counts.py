"""Row counts of erased people in one version of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from deltaworks.events.collector_sequence_numbers import CollectorSequenceNumbers
from deltaworks.tables.log import FileId


@dataclass(slots=True)
class FileCount:
    """Counts of one file, from its content, not its statistics.

    Args:
        rows: rows that no deletion vector marks as deleted.
        hits: of these, rows with a searched token.
        matches_in_deleted_rows: rows with a searched token that a deletion vector marks as deleted, but that are still
            in the file.
        by_request: `hits` by request.
        sequence_numbers: collector sequence numbers of the rows.
    """

    rows: int = 0
    hits: int = 0
    matches_in_deleted_rows: int = 0
    by_request: Counter[str] = field(default_factory=Counter)
    sequence_numbers: CollectorSequenceNumbers = field(default_factory=CollectorSequenceNumbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSurvey:
    """Rows with searched tokens in one version of a table.

    Args:
        rows: all rows of the table.
        by_file: rows with a searched token by file; 0 if all such rows are marked as deleted.
        by_request: rows with a searched token by request.
        dates: rows with a searched token by value of the first partition column, such as a date.
        matches_in_deleted_rows: rows with a searched token that are marked as deleted, in all files.
        sequence_numbers: collector sequence numbers of `hits`.
    """

    version: int
    rows: int
    by_file: Mapping[FileId, int] = field(default_factory=dict)
    by_request: Mapping[str, int] = field(default_factory=dict)
    dates: Mapping[str, int] = field(default_factory=dict)
    matches_in_deleted_rows: int = 0
    sequence_numbers: CollectorSequenceNumbers = field(default_factory=CollectorSequenceNumbers)

    @property
    def hits(self) -> int:
        """Number of rows with a searched token."""
        return sum(self.by_file.values())
