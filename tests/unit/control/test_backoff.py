"""Back-off between runs that fail soon after they start."""

from __future__ import annotations

import time

import pytest

from deltaworks.control.backoff import LONGEST_WAIT_SECONDS, QUICK_SECONDS, RestartBackoff
from deltaworks.control.objects import LocalObjects

KEY = "control/failures.json"


def make(objects: LocalObjects) -> tuple[RestartBackoff, list[float]]:
    slept: list[float] = []
    return RestartBackoff(objects, KEY, sleep=slept.append), slept


def test_each_quick_failure_in_a_row_waits_about_twice_as_long_across_processes(local_objects: LocalObjects) -> None:
    waits = []
    for _ in range(5):
        backoff, slept = make(local_objects)
        assert backoff.failed() == slept[0]
        waits.append(slept[0])

    assert all(3.9 * 2**n <= wait <= 6.1 * 2**n for n, wait in enumerate(waits))


def test_a_wait_never_grows_beyond_its_limit_however_many_failures(local_objects: LocalObjects) -> None:
    local_objects.put(KEY, b'{"failures": 5000}')
    backoff, slept = make(local_objects)

    backoff.failed()

    assert slept[0] <= LONGEST_WAIT_SECONDS * 1.2
    assert backoff.failures() == 5001


def test_a_run_that_lasted_before_it_failed_counts_as_the_first_again(
    local_objects: LocalObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_objects.put(KEY, b'{"failures": 9}')
    backoff, slept = make(local_objects)
    later = time.monotonic() + QUICK_SECONDS + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)

    backoff.failed()

    assert backoff.failures() == 1
    assert slept[0] < 10


def test_a_run_that_ends_well_starts_the_count_over(local_objects: LocalObjects) -> None:
    make(local_objects)[0].failed()

    backoff, _ = make(local_objects)
    backoff.succeeded()
    backoff.succeeded()

    assert backoff.failures() == 0
