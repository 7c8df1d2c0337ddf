"""Decides where each range of records is read from again: the source, the archive, or neither.

Pure. The source is preferred, since it holds records as produced. If the source may have lost a range, the range is
read from the archive. If it is not archived either, it is read from the source, provided that its number of records is
known, so that a missing record is detected before other rows are replaced.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from deltaworks.sources.record_source import RecordRange, RetainedRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Ranges by the place they are read from. Each record of the selection is in exactly one range."""

    source: tuple[RecordRange, ...] = ()
    archive: tuple[RecordRange, ...] = ()
    missing: tuple[RecordRange, ...] = ()

    @property
    def readable(self) -> tuple[RecordRange, ...]:
        """All ranges that can be read again."""
        return self.source + self.archive


def assign_provenance(
    ranges: Sequence[RecordRange], retained: Sequence[RetainedRange], *, archived: Set[int], countable: Set[int]
) -> Provenance:
    """Assigns each part of the ranges to the place it is read from.

    Args:
        retained: for each range, the part that the source retains.
        archived: batches in the archive. The archive holds all records of a batch or none.
        countable: batches whose number of records is recorded.
    """
    source: list[RecordRange] = []
    archive: list[RecordRange] = []
    missing: list[RecordRange] = []

    def put(target: list[RecordRange], part: RecordRange | None) -> None:
        if part is not None:
            target.append(part)

    for one, has in zip(ranges, retained, strict=True):
        possible_from = min(has.possible_from, has.certain_from) if one.batch_id in countable else has.certain_from
        if one.batch_id in archived:
            put(archive, one.clip(one.first, has.certain_from - 1))
            put(source, one.clip(has.certain_from, one.last))
        else:
            put(missing, one.clip(one.first, possible_from - 1))
            put(source, one.clip(possible_from, one.last))
    return Provenance(source=tuple(source), archive=tuple(archive), missing=tuple(missing))
