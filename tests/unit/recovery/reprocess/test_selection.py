"""What is to be read again resolves to seq ranges of complete batches, and to where the records come from."""

from __future__ import annotations

import datetime as dt
import itertools
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.errors import ConfigError
from deltaworks.events.reasons import QUARANTINE_SCHEMA, Reason, ReasonCode, RejectedEvent, quarantine_rows
from deltaworks.recovery.reprocess import selection as module
from deltaworks.recovery.reprocess.records import assign_provenance
from deltaworks.recovery.reprocess.selection import ObjectResolver, ResolvedObjects, Selection, SeqRanges
from deltaworks.sources.objects.file_event_log import file_events_key
from deltaworks.sources.record_source import LAST_ORDINAL, NOTHING_RETAINED, RecordRange, RetainedRange
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources import FileSourceSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import Step
from deltaworks.testing import append_rows, present
from tests.unit.engine.ledger_harness import Harness


@pytest.fixture
def stage(tmp_path: Path, make_spec: Callable[..., PipelineSpec]) -> Harness:
    """Four complete batches (seq 1 to 8, of which 5 is another bucket's) and one that is prepared."""
    made = Harness(tmp_path, make_spec())
    for batch_id in range(4):
        made.complete(batch_id)
    made.prepare(4)
    return made


def resolve(stage: Harness, selection: Selection) -> ResolvedObjects:
    return ObjectResolver(stage.lake, stage.objects, stage.spec).resolve(selection)


def seqs(resolved: ResolvedObjects) -> list[int]:
    return [each.seq for each in resolved.objects]


def test_from_the_start_is_everything_that_is_complete_and_nothing_that_is_not(stage: Harness) -> None:
    found = resolve(stage, Selection(from_start=True))

    assert seqs(found) == [1, 2, 3, 4, 6, 7, 8]
    assert (found.ranges.ranges, found.through_batch) == (((1, 8),), 3)
    assert {each.seq: each.batch_id for each in found.objects} == {1: 0, 2: 0, 3: 1, 4: 1, 6: 2, 7: 3, 8: 3}
    assert [(each.key, each.size) for each in found.objects][4] == ("day/5.json", 5)


def test_batches_are_the_objects_they_read(stage: Harness) -> None:
    found = resolve(stage, Selection(batches=(1, 2)))

    assert seqs(found) == [3, 4, 6]
    assert found.ranges.ranges == ((3, 6),)


def test_a_batch_that_is_not_complete_is_not_read_again(stage: Harness) -> None:
    assert seqs(resolve(stage, Selection(batches=(3, 9)))) == [7, 8]
    with pytest.raises(ConfigError, match="REPROCESS_EMPTY"):
        resolve(stage, Selection(batches=(4, 4)))


def test_files_are_named_or_matched(stage: Harness) -> None:
    found = resolve(stage, Selection(files=("day/1.json", "day/[67].*")))

    assert [each.key for each in found.objects] == ["day/1.json", "day/6.json", "day/7.json"]
    assert found.ranges.ranges == ((1, 1), (7, 8))


def test_rows_keep_the_stamp_of_the_batch_that_prepared_them(stage: Harness) -> None:
    stage.objects.delete(paths.prepared_batch("shop", 1, 0))

    found = resolve(stage, Selection(batches=(0, 1)))

    lost = int(dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp() * 1_000_000)
    assert [each.ingested_at_us for each in found.objects] == [lost, lost, 0, 0]


def test_objects_arrived_when_the_log_says_that_they_were_made(stage: Harness) -> None:
    log = present(stage.lake.rows(file_events_key("landing"), columns=["seq", "event_time"]))
    made = {row["seq"]: row["event_time"] for row in log.to_pylist()}

    objects = resolve(stage, Selection(from_start=True)).objects

    assert {each.seq: each.arrived_at_us for each in objects} == {
        each.seq: int(made[each.seq].timestamp() * 1_000_000) for each in objects
    }


def test_a_time_of_events_is_every_object_that_holds_one(stage: Harness) -> None:
    table = stage.spec.tables[0]
    key, schema = paths.table("shop", table.name), arrow_schema(table.column_types())
    times = {1: "2025-05-01T10:00:00", 3: "2025-05-02T00:00:00", 4: "2025-05-01T23:59:59", 6: "2025-04-30T23:59:59"}
    rows = [
        {"_seq": seq, "event_time": time, "event_date": time.date()}
        for seq, time in ((s, dt.datetime.fromisoformat(t).replace(tzinfo=dt.UTC)) for s, t in times.items())
    ]
    append_rows(stage.lake, key, rows, schema=schema, partition_by=["event_date"])

    found = resolve(stage, Selection(events=("2025-05-01", "2025-05-02T00:00:00Z")))

    assert seqs(found) == [1, 4]


