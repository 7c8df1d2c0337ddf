"""A stream lends a table between two batches and catches up exactly when the turn ends, however it ends."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.lease import Lease
from deltaworks.control.locks.write_turn import TurnRecord, WriteTurn, write_turn
from deltaworks.errors import ConcurrencyError
from tests.unit.engine.batch_records import asked_turn
from tests.unit.engine.hold_stage import Crash, Stage, crash_at
from tests.waiting import PATIENCE_SECONDS, eventually

FAST = {"by": "tests", "poll_seconds": 0.02, "ttl_seconds": 600.0, "wait_seconds": PATIENCE_SECONDS}


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage.at(tmp_path)


def turn_of(stage: Stage) -> TurnRecord | None:
    found = stage.objects.get(paths.turn_request("shop", "orders"))
    return TurnRecord.decode(found.data) if found else None


class Job:
    """A job that has the turn in a thread until it is told to end."""

    def __init__(self, stage: Stage, **options: object) -> None:
        self._end = threading.Event()
        self._had = threading.Event()
        self.turn: WriteTurn | None = None
        self._stage = stage
        self._options = {**FAST, **options}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        wanted = write_turn(self._stage.objects, "shop", "orders", **self._options)  # type: ignore[arg-type]
        with contextlib.suppress(ConcurrencyError), wanted as turn:
            self.turn = turn
            self._had.set()
            self._end.wait()

    def wait_until_asked_turn(self) -> None:
        eventually(lambda: getattr(turn_of(self._stage), "state", "") in ("asked", "granted"), "the job asks")

    def wait_until_had(self) -> None:
        assert self._had.wait(PATIENCE_SECONDS)

    def end(self) -> None:
        self._end.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()


@pytest.fixture
def lease(stage: Stage) -> Lease:
    """The stream's: without it a job takes the turn itself."""
    lease = Lease(stage.objects, paths.pipeline_control("shop", "lease.json"), ttl_seconds=60, name="shop")
    lease.acquire(wait_seconds=1)
    return lease


def test_commits_are_held_back_while_the_turn_lasts_and_caught_up_with_after_it(stage: Stage, lease: Lease) -> None:
    processor = stage.processor()
    stage.land(processor, 0)
    job = Job(stage)
    job.wait_until_asked_turn()

    stage.land(processor, 1)
    job.wait_until_had()
    stage.land(processor, 2)
    assert stage.landed("orders") == stage.expected(0)
    assert stage.landed("clicks") == stage.expected(0, 1, 2)
    (held,) = processor.held
    assert (held.reason, held.since_batch, held.by) == ("write_turn", 1, "tests")
    job.end()
    stage.land(processor, 3)

    assert stage.landed("orders") == stage.expected(0, 1, 2, 3)
    assert [step for step in stage.steps("orders") if step[1] != "held"] == [
        (0, "committed"),
        (1, "caught_up"),
        (2, "caught_up"),
        (3, "committed"),
    ]
    assert processor.held == []
    assert stage.objects.list(paths.requests("shop")) == []


def test_the_turn_is_given_while_no_batch_comes(stage: Stage, lease: Lease) -> None:
    processor = stage.processor()
    job = Job(stage)
    job.wait_until_asked_turn()

    assert processor.serve_requests()
    job.wait_until_had()
    job.end()
    processor.serve_requests()

    assert processor.held == []


def test_a_stream_that_starts_respects_a_turn_taken_while_none_ran(stage: Stage) -> None:
    stage.land(stage.processor(), 0)
    job = Job(stage)
    job.wait_until_had()

    processor = stage.processor()
    stage.land(processor, 1)
    assert stage.landed("orders") == stage.expected(0)
    job.end()
    stage.land(processor, 2)

    assert stage.landed("orders") == stage.expected(0, 1, 2)


def test_a_stream_that_is_restarted_goes_on_holding_the_table(stage: Stage, lease: Lease) -> None:
    processor = stage.processor()
    job = Job(stage)
    job.wait_until_asked_turn()
    stage.land(processor, 0)
    job.wait_until_had()

    successor = stage.processor()
    stage.land(successor, 1)
    assert stage.landed("orders") == stage.expected()
    job.end()
    successor.serve_requests()

    assert stage.landed("orders") == stage.expected(0, 1)


