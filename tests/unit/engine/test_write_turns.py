"""A stream grants a table's write turn between two batches, and catches up exactly when the turn ends."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.lease import Lease
from deltaworks.control.locks.write_turn import TurnRecord, WriteTurn, write_turn
from deltaworks.errors import ConcurrencyError
from deltaworks.testing import present
from tests.crashes import Crash, crash_at
from tests.unit.engine.batch_records import asked_turn
from tests.unit.engine.hold_harness import Harness
from tests.waiting import PATIENCE_SECONDS, eventually

FAST = {"by": "tests", "poll_seconds": 0.02, "ttl_seconds": 600.0, "wait_seconds": PATIENCE_SECONDS}


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness.at(tmp_path)


def turn_of(harness: Harness) -> TurnRecord | None:
    found = harness.objects.get(paths.turn_request("shop", "orders"))
    return TurnRecord.decode_or_none(found.data) if found else None


class Job:
    """A job that holds the turn in a thread until it is ended."""

    def __init__(self, harness: Harness, **options: object) -> None:
        self._end = threading.Event()
        self._had = threading.Event()
        self.turn: WriteTurn | None = None
        self._stage = harness
        self._options = {**FAST, **options}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        wanted = write_turn(self._stage.objects, "shop", "orders", **self._options)  # type: ignore[arg-type]
        with contextlib.suppress(ConcurrencyError), wanted as turn:
            self.turn = turn
            self._had.set()
            self._end.wait()

    def wait_until_requested(self) -> None:
        eventually(lambda: getattr(turn_of(self._stage), "state", "") in ("requested", "granted"), "the request")

    def wait_until_granted(self) -> None:
        assert self._had.wait(PATIENCE_SECONDS)

    def end(self) -> None:
        self._end.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()


@pytest.fixture
def lease(harness: Harness) -> Lease:
    """The stream's lease; without it a job takes the turn itself."""
    lease = Lease(harness.objects, paths.pipeline_control("shop", "lease.json"), ttl_seconds=60, name="shop")
    lease.acquire(wait_seconds=1)
    return lease


def test_commits_are_held_during_the_turn_and_catch_up_after_it(harness: Harness, lease: Lease) -> None:
    processor = harness.processor()
    harness.land(processor, 0)
    job = Job(harness)
    job.wait_until_requested()

    harness.land(processor, 1)
    job.wait_until_granted()
    harness.land(processor, 2)
    assert harness.landed("orders") == harness.expected(0)
    assert harness.landed("clicks") == harness.expected(0, 1, 2)
    (held,) = processor.held
    assert (held.reason, held.since_batch, held.by) == ("write_turn", 1, "tests")
    job.end()
    harness.land(processor, 3)

    assert harness.landed("orders") == harness.expected(0, 1, 2, 3)
    assert [step for step in harness.steps("orders") if step[1] != "held"] == [
        (0, "committed"),
        (1, "caught_up"),
        (2, "caught_up"),
        (3, "committed"),
    ]
    assert processor.held == []
    assert harness.objects.list(paths.requests("shop")) == []


def test_the_turn_is_granted_while_no_batch_runs(harness: Harness, lease: Lease) -> None:
    processor = harness.processor()
    job = Job(harness)
    job.wait_until_requested()

    assert processor.serve_requests()
    job.wait_until_granted()
    job.end()
    processor.serve_requests()

    assert processor.held == []


def test_a_starting_stream_respects_a_turn_taken_while_no_stream_ran(harness: Harness) -> None:
    harness.land(harness.processor(), 0)
    job = Job(harness)
    job.wait_until_granted()

    processor = harness.processor()
    harness.land(processor, 1)
    assert harness.landed("orders") == harness.expected(0)
    job.end()
    harness.land(processor, 2)

    assert harness.landed("orders") == harness.expected(0, 1, 2)


def test_a_restarted_stream_keeps_holding_the_table(harness: Harness, lease: Lease) -> None:
    processor = harness.processor()
    job = Job(harness)
    job.wait_until_requested()
    harness.land(processor, 0)
    job.wait_until_granted()

    successor = harness.processor()
    harness.land(successor, 1)
    assert harness.landed("orders") == harness.expected()
    job.end()
    successor.serve_requests()

    assert harness.landed("orders") == harness.expected(0, 1)


