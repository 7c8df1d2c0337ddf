"""Waiting of a run between two checks of its query."""

from __future__ import annotations

import time
from typing import Any

import pytest

from deltaworks.engine import queries


class Query:
    """A query that has ended."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.waits: list[float] = []

    def awaitTermination(self, timeout: float) -> bool:
        self.waits.append(timeout)
        if self.failure is not None:
            raise self.failure
        return True


def test_a_query_that_has_ended_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    query: Any = Query()

    queries.wait_for_end(query, 1.0)

    assert (query.waits, slept) == ([1.0], [])


def test_a_failed_query_is_left_to_the_callers_check_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    query: Any = Query(RuntimeError("it failed"))

    queries.wait_for_end(query, 1.0)

    assert slept == [1.0]
