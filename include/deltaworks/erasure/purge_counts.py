"""What is counted of the people who go in one version of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from deltaworks.events.collector_sequence_numbers import CollectorSequenceNumbers
from deltaworks.tables.log import FileId


@dataclass(slots=True)
class FileCount:
    """What one file has, by its content and not by its statistics.

    Args:
        rows: those that no deletion vector marks.
        hits: of these, rows with any of the tokens.
        marked: rows with any of the tokens that a deletion vector marks: no reader sees them, and they are there.
        by_request: `hits` by whom they are of.
        numbers: those that collectors gave to the events of these rows.
    """

    rows: int = 0
    hits: int = 0
    deleted_hits: int = 0
    by_request: Counter[str] = field(default_factory=Counter)
    sequence_numbers: CollectorSequenceNumbers = field(default_factory=CollectorSequenceNumbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSurvey:
    """Whose rows are where in one version of a table.

    Args:
        rows: of the whole table.
        by_file: rows with any of the tokens, of files in which any stands; 0 where all of them are marked as deleted.
        by_request: the same by whom they are of.
        dates: the same by the value of the first partition column, such as a date.
        marked: rows with any of the tokens that are marked as deleted, in all files.
        numbers: those that collectors gave to the events of `hits`.
    """

    version: int
    rows: int
    by_file: Mapping[FileId, int] = field(default_factory=dict)
    by_request: Mapping[str, int] = field(default_factory=dict)
    dates: Mapping[str, int] = field(default_factory=dict)
    deleted_hits: int = 0
    sequence_numbers: CollectorSequenceNumbers = field(default_factory=CollectorSequenceNumbers)

    @property
    def hits(self) -> int:
        """Rows with any of the tokens."""
        return sum(self.by_file.values())
