"""An excess of quarantined events is reported with reasons, and expires with time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.control import paths
from deltaworks.control.health.limits import HealthLimits
from deltaworks.control.health.throughput import (
    DAY,
    HOUR,
    EventTotals,
    Throughput,
    ThroughputWriter,
    describe_quarantine_excess,
    read_throughput,
    read_with_replays,
    record_replayed,
)
from deltaworks.control.objects import LocalObjects

NOW = datetime(2026, 3, 30, 12, 2, tzinfo=UTC)
LIMITS = HealthLimits()
MISMATCH = ("type_mismatch", "level")


def totals(events: int, quarantined: int = 0, reasons: dict[tuple[str, str], int] | None = None) -> EventTotals:
    why = reasons if reasons is not None else {MISMATCH: quarantined} if quarantined else {}
    return EventTotals(events=events, rows=2 * (events - quarantined), quarantined=quarantined, reasons=why)


def throughput_of(*batches: tuple[timedelta, EventTotals], now: datetime = NOW) -> Throughput:
    """Throughput of batches completed the given time ago."""
    record = Throughput()
    for ago, batch in batches:
        record = record.merged(Throughput().with_batch(now - ago, batch), now=now)
    return record


spans = st.lists(st.tuples(st.integers(0, 1_500), st.integers(0, 1_000)), max_size=8)


def minutes(number: float) -> timedelta:
    return timedelta(minutes=number)


@pytest.mark.parametrize(
    ("events", "quarantined", "too_many"),
    [
        (10_000, 10_000, True),
        (10_000, 501, True),
        (10_000, 500, False),
        (100, 4, False),
        (99, 99, False),
        (0, 0, False),
    ],
)
def test_a_share_above_five_percent_of_a_hundred_events_is_too_much(
    events: int, quarantined: int, too_many: bool
) -> None:
    record = throughput_of((minutes(3), totals(events, quarantined)))

    assert bool(describe_quarantine_excess(record, LIMITS, NOW)) is too_many


def test_reasons_are_listed_with_counts_and_fields_most_frequent_first() -> None:
    reasons = {("rule", "positive"): 900, MISMATCH: 8_000, ("malformed", ""): 1_000, ("unknown_event", ""): 100}
    record = throughput_of((minutes(3), totals(10_000, 10_000, reasons)))

    assert describe_quarantine_excess(record, LIMITS, NOW) == (
        "10,000 of 10,000 events of the last hour are in quarantine (100.0 %, limit 5 %): "
        "8,000 type_mismatch at level, 1,000 malformed, 900 rule at positive and 1 more."
    )


@pytest.mark.parametrize(
    ("limits", "too_many"),
    [
        (HealthLimits(quarantined_share_max=0.2), True),
        (HealthLimits(quarantined_share_max=0.5), False),
        (HealthLimits(quarantined_share_max=1.0), False),
        (HealthLimits(quarantined_events_min=1_000), False),
    ],
)
def test_declared_limits_apply(limits: HealthLimits, too_many: bool) -> None:
    assert bool(describe_quarantine_excess(throughput_of((minutes(3), totals(200, 100))), limits, NOW)) is too_many


def test_a_good_hour_replaces_a_bad_one() -> None:
    record = throughput_of((minutes(3), totals(10_000, 10_000)))
    assert describe_quarantine_excess(record, LIMITS, NOW)

    for minute in range(0, 60, 10):
        record = record.merged(Throughput().with_batch(NOW + minutes(minute), totals(50)), now=NOW + minutes(minute))

    assert describe_quarantine_excess(record, LIMITS, NOW + minutes(50))
    assert not describe_quarantine_excess(record, LIMITS, NOW + minutes(65))


def test_a_slow_stream_is_evaluated_over_as_many_hours_as_needed() -> None:
    record = throughput_of(*((timedelta(hours=ago), totals(20, 20)) for ago in range(10, 0, -1)))

    assert "of the last 6 hours" in describe_quarantine_excess(record, LIMITS, NOW)
    assert not describe_quarantine_excess(record, LIMITS, NOW + DAY + HOUR)


def test_good_events_of_today_outweigh_bad_ones_of_yesterday() -> None:
    record = throughput_of((timedelta(hours=20), totals(10_000, 10_000)), (minutes(5), totals(120, 2)))

    assert not describe_quarantine_excess(record, LIMITS, NOW)


def test_totals_survive_restarts_and_failed_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = LocalObjects(tmp_path)
    first = ThroughputWriter(objects, "t.json")
    first.add(NOW, totals(60, 60))
    first.write(NOW)
    second = ThroughputWriter(objects, "t.json")
    second.add(NOW, totals(60, 60))
    with monkeypatch.context() as patched:
        patched.setattr(objects, "put", lambda *_: (_ for _ in ()).throw(OSError("away")))
        with pytest.raises(OSError, match="away"):
            second.write(NOW)
    second.add(NOW, totals(5))
    second.write(NOW)
    second.write(NOW)

    assert read_throughput(objects, "t.json").last_hour(NOW) == totals(125, 120)


@pytest.mark.parametrize(
    "stored", [None, b"", b"{", b"[]", b'{"format": 2, "spans": []}', b'{"format": 1, "spans": [1]}']
)
def test_a_record_that_cannot_be_read_is_empty(tmp_path: Path, stored: bytes | None) -> None:
    objects = LocalObjects(tmp_path)
    if stored is not None:
        objects.put("t.json", stored)

    assert read_throughput(objects, "t.json") == Throughput()


batches = st.lists(
    st.tuples(
        st.timedeltas(min_value=timedelta(0), max_value=timedelta(hours=30)), st.integers(0, 500), st.integers(0, 9)
    ),
    max_size=40,
)


@given(batches)
def test_an_hour_is_counted_to_five_minutes_and_the_record_stays_small(
    taken: list[tuple[timedelta, int, int]],
) -> None:
    ordered = sorted(taken, key=lambda batch: batch[0], reverse=True)
    record = Throughput()
    for ago, good, bad in ordered:
        at = NOW - ago
        record = record.merged(Throughput().with_batch(at, totals(good + bad, bad)), now=at)
    record = Throughput.decode(record.merged(Throughput(), now=NOW).encode())

    least = sum(good + bad for ago, good, bad in taken if ago < HOUR)
    most = sum(good + bad for ago, good, bad in taken if ago <= HOUR + minutes(5))
    assert least <= record.last_hour(NOW).events <= most
    assert len(record.spans) <= 13 + 26
    kept = sum(total.events for total in record.spans.values())
    assert sum(good + bad for ago, good, bad in taken if ago <= DAY) <= kept


def test_replayed_events_no_longer_count_as_quarantined(tmp_path: Path) -> None:
    objects, control = LocalObjects(tmp_path), "control/pipelines/games"
    sick = throughput_of((minutes(3), totals(10_000, 9_000)), (minutes(200), totals(1_000, 1_000)))
    objects.put(paths.throughput(control), sick.encode())
    assert describe_quarantine_excess(read_with_replays(objects, "games", LIMITS, NOW), LIMITS, NOW)

    record_replayed(objects, control, throughput_of((minutes(4), totals(0, 8_000))), now=NOW)
    part = describe_quarantine_excess(read_with_replays(objects, "games", LIMITS, NOW), LIMITS, NOW)
    record_replayed(objects, control, throughput_of((minutes(4), totals(0, 1_000))), now=NOW)

    assert "1,000 of 10,000 events" in part
    assert "1,000 type_mismatch at level" in part
    assert describe_quarantine_excess(read_with_replays(objects, "games", LIMITS, NOW), LIMITS, NOW) == ""
    later = NOW + timedelta(minutes=30)
    sicker = throughput_of((minutes(30), totals(10_000, 9_000)), (minutes(0), totals(10_000, 900)), now=later)
    objects.put(paths.throughput(control), sicker.encode())
    again = describe_quarantine_excess(read_with_replays(objects, "games", LIMITS, later), LIMITS, later)
    assert "900 of 20,000 events" not in again, "4.5 % is no trouble"
    assert not again


@given(spans, spans)
def test_counts_never_go_below_zero(seen: list[tuple[int, int]], landed: list[tuple[int, int]]) -> None:
    def record(several: list[tuple[int, int]]) -> Throughput:
        return throughput_of(*((minutes(ago), totals(number, number)) for ago, number in several))

    total, _ = replace(record(seen), replayed=record(landed).spans).recent_totals(NOW, events=100)
    bare, _ = record(seen).recent_totals(NOW, events=100)

    assert total.events == bare.events
    assert 0 <= total.quarantined <= bare.quarantined
    assert all(number > 0 for number in total.reasons.values())


MISSING = ("missing_required", "eventParams")


def hour_of_good_events(per_minute: int = 2_150) -> list[tuple[timedelta, EventTotals]]:
    return [(minutes(ago), totals(per_minute)) for ago in range(55, 1, -1)]


def test_a_rejected_batch_is_told_though_a_busy_hour_hides_it() -> None:
    """A new client without a field: 4,001 of 4,001 events, after 118,000 good ones in the hour."""
    bad = (minutes(1), totals(4_001, 4_001, {MISSING: 4_001}))
    record = throughput_of(*hour_of_good_events(), bad)
    assert record.last_hour(NOW).quarantined_share < LIMITS.quarantined_share_max

    told = "100 % of 4,001 events are in quarantine (limit 25 %): 4,001 missing_required at eventParams."
    assert describe_quarantine_excess(record, LIMITS, NOW) == f"Since 12:01 UTC {told}"
    later = record.merged(Throughput().with_batch(NOW + minutes(20), totals(2_150)), now=NOW + minutes(20))
    assert describe_quarantine_excess(later, LIMITS, NOW + minutes(20)) == f"From 12:01 to 12:02 UTC {told}"
    assert not describe_quarantine_excess(later, LIMITS, NOW + minutes(65))


@pytest.mark.parametrize(
    ("batches", "limits", "told"),
    [
        # Too few events, or too small a share of the minutes.
        ([(99, 99)], LIMITS, ""),
        ([(100, 100)], LIMITS, "Since 12:01 UTC 100 % of 100 events"),
        ([(4_000, 1_000)], LIMITS, ""),
        ([(4_000, 1_001)], LIMITS, "Since 12:01 UTC 25 % of 4,000 events"),
        # Declared otherwise.
        ([(4_000, 4_000)], replace(LIMITS, quarantined_run_share=1.0), ""),
        ([(4_000, 4_000)], replace(LIMITS, quarantined_share_max=1.0), ""),
        ([(4_000, 4_000)], replace(LIMITS, quarantined_events_min=5_000), ""),
        # Good events between bad ones.
        ([(4_000, 4_000), (50, 0), (4_000, 4_000)], LIMITS, "Since 11:59 UTC 99 % of 8,050 events"),
        # Between them the rest of the hour.
        ([(4_000, 4_000), (30_000, 0), (500, 500)], LIMITS, "From 11:59 to 12:00 UTC 100 % of 4,000 events"),
    ],
)
def test_the_run_of_minutes_is_told_from_a_share_and_a_number_of_events(
    batches: list[tuple[int, int]], limits: HealthLimits, told: str
) -> None:
    recent = [(minutes(len(batches) - number), totals(*batch)) for number, batch in enumerate(batches)]
    good = [(minutes(ago), totals(10_000)) for ago in range(55, 5, -1)]

    found = describe_quarantine_excess(throughput_of(*good, *recent), limits, NOW)

    assert found.startswith(told) if told else not found


def test_the_reason_that_grew_is_named_first() -> None:
    """Some events lacked a price before."""
    usual = {("missing_required", "price"): 40}
    good = [(minutes(ago), totals(2_000, 40, usual)) for ago in range(55, 2, -1)]
    bad = (minutes(1), totals(4_000, 3_000, {("missing_required", "price"): 100, MISMATCH: 99, MISSING: 2_900}))
    many = (minutes(1), totals(4_000, 3_000, {("missing_required", "price"): 2_999, MISSING: 1_500}))
    always = [(minutes(ago), totals(2_000, 40, {("missing_required", "price"): 1_400})) for ago in range(55, 2, -1)]

    assert "2,900 missing_required at eventParams, 99 type_mismatch at level" in describe_quarantine_excess(
        throughput_of(*good, bad), LIMITS, NOW
    )
    assert "(limit 25 %): 1,500 missing_required at eventParams" in describe_quarantine_excess(
        throughput_of(*always, many), LIMITS, NOW
    )


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 500), st.floats(0, 1)), max_size=12),
    st.sampled_from([0.1, 0.25, 0.5]),
)
def test_the_worst_run_exceeds_the_share_by_most_events_of_all_runs(
    batches: list[tuple[int, int, float]], share: float
) -> None:
    record = throughput_of(*((minutes(ago), totals(events, int(events * bad))) for ago, events, bad in batches))
    spans = [total for _, total in sorted(record.spans.items(), key=lambda item: item[0])]

    def excess(run: list[EventTotals]) -> float:
        return sum(total.quarantined - share * total.events for total in run)

    runs = [spans[first:end] for first in range(len(spans)) for end in range(first + 1, len(spans) + 1)]
    most = max(map(excess, runs), default=0.0)

    found = record.worst_run(NOW, share=share)
    if most <= 1e-9:
        assert found is None or excess([found.total]) <= 1e-6
    else:
        assert found is not None
        assert excess([found.total]) == pytest.approx(most)


@pytest.mark.parametrize("off_by", [0, 1, 4])
def test_a_replayed_batch_is_no_longer_told(tmp_path: Path, off_by: int) -> None:
    objects, control = LocalObjects(tmp_path), paths.pipeline_control("games")
    bad = (minutes(10), totals(4_001, 4_001, {MISSING: 4_001}))
    record = throughput_of(*((minutes(ago), totals(2_150)) for ago in range(55, 10, -1)), bad)
    objects.put(paths.throughput(control), record.encode())
    assert describe_quarantine_excess(read_with_replays(objects, "games", LIMITS, NOW), LIMITS, NOW)

    replayed = EventTotals(quarantined=4_001, reasons={MISSING: 4_001})
    again = Throughput().with_batch(NOW - minutes(10 - off_by), replayed)
    record_replayed(objects, control, again, now=NOW)

    assert not describe_quarantine_excess(read_with_replays(objects, "games", LIMITS, NOW), LIMITS, NOW)
