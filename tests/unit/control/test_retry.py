"""Number of attempts, and waits between them."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.control.background import attempts


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
