"""Checks the source contract for every registered source, against its server on a cluster of two workers.

A source added to `SOURCES` is tested here too, and fails until it has a harness in `HARNESSES`.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from deltaworks.sources.registry import SOURCES
from sandbox.servers.fault_proxy import Action, Fault
from tests.integration.sources.contract import checks
from tests.integration.sources.contract.conftest import Bench
from tests.integration.sources.contract.source_harnesses import HARNESSES, LIMIT_EVENTS
from tests.integration.sources.contract.wire import Request
from tests.waiting import eventually

KINDS = sorted(SOURCES)
BenchOn = Callable[..., Bench]
SENT, LATER = range(24), range(24, 32)
LIMIT_BYTES, PAD_BYTES = 90_000, 10_000
AWAY_SECONDS = 4.0


@dataclass
class History:
    """Two runs: the first was held in its first batch while more events arrived; the second started afterwards."""

    bench: Bench
    first: dict[str, Any]
    after_first: list[dict[str, Any]]
    after_second: list[dict[str, Any]]
    reading: list[Request]
    driver: int


@pytest.fixture(scope="module", params=KINDS)
def history(request: pytest.FixtureRequest, make_bench: BenchOn) -> History:
    bench = make_bench(request.param)
    bench.harness.send(SENT)
    bench.harness.wire.requests.clear()
    bench.start(hold=["files_written", 1])
    bench.held()
    bench.harness.send(LATER)
    bench.go()
    first = bench.ended()
    after_first = bench.rows()
    bench.run()
    reading = [each for each in list(bench.harness.wire.requests) if bench.harness.is_reading(each.head)]
    return History(bench, first, after_first, bench.rows(), reading, bench.drivers.pid)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_registered_source_has_a_server() -> None:
    assert set(HARNESSES) == set(SOURCES)


def test_available_now_reads_the_input_available_at_its_start_and_ends(history: History) -> None:
    assert history.first["ended_by"] == "available now"
    assert checks.exactly_these(history.after_first, SENT) == []


def test_the_next_run_continues_at_the_end_of_the_last_one(history: History) -> None:
    assert checks.each_event_once(history.after_second, [*SENT, *LATER]) == []


def test_events_of_a_lane_keep_their_order(history: History) -> None:
    assert checks.in_order(history.after_second) == []


def test_no_batch_exceeds_the_limit(history: History) -> None:
    assert checks.within_limit(history.after_second, most=LIMIT_EVENTS) == []


def test_rows_are_read_in_tasks_of_both_workers_and_not_in_the_driver(history: History) -> None:
    given = history.bench.readings()

    assert checks.read_in_tasks(history.reading, given, driver=history.driver) == []
    assert {told["host"] for told in given} == {socket.gethostname()}


def test_a_byte_limit_is_respected_too(kind: str, make_bench: BenchOn) -> None:
    if HARNESSES[kind].bytes_let_in is None:
        pytest.skip(f"{kind} has no limit of bytes")
    bench = make_bench(kind, max_bytes_per_batch=LIMIT_BYTES)
    bench.harness.send(range(16), pad_bytes=PAD_BYTES)

    bench.run()

    assert checks.each_event_once(bench.rows(), range(16)) == []
    assert checks.within_limit(bench.rows(), most=HARNESSES[kind].bytes_let_in) == []


def test_an_uncommitted_batch_is_read_again_identically(kind: str, make_bench: BenchOn) -> None:
    bench = make_bench(kind)
    bench.harness.send(SENT)

    first = bench.start(kill=["files_written", 2])
    assert bench.drivers.answer() is None, "the driver was to be killed"
    bench.harness.send(LATER)
    again = bench.start()
    bench.ended()

    assert checks.reread_identically(bench.batches_read(first), bench.batches_read(again), batches=[1]) == []
    assert checks.each_event_once(bench.rows(), [*SENT, *LATER]) == []


def test_no_input_and_empty_huge_or_malformed_input_never_stop_the_stream(kind: str, make_bench: BenchOn) -> None:
    bench = make_bench(kind)
    assert bench.run()["rows"] == 0
    bench.harness.send(range(4))
    bench.harness.send_malformed()
    bench.harness.send(range(4, 8))

    assert bench.run()["ended_by"] == "available now"

    assert checks.each_event_once(bench.rows(), range(8)) == []
    codes = {reason["code"] for row in bench.rows("quarantine") for reason in row["reasons"]}
    assert codes == bench.harness.bad_codes


def test_a_slow_server_delays_the_stream_without_an_error(kind: str, make_bench: BenchOn) -> None:
    bench = make_bench(kind)
    bench.harness.send(range(16))
    bench.harness.wire.delay_seconds = 0.3

    bench.run()

    assert checks.each_event_once(bench.rows(), range(16)) == []


def test_broken_connections_and_server_errors_neither_lose_nor_duplicate_events(kind: str, make_bench: BenchOn) -> None:
    bench = make_bench(kind)
    bench.harness.send(SENT)
    wire, faults = bench.harness.wire, bench.harness.faults
    wire.cut, wire.cut_every = bench.harness.row_request_description(), 2
    if faults is not None:
        faults.incidents.clear()
        faults.faults = [Fault(action=Action.UNAVAILABLE, path=bench.harness.refused_paths, every=3)]

    bench.run()

    assert wire.cuts >= 2
    assert faults is None or faults.incidents
    assert checks.each_event_once(bench.rows(), SENT) == []


def test_reading_resumes_after_a_server_outage(kind: str, make_bench: BenchOn) -> None:
    bench = make_bench(kind)
    bench.harness.send(SENT)
    wire = bench.harness.wire
    wire.away = True

    bench.start()
    eventually(lambda: wire.refused > 0, "somebody to ask in vain")
    time.sleep(AWAY_SECONDS)
    wire.heal()
    answer = bench.drivers.answer()

    assert answer is not None
    if "error" in answer:
        assert answer["retryable"], answer["message"]
        bench.run()
    assert checks.each_event_once(bench.rows(), SENT) == []
