"""The truth is right: a slow reading of the emitted bytes comes to the same answers."""

from __future__ import annotations

import gzip
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generator.delivery import Delivery
from generator.games import deliveries, write_files
from generator.reference_scan import find_next_object, find_record_start, scan
from generator.settings import FaultRates, GamesSettings
from generator.truth import GamesTruth, TruthCounter
from tests.examples import examples
from tests.unit.generator import reference_reader
from tests.unit.generator.reference_reader import Reading, Row

MANY_FAULTS = FaultRates(
    duplicates=0.05,
    late=0.05,
    malformed=0.05,
    without_time=0.01,
    unknown_name=0.01,
    type_mismatch=0.01,
    missing_required=0.01,
)


def emit(options: GamesSettings) -> tuple[list[Delivery], GamesTruth]:
    counter = TruthCounter(options)
    emitted = list(deliveries(options, counter))
    return emitted, counter.truth()


def assert_truth(truth: GamesTruth, reading: Reading, slack_files: int) -> None:
    firsts = reading.first_arrivals
    assert reading.pieces == truth.pieces
    assert reading.reasons == truth.quarantine_reasons
    assert sum(reading.reasons.values()) == truth.quarantined_rows
    assert {"events": len(reading.rows), **Counter(row.name for row in reading.rows)} == truth.bronze_rows
    assert len(firsts) == truth.distinct_events
    assert Counter((row.hour, row.name) for row in reading.rows) == truth.delivered_per_hour
    assert Counter((row.hour, row.name) for row in firsts) == truth.events_per_hour
    assert reference_reader.bookings(firsts) == truth.bookings_per_hour
    active = {day: len(devices) for day, devices in reference_reader.active_devices(firsts).items()}
    assert active == truth.daily_active_users
    assert reference_reader.retention(firsts) == truth.retention
    assert reference_reader.droppable(reading.rows, slack_files) == truth.droppable_per_hour


@pytest.mark.parametrize("seed", range(3))
def test_the_truth_is_what_a_slow_reading_of_the_bytes_finds(seed: int) -> None:
    options = GamesSettings(seed=seed, players=300, days=9, events_per_file=60, rates=MANY_FAULTS)

    emitted, truth = emit(options)

    assert truth.pieces > 8_000
    assert truth.bookings > 0
    assert min(truth.quarantine_reasons.values()) > 0
    assert sum(truth.droppable_per_hour.values()) > 0
    last = max(truth.daily_active_users)
    for day, cohort in truth.retention.items():
        assert (cohort.retained_day_1 is None) == (day + timedelta(days=1) >= last)
        assert (cohort.retained_day_7 is None) == (day + timedelta(days=7) >= last)
    assert max(cohort.retained_day_7 or 0 for cohort in truth.retention.values()) > 0
    assert_truth(truth, reference_reader.read(emitted), options.live_slack_files)


@settings(max_examples=examples(20), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    players=st.integers(1, 25),
    events_per_file=st.integers(1, 40),
    buffer_seconds=st.integers(1, 20_000),
    slack=st.integers(0, 3),
    malformed=st.sampled_from([0.0, 0.1, 0.6]),
    duplicates=st.sampled_from([0.0, 0.2]),
)
def test_the_truth_holds_for_any_packing_and_rate(
    *,
    seed: int,
    players: int,
    events_per_file: int,
    buffer_seconds: int,
    slack: int,
    malformed: float,
    duplicates: float,
) -> None:
    options = GamesSettings(
        seed=seed,
        players=players,
        days=2,
        events_per_file=events_per_file,
        buffer_seconds=buffer_seconds,
        live_slack_files=slack,
        rates=FaultRates(malformed=malformed, duplicates=duplicates, late=0.1),
    )

    emitted, truth = emit(options)

    assert_truth(truth, reference_reader.read(emitted), slack)


@pytest.mark.parametrize("seed", range(3))
def test_every_resume_strategy_finds_the_same_pieces(seed: int) -> None:
    rates = FaultRates(malformed=0.5)
    emitted, truth = emit(GamesSettings(seed=seed, players=60, days=2, events_per_file=50, rates=rates))

    for delivery in emitted:
        data = gzip.decompress(delivery.body)
        pieces = list(scan(data, find_record_start))
        assert pieces == list(scan(data, find_next_object))
        assert len(pieces) == delivery.events
        assert b"".join(piece.raw for piece in pieces) == data
        unreadable = [not piece.is_readable for piece in pieces]
        assert not any(one and other for one, other in pairwise(unreadable))
    assert min(truth.quarantine_rows[kind] for kind in ("truncated", "garbage", "invalid_utf8")) > 20


def copies_of(reading: Reading) -> list[tuple[Row, Row]]:
    by_id: dict[str, list[Row]] = {}
    for row in reading.rows:
        by_id.setdefault(row.event_id, []).append(row)
    return [(rows[0], rows[1]) for rows in by_id.values() if len(rows) > 1]


def test_copies_of_an_event_differ_in_time_only_and_lie_files_apart() -> None:
    options = GamesSettings(players=150, days=4, events_per_file=40, rates=MANY_FAULTS)
    copies = copies_of(reference_reader.read(emit(options)[0]))

    assert len(copies) > 100
    for first, second in copies:
        assert second.file - first.file >= options.min_copy_distance_files
        assert first.params == second.params
        assert timedelta(minutes=2) <= abs(second.at - first.at) <= timedelta(hours=20)
    assert any(first.at.date() != second.at.date() for first, second in copies), "none over midnight"
    assert any(first.at > second.at for first, second in copies), "the second sending never arrives first"


def test_the_truth_survives_being_written_and_read(tmp_path: Path) -> None:
    options = GamesSettings(players=40, days=3, events_per_file=50, rates=MANY_FAULTS)

    truth = write_files(options, tmp_path)

    assert GamesTruth.read(tmp_path / "truth.json") == truth
    written = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.rglob("*.gz")}
    assert written == {delivery.key: delivery.body for delivery in deliveries(options)}


def test_nothing_goes_wrong_when_no_rate_is_set() -> None:
    truth = emit(GamesSettings(players=50, days=2, rates=FaultRates.none()))[1]

    assert truth.quarantined_rows == 0
    assert truth.pieces == truth.accepted_rows == truth.distinct_events
    assert truth.droppable_per_hour == {}
