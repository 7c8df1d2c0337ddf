"""Waits last while there is progress: a slow process does not fail, and a stalled one is reported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from sandbox.stack.waiting import busy_steps, cpu_seconds, wait_while_progressing
from tests.waiting import eventually

PATIENCE = 10.0


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_wait_that_moves_lasts_however_long_it_takes() -> None:
    clock = Clock()

    stalled = wait_while_progressing(
        lambda: clock.now > 100 * PATIENCE,
        lambda: int(clock.now / (PATIENCE / 2)),
        stall_seconds=PATIENCE,
        clock=clock,
        sleep=clock.sleep,
    )

    assert stalled is None
    assert clock.now > 100 * PATIENCE


def test_a_wait_ends_once_nothing_has_moved_for_its_patience() -> None:
    clock = Clock()

    stalled = wait_while_progressing(
        lambda: False, lambda: min(int(clock.now), 25), stall_seconds=PATIENCE, clock=clock, sleep=clock.sleep
    )

    assert stalled is not None
    assert stalled.last_marker == 25
    assert PATIENCE < stalled.seconds < PATIENCE + 1
    assert 25 + PATIENCE < clock.now < 25 + PATIENCE + 2


@given(st.lists(st.floats(0.1, 3 * PATIENCE), min_size=1, max_size=20))
def test_it_stalls_exactly_where_a_pause_is_longer_than_the_patience(pauses: list[float]) -> None:
    clock, moves = Clock(), list(_moments(pauses))

    stalled = wait_while_progressing(
        lambda: clock.now >= moves[-1],
        lambda: sum(moment <= clock.now for moment in moves),
        stall_seconds=PATIENCE,
        poll_seconds=0.05,
        clock=clock,
        sleep=clock.sleep,
    )

    # What is seen is as coarse as the polls.
    if max(pauses) < PATIENCE - 0.2:
        assert stalled is None
    elif max(pauses) > PATIENCE + 0.2:
        assert stalled is not None


def _moments(pauses: list[float]) -> Iterator[float]:
    at = 0.0
    for pause in pauses:
        at += pause
        yield at


def test_work_of_a_process_and_of_those_it_has_ended_counts_and_sleep_does_not() -> None:
    busy = "import time\nwhile time.process_time() < 0.4: pass"
    work = f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {busy!r}])"
    code = f"{work}; print(flush=True); time.sleep(99)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        worked = cpu_seconds([process.pid])
        eventually(lambda: cpu_seconds([process.pid]) >= worked, "it can be read")
        process.kill()

    # The kernel counts in ticks, and differences of them are not exact as floats.
    assert worked >= 0.39
    assert cpu_seconds([process.pid]) == 0.0
    assert busy_steps([process.pid]) == 0
    assert cpu_seconds([os.getpid()]) > 0