def test_a_killed_jobs_turn_expires_after_its_time_to_live(harness: Harness, lease: Lease) -> None:
    processor = harness.processor()
    key = paths.turn_request("shop", "orders")
    harness.objects.put(key, asked_turn("orders").encode())
    harness.land(processor, 0)
    granted = present(turn_of(harness))
    assert granted.state == "granted"
    assert harness.landed("orders") == harness.expected()
    # The last the job says: from now on it is silent, and has little time.
    harness.objects.put(key, granted.replace(renewal=granted.renewal + 1, ttl_seconds=0.3).encode())

    eventually(
        lambda: processor.serve_requests() and harness.landed("orders") == harness.expected(0),
        "the stream takes it back",
    )
    harness.land(processor, 1)

    assert harness.landed("orders") == harness.expected(0, 1)


def test_a_crash_between_hold_and_grant_leaves_no_table_held(harness: Harness, lease: Lease) -> None:
    processor = harness.processor(fault=crash_at("held:orders"))
    key, record = paths.turn_request("shop", "orders"), asked_turn("orders")
    harness.objects.put(key, record.encode())
    with pytest.raises(Crash):
        processor.serve_requests()
    assert "orders" in PipelineHome(harness.objects, "shop").held.read()
    # The job has waited for long enough.
    harness.objects.put(key, record.replace(state="released").encode())

    successor = harness.processor()
    harness.land(successor, 0)
    successor.serve_requests()

    assert harness.landed("orders") == harness.expected(0)


@pytest.mark.parametrize("point", ["caught_up:orders", "recorded:orders"])
def test_catching_up_after_a_turn_resumes_after_a_crash(harness: Harness, lease: Lease, point: str) -> None:
    processor = harness.processor(fault=crash_at(point))
    job = Job(harness)
    job.wait_until_requested()
    harness.land(processor, 0)
    job.wait_until_granted()
    harness.land(processor, 1)
    job.end()
    with pytest.raises(Crash):
        processor.serve_requests()

    harness.land(harness.processor(), 2)

    assert harness.landed("orders") == harness.expected(0, 1, 2)


def test_a_table_that_breaks_during_its_turn_is_suspended_after_it(
    harness: Harness, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltaworks.engine.commit.RETRY_SECONDS", (0.0,))
    processor = harness.processor()
    job = Job(harness)
    job.wait_until_requested()
    harness.land(processor, 0)
    job.wait_until_granted()
    mend = harness.break_table("orders")
    job.end()

    processor.serve_requests()
    (held,) = processor.held
    assert (held.reason, held.since_batch) == ("suspended", 0)
    mend()
    harness.processor()

    assert harness.landed("orders") == harness.expected(0)


def test_quarantine_supports_write_turns(harness: Harness, lease: Lease) -> None:
    processor = harness.processor()
    record = asked_turn("quarantine", reason="reprocess")
    key = paths.turn_request("shop", "quarantine")
    harness.objects.put(key, record.encode())
    harness.land(processor, 0)
    assert harness.landed("quarantine") == harness.expected()
    assert [held.reason for held in processor.held] == ["reprocess"]

    harness.objects.delete(key)
    processor.serve_requests()

    assert harness.landed("quarantine") == harness.expected(0)


def test_a_turn_of_an_unknown_table_is_refused(harness: Harness, lease: Lease) -> None:
    processor = harness.processor()
    with pytest.raises(Exception, match="no bronze table"):  # noqa: SIM117
        with _while_served(processor), write_turn(harness.objects, "shop", "nothing", **FAST):  # type: ignore[arg-type]
            pass

    assert processor.held == []


class _while_served:
    """Serves requests in a thread."""

    def __init__(self, processor: object) -> None:
        self._processor = processor
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        while not self._ended.wait(0.05):
            self._processor.serve_requests()  # type: ignore[attr-defined]

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
