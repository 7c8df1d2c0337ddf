"""Backoff between runs that fail soon after their start; attempts of a call, and waits between them."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.control.background import attempts
from deltaworks.control.backoff import MAX_WAIT_SECONDS, POLL_SECONDS, STABLE_RUN_SECONDS, RestartBackoff, wait_seconds
from deltaworks.control.objects import LocalObjects
from deltaworks.errors import ContractError, DeltaworksError, FencedError, TransientError

KEY = "control/failures.json"


class Clock:
    """A clock that only sleeping advances."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
        self.slept: list[float] = []

    def __call__(self) -> datetime:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def make(objects: LocalObjects, clock: Clock) -> RestartBackoff:
    return RestartBackoff(objects, KEY, clock=clock, sleep=clock.sleep)


def test_each_early_failure_in_a_row_waits_about_twice_as_long_across_processes(local_objects: LocalObjects) -> None:
    clock, waits = Clock(), []
    for _ in range(5):
        seconds = make(local_objects, clock).record_failure()
        assert round(make(local_objects, clock).wait(), 6) == seconds
        waits.append(seconds)

    assert all(5 * 2**n <= wait <= 6 * 2**n for n, wait in enumerate(waits))


def test_a_wait_never_grows_beyond_its_limit_however_many_failures(local_objects: LocalObjects) -> None:
    local_objects.put(KEY, b'{"failures": 5000}')
    backoff = make(local_objects, Clock())

    assert backoff.record_failure() == MAX_WAIT_SECONDS
    assert backoff.read().failures == 5001


def test_a_non_retryable_failure_waits_the_maximum_immediately(local_objects: LocalObjects) -> None:
    assert make(local_objects, Clock()).record_failure(retryable=False) == MAX_WAIT_SECONDS
    assert [wait_seconds(n, retryable=False) for n in (1, 9)] == [MAX_WAIT_SECONDS] * 2


def test_the_wait_of_a_launcher_counts(local_objects: LocalObjects) -> None:
    clock = Clock()
    seconds = make(local_objects, clock).record_failure(retryable=False)

    clock.advance(seconds - 20)
    assert round(make(local_objects, clock).wait(), 6) == 20
    clock.advance(1)
    assert make(local_objects, clock).wait() == 0.0


def test_a_failure_after_a_long_run_counts_as_the_first(local_objects: LocalObjects) -> None:
    local_objects.put(KEY, b'{"failures": 9}')
    clock = Clock()
    backoff = make(local_objects, clock)
    clock.advance(STABLE_RUN_SECONDS + 1)

    assert backoff.record_failure() < 10
    assert backoff.read().failures == 1


def test_waiting_does_not_count_as_running(local_objects: LocalObjects) -> None:
    clock = Clock()
    make(local_objects, clock).record_failure(retryable=False)
    backoff = make(local_objects, clock)
    backoff.wait()
    clock.advance(STABLE_RUN_SECONDS - 60)

    backoff.record_failure()

    assert backoff.read().failures == 2


def test_a_successful_run_resets_the_count(local_objects: LocalObjects) -> None:
    make(local_objects, Clock()).record_failure()

    backoff = make(local_objects, Clock())
    backoff.reset()
    backoff.reset()

    assert backoff.read().failures == 0
    assert backoff.remaining_seconds() == 0.0


def test_a_wait_cancelled_elsewhere_ends_within_a_poll(local_objects: LocalObjects) -> None:
    clock = Clock()
    make(local_objects, clock).record_failure(retryable=False)

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if len(clock.slept) == 3:
            make(local_objects, clock).reset()

    assert RestartBackoff(local_objects, KEY, clock=clock, sleep=sleep).wait() == 3 * POLL_SECONDS


def test_a_record_of_an_earlier_release_counts_and_delays_nothing(local_objects: LocalObjects) -> None:
    local_objects.put(KEY, b'{"failures": 3}')
    backoff = make(local_objects, Clock())

    assert backoff.wait() == 0.0
    assert 40 <= backoff.record_failure() <= 48


def test_a_failure_recorded_by_a_clock_that_is_ahead_is_not_waited_for(local_objects: LocalObjects) -> None:
    ahead, clock = Clock(), Clock()
    ahead.advance(3600)
    make(local_objects, ahead).record_failure(retryable=False)

    assert make(local_objects, clock).wait() == 0.0


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (TransientError("STORAGE_REFUSED", "503"), 5),
        (ContractError("SPEC_CHANGE_UNSAFE", "Another type."), MAX_WAIT_SECONDS),
        (ValueError("unforeseen"), 5),
    ],
    ids=["transient", "contract", "unforeseen"],
)
def test_a_failed_run_is_recorded_and_the_next_waits_first(
    local_objects: LocalObjects, error: Exception, seconds: float
) -> None:
    clock = Clock()
    with pytest.raises(type(error)), make(local_objects, clock).run_with_backoff():
        raise error
    failed_at = clock.now

    with make(local_objects, clock).run_with_backoff():
        assert seconds <= (clock.now - failed_at).total_seconds() <= min(1.2 * seconds, MAX_WAIT_SECONDS)
    assert make(local_objects, clock).read().failures == 0, "it ended well"


def test_a_fenced_run_leaves_the_record_to_its_successor(local_objects: LocalObjects) -> None:
    clock = Clock()
    make(local_objects, clock).record_failure()
    fenced: DeltaworksError = FencedError("LEASE_LOST", "It went to a successor.")

    with pytest.raises(FencedError), make(local_objects, clock).run_with_backoff():
        raise fenced

    assert make(local_objects, clock).read().failures == 1


@pytest.mark.parametrize(
    ("error", "own"),
    [
        (TransientError("STORAGE_UNREACHABLE", "nobody answers"), 0),
        (ContractError("RULE_FAILED", "an event is odd"), 1),
    ],
    ids=["outage", "own failure"],
)
def test_outages_are_distinguished_from_failures_of_the_stream(
    local_objects: LocalObjects, error: DeltaworksError, own: int
) -> None:
    backoff = make(local_objects, Clock())

    with pytest.raises(type(error)), backoff.run_with_backoff():
        raise error

    record = backoff.read()
    assert (record.failures, record.non_outage_failures) == (1, own)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept


@given(most=st.integers(1, 200), first=st.floats(0.001, 1), longest=st.floats(0.001, 10))
def test_waits_are_only_between_attempts_and_bounded(most: int, first: float, longest: float) -> None:
    with pytest.MonkeyPatch.context() as patched:
        slept: list[float] = []
        patched.setattr(time, "sleep", slept.append)

        numbers = list(attempts(most, first_wait_seconds=first, max_wait_seconds=longest))

    assert numbers == list(range(1, most + 1))
    bounds = [min(longest, first * 2.0 ** min(wait, 60)) for wait in range(most - 1)]
    assert len(slept) == len(bounds)
    assert all(0 <= seconds <= bound for seconds, bound in zip(slept, bounds, strict=True))


def test_immediate_success_never_waits(waits: list[float]) -> None:
    first = next(attempts(5, first_wait_seconds=1, max_wait_seconds=1))

    assert (first, waits) == (1, [])


def test_two_contending_processes_wait_differently(waits: list[float]) -> None:
    for _ in range(2):
        list(attempts(5, first_wait_seconds=1, max_wait_seconds=9))

    assert waits[:4] != waits[4:]
