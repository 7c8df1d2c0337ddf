"""Decides where records are read again from: their source, the archive, or nowhere, since nobody has them any more.

A pure function over ranges. The source comes first, since it has records as their producers sent them. What it only may
have is read from the archive where that has it; otherwise from the source where it can be counted, so that a record
which is missing is noticed before the rows of others are replaced.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from deltaworks.sources.record_source import RecordRange, RetainedRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Ranges by where they are read from; each record of a selection is in one of them."""

    source: tuple[RecordRange, ...] = ()
    archive: tuple[RecordRange, ...] = ()
    missing: tuple[RecordRange, ...] = ()

    @property
    def readable(self) -> tuple[RecordRange, ...]:
        """What can be read again."""
        return self.source + self.archive


def assign_provenance(
    ranges: Sequence[RecordRange], retained: Sequence[RetainedRange], *, archived: Set[int], countable: Set[int]
) -> Provenance:
    """Where each part of the ranges comes from.

    Args:
        kept: of each range, what the source has of it.
        archived: the batches whose records the archive has; it has all of a batch or none.
        countable: the batches of which it is on record how many records were read.
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