def test_a_turn_of_a_job_that_was_killed_comes_back_after_its_time_to_live(stage: Stage, lease: Lease) -> None:
    processor = stage.processor()
    key = paths.turn_request("shop", "orders")
    stage.objects.put(key, asked_turn("orders").encode())
    stage.land(processor, 0)
    granted = turn_of(stage)
    assert granted is not None
    assert granted.state == "granted"
    assert stage.landed("orders") == stage.expected()
    # The last the job says: from now on it is silent, and has little time.
    stage.objects.put(key, replace(granted, beat=granted.renewal + 1, ttl_seconds=0.3).encode())

    eventually(
        lambda: processor.serve_requests() and stage.landed("orders") == stage.expected(0), "the stream takes it back"
    )
    stage.land(processor, 1)

    assert stage.landed("orders") == stage.expected(0, 1)


def test_a_crash_between_holding_and_granting_leaves_nothing_held(stage: Stage, lease: Lease) -> None:
    processor = stage.processor(fault=crash_at("held:orders"))
    key, record = paths.turn_request("shop", "orders"), asked_turn("orders")
    stage.objects.put(key, record.encode())
    with pytest.raises(Crash):
        processor.serve_requests()
    assert "orders" in PipelineHome(stage.objects, "shop").held.read()
    # The job has waited for long enough.
    stage.objects.put(key, replace(record, state="released").encode())

    successor = stage.processor()
    stage.land(successor, 0)
    successor.serve_requests()

    assert stage.landed("orders") == stage.expected(0)


@pytest.mark.parametrize("point", ["caught_up:orders", "recorded:orders"])
def test_a_crash_while_catching_up_after_a_turn_is_gone_on_with(stage: Stage, lease: Lease, point: str) -> None:
    processor = stage.processor(fault=crash_at(point))
    job = Job(stage)
    job.wait_until_asked_turn()
    stage.land(processor, 0)
    job.wait_until_had()
    stage.land(processor, 1)
    job.end()
    with pytest.raises(Crash):
        processor.serve_requests()

    stage.land(stage.processor(), 2)

    assert stage.landed("orders") == stage.expected(0, 1, 2)


def test_a_table_that_breaks_during_its_turn_is_suspended_after_it(
    stage: Stage, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltaworks.engine.commit.RETRY_SECONDS", (0.0,))
    processor = stage.processor()
    job = Job(stage)
    job.wait_until_asked_turn()
    stage.land(processor, 0)
    job.wait_until_had()
    mend = stage.break_table("orders")
    job.end()

    processor.serve_requests()
    (held,) = processor.held
    assert (held.reason, held.since_batch) == ("suspended", 0)
    mend()
    stage.processor()

    assert stage.landed("orders") == stage.expected(0)


def test_quarantine_can_be_lent_too(stage: Stage, lease: Lease) -> None:
    processor = stage.processor()
    record = asked_turn("quarantine", reason="reprocess")
    key = paths.turn_request("shop", "quarantine")
    stage.objects.put(key, record.encode())
    stage.land(processor, 0)
    assert stage.landed("quarantine") == stage.expected()
    assert [held.reason for held in processor.held] == ["reprocess"]

    stage.objects.delete(key)
    processor.serve_requests()

    assert stage.landed("quarantine") == stage.expected(0)


def test_a_turn_of_a_table_nobody_knows_is_refused(stage: Stage, lease: Lease) -> None:
    processor = stage.processor()
    with pytest.raises(Exception, match="no bronze table"):  # noqa: SIM117
        with _while_served(processor), write_turn(stage.objects, "shop", "nothing", **FAST):  # type: ignore[arg-type]
            pass

    assert processor.held == []


class _while_served:
    """Serves requests from a thread."""

    def __init__(self, processor: object) -> None:
        self._processor = processor
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        while not self._ended.wait(0.05):
            self._processor.serve()  # type: ignore[attr-defined]

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