def test_a_quarantined_row_counts_by_when_its_object_was_made(stage: Harness) -> None:
    key = paths.table("shop", "quarantine")
    opened = stage.lake.ensure(key, QUARANTINE_SCHEMA, user_metadata="{}", partition_by=["quarantine_date"])
    reason = Reason(ReasonCode.MALFORMED, "", "")
    rows = quarantine_rows(
        [RejectedEvent(2, 0, "day/2.json", b"{", None, (reason,))],
        batch_id=0,
        ingested_at_us=0,
        fingerprint="",
        retain_raw_bytes=10,
    )
    stage.lake.append(opened, key, rows, step=Step("t", 1), user_metadata="{}")

    assert seqs(resolve(stage, Selection(events=("2026-01-01", "2026-01-02")))) == [2]
    with pytest.raises(ConfigError, match="REPROCESS_EMPTY"):
        resolve(stage, Selection(events=("2026-01-02", "2026-01-03")))


def test_what_was_resolved_is_found_again_whatever_has_landed_since(stage: Harness) -> None:
    before = resolve(stage, Selection(files=("day/2.json", "day/7.json")))
    stage.complete(4)

    again = ObjectResolver(stage.lake, stage.objects, stage.spec).resolve_again(
        before.ranges, through_batch=before.through_batch
    )

    assert again == before
    assert resolve(stage, Selection(from_start=True)).through_batch == 4


def test_ranges_run_over_nothing_where_the_pipeline_has_read_another_place(stage: Harness) -> None:
    # Seq 5 is of the bucket that was read before: its rows are in the tables, and must stay there.
    former = stage.spec.model_copy(update={"source": FileSourceSpec(kind="s3_sqs", relay="landing", bucket="foreign")})
    records = PipelineHome(stage.objects, "shop").specs
    records.record_start(former, owner_epoch=1)
    records.record_start(stage.spec, owner_epoch=1)

    found = resolve(stage, Selection(from_start=True))

    assert found.ranges.ranges == ((1, 4), (6, 8))


def test_a_selection_in_too_many_pieces_is_refused(stage: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RANGES", 1)

    with pytest.raises(ConfigError, match="REPROCESS_TOO_FRAGMENTED"):
        resolve(stage, Selection(files=("day/1.json", "day/7.json")))


def test_a_selection_says_what_it_wants_in_one_way() -> None:
    for wrong in ({}, {"from_start": True, "files": ("a",)}, {"batches": (1, 2), "events": ("a", "b")}):
        with pytest.raises(ConfigError, match="REPROCESS_SELECTION_INVALID"):
            Selection(**wrong)  # type: ignore[arg-type]


def test_a_time_that_is_none_is_refused(stage: Harness) -> None:
    with pytest.raises(ConfigError, match="REPROCESS_SELECTION_INVALID"):
        resolve(stage, Selection(events=("yesterday", "2026-01-01")))


SEQS = st.sets(st.integers(1, 60))


@given(SEQS)
def test_ranges_hold_the_seqs_given_and_nothing_else(wanted: set[int]) -> None:
    ranges = SeqRanges.from_seqs(wanted)

    assert {seq for seq in range(70) if seq in ranges} == wanted
    assert {seq for first, last in ranges for seq in range(first, last + 1)} == wanted


@given(SEQS, SEQS)
def test_ranges_run_over_numbers_that_have_no_rows_and_over_no_others(wanted: set[int], others: set[int]) -> None:
    among = sorted(wanted | others)

    ranges = SeqRanges.from_seqs(wanted, existing_seqs=among)

    assert {seq for seq in among if seq in ranges} == wanted
    # As few as can be: between two ranges lies something that is not wanted.
    ends = list(ranges)
    for (_, last), (first, _) in itertools.pairwise(ends):
        assert any(last < seq < first for seq in among)


@given(SEQS)
def test_conditions_find_the_same_rows(wanted: set[int]) -> None:
    ranges = SeqRanges.from_seqs(wanted)
    rows = pa.table({"_seq": list(range(70))})

    by_arrow = ds.dataset(rows).to_table(filter=ranges.expression()).column("_seq").to_pylist()
    by_sql = duckdb.sql(f"SELECT _seq FROM rows WHERE {ranges.sql().replace('`', chr(34))} ORDER BY 1").fetchall()

    assert by_arrow == sorted(wanted)
    assert [row[0] for row in by_sql] == sorted(wanted)


SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)).map(lambda span: (span[0], span[0] + span[1])))


@given(SPANS, st.integers(0, 40), st.integers(0, 20))
def test_joined_ranges_hold_what_their_parts_hold_and_are_cut_where_they_are_looked_at(
    pairs: list[tuple[int, int]], first: int, length: int
) -> None:
    held = {seq for low, high in pairs for seq in range(low, high + 1)}

    ranges = SeqRanges.merge(pairs)

    assert {seq for low, high in ranges for seq in range(low, high + 1)} == held
    assert all(before[1] + 1 < after[0] for before, after in pairwise(ranges)), "apart from each other"
    cut = {seq for low, high in ranges.clip(first, first + length) for seq in range(low, high + 1)}
    assert cut == {seq for seq in held if first <= seq <= first + length}


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
