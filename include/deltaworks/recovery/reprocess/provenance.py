"""Decides where each range of records is read from again: the source, the archive, or nowhere if neither has it.

A pure function over ranges. The source is preferred, since it holds records as produced. A range the source may have
lost is read from the archive if archived, otherwise from the source if its records can be counted, so that a missing
record is detected before other rows are replaced.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from deltaworks.sources.record_source import RecordRange, RetainedRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Ranges by origin. Each record of the selection is in exactly one range."""

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
    """Assigns each part of the ranges to its origin.

    Args:
        retained: for each range, the part the source retains.
        archived: batches whose records are in the archive, which holds a batch completely or not at all.
        countable: batches whose number of records is recorded.
    """
    source: list[RecordRange] = []
    archive: list[RecordRange] = []
    gone: list[RecordRange] = []

    def put(target: list[RecordRange], part: RecordRange | None) -> None:
        if part is not None:
            target.append(part)

    for one, has in zip(ranges, retained, strict=True):
        possible_from = min(has.possible_from, has.certain_from) if one.batch_id in countable else has.certain_from
        if one.batch_id in archived:
            put(archive, one.clip(one.first, has.certain_from - 1))
            put(source, one.clip(has.certain_from, one.last))
        else:
            put(gone, one.clip(one.first, possible_from - 1))
            put(source, one.clip(possible_from, one.last))
    return Provenance(source=tuple(source), archive=tuple(archive), missing=tuple(gone))
