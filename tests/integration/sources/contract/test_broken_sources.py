"""Runs each check of the contract on a source that breaks that promise, which it must detect."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StopFlag
from deltaworks.control.objects import open_objects
from tests.integration.sources.contract import checks
from tests.integration.sources.contract.conftest import Bench
from tests.integration.sources.contract.source_harnesses import LIMIT_EVENTS
from tests.waiting import eventually

BenchOn = Callable[..., Bench]
SENT, LATER = range(16), range(16, 24)


def test_a_source_that_opens_its_objects_in_the_driver_is_detected(make_bench: BenchOn) -> None:
    bench = make_bench("s3_sqs")
    bench.harness.send(SENT)
    bench.harness.wire.requests.clear()

    bench.run(broken="in_driver")

    assert checks.each_event_once(bench.rows(), SENT) == []
    reading = [each for each in list(bench.harness.wire.requests) if bench.harness.is_reading(each.head)]
    wrong = checks.read_in_tasks(reading, bench.readings(), driver=bench.drivers.pid)
    assert "rows were read outside of executors" in " ".join(wrong)


def test_an_exceeded_limit_is_detected(make_bench: BenchOn) -> None:
    bench = make_bench("kafka", max_records_per_batch=LIMIT_EVENTS + 2)
    bench.harness.send(SENT)

    bench.run()

    assert "events of each batch" in " ".join(checks.within_limit(bench.rows(), most=LIMIT_EVENTS))


def test_positions_in_another_order_are_detected(make_bench: BenchOn) -> None:
    bench = make_bench("kafka")
    bench.harness.send(SENT)

    bench.run(broken="reversed")

    assert checks.each_event_once(bench.rows(), SENT) == []
    assert "the order in" in " ".join(checks.in_order(bench.rows()))


def test_a_batch_whose_end_moves_is_detected(make_bench: BenchOn) -> None:
    bench = make_bench("kafka")
    bench.harness.send(SENT)

    first = bench.start(broken="growing", fail=["files_written", 1])
    assert "error" in (bench.drivers.answer() or {})
    bench.harness.send(LATER)
    again = bench.start(broken="growing", fail=["files_written", 1])
    assert "error" in (bench.drivers.answer() or {})

    wrong = checks.reread_identically(bench.batches_read(first), bench.batches_read(again), batches=[0])
    assert wrong == ["batch 0 was read as two different ones"]


@pytest.mark.parametrize(("broken", "noticed"), [("forgetful", "missing"), ("doubling", "too many")])
def test_lost_or_duplicated_events_are_detected(make_bench: BenchOn, broken: str, noticed: str) -> None:
    bench = make_bench("kafka")
    bench.harness.send(SENT)

    bench.run(broken=broken)

    assert noticed in " ".join(checks.each_event_once(bench.rows(), SENT))


def test_a_run_that_reads_later_input_is_detected(make_bench: BenchOn) -> None:
    bench = make_bench("kafka")
    bench.harness.send(SENT)

    bench.start(available_now=False, hold=["files_written", 1])
    bench.held()
    bench.harness.send(LATER)
    bench.go()
    eventually(lambda: len(bench.rows()) == len(SENT) + len(LATER), "all rows")
    key = paths.pipeline_control(bench.harness.name, "stop.json")
    StopFlag(open_objects(bench.harness.servers.lake), key).set(by="a test", reason="it would never end")
    assert bench.ended()["ended_by"] == "stop flag"

    assert checks.exactly_these(bench.rows(), SENT) == [f"too many: {list(LATER)}"]


def test_a_source_that_fails_on_unreadable_input_is_detected(make_bench: BenchOn) -> None:
    bench = make_bench("kafka")
    bench.harness.send(SENT)
    bench.harness.send_malformed()

    with pytest.raises(AssertionError, match="TASKS_CRASH"):
        bench.run(broken="strict")
