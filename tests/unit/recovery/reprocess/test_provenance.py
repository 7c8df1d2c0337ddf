"""Where records come from that are read again, against an oracle that asks for every single record."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from deltaworks.recovery.reprocess.records import assign_provenance
from deltaworks.sources.record_source import LAST_ORDINAL, NOTHING_RETAINED, RecordRange, RetainedRange

PLACES = st.integers(0, 12)


@st.composite
def landed(draw: st.DrawFn) -> tuple[list[RecordRange], list[RetainedRange]]:
    """Batches that read one partition or several, and what the source has of each of their ranges."""
    ranges, kept = [], []
    for partition in range(draw(st.integers(1, 3))):
        at = draw(PLACES)
        for batch in range(draw(st.integers(0, 4))):
            length = draw(st.integers(1, 5))
            bounds = {"first": at, "last": at + length - 1, "batch_id": batch}
            ranges.append(RecordRange(stream="shop", partition=str(partition), number=partition, **bounds))
            at += length
            surely = draw(st.one_of(st.just(LAST_ORDINAL + 1), st.integers(0, 30)))
            kept.append(RetainedRange(surely, draw(st.integers(0, 30)) if draw(st.booleans()) else surely))
    return ranges, kept


def origin_of(place: int, one: RecordRange, has: RetainedRange, *, archived: set[int], countable: set[int]) -> str:
    """The slow way: one record, and one question after the other."""
    if place >= has.certain_from:
        return "source"
    if one.batch_id in archived:
        return "archive"
    if one.batch_id in countable and place >= has.possible_from:
        return "source"
    return "missing"


@given(landed(), st.sets(st.integers(0, 4)), st.sets(st.integers(0, 4)))
def test_every_record_comes_from_where_it_is_and_none_from_two_places(
    stream: tuple[list[RecordRange], list[RetainedRange]], archived: set[int], countable: set[int]
) -> None:
    ranges, kept = stream

    parts = assign_provenance(ranges, kept, archived=archived, countable=countable)

    expected = Counter(
        (one.partition, place, one.batch_id, origin_of(place, one, has, archived=archived, countable=countable))
        for one, has in zip(ranges, kept, strict=True)
        for place in range(one.first, one.last + 1)
    )
    planned = Counter(
        (one.partition, place, one.batch_id, origin)
        for origin in ("source", "archive", "missing")
        for one in getattr(parts, origin)
        for place in range(one.first, one.last + 1)
    )
    assert planned == expected
    assert {one.seqs for one in parts.readable}.isdisjoint({one.seqs for one in parts.missing})


def test_a_range_without_a_known_end_is_whole_in_one_place_or_none() -> None:
    open_ended = RecordRange(stream="s", partition="0", number=0, first=5, last=LAST_ORDINAL, batch_id=3)

    assert assign_provenance([open_ended], [NOTHING_RETAINED], archived={3}, countable=set()).archive == (open_ended,)
    assert assign_provenance([open_ended], [NOTHING_RETAINED], archived=set(), countable={3}).missing == (open_ended,)
    assert assign_provenance([open_ended], [RetainedRange(5, 5)], archived={3}, countable=set()).source == (open_ended,)
    assert open_ended.key == "s/0/5-"


def test_records_that_may_be_there_are_only_counted_on_where_their_number_is_on_record() -> None:
    one = RecordRange(stream="s", partition="0", number=0, first=0, last=9, batch_id=0)
    compacted = RetainedRange(LAST_ORDINAL + 1, 4)

    counted = assign_provenance([one], [compacted], archived=set(), countable={0})
    uncounted = assign_provenance([one], [compacted], archived=set(), countable=set())

    assert ([part.key for part in counted.source], [part.key for part in counted.missing]) == (["s/0/4-9"], ["s/0/0-3"])
    assert (uncounted.source, [part.key for part in uncounted.missing]) == ((), ["s/0/0-9"])
