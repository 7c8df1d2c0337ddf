"""A source's metrics are looked up rarely, and cached while the lookup fails."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from deltaworks.sources.base import CachedLookup, SourceLag


def test_a_lookup_is_cached_until_it_is_due_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, answers = [100.0], iter([7.0, OSError("away"), 8.0])
    asked = []

    def look() -> float:
        asked.append(clock[0])
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    retention = CachedLookup(look, description="the retention", interval_seconds=10)

    seen = []
    for clock[0] in (100.0, 109.0, 110.0, 119.0, 120.0):
        seen.append(retention.read())

    assert asked == [100.0, 110.0, 120.0]
    assert seen == [7.0, 7.0, 7.0, 7.0, 8.0]


def test_there_is_no_value_before_the_first_lookup() -> None:
    def away() -> float:
        raise OSError

    assert CachedLookup(away, description="the retention").read() is None


class CountingSource:
    """A source in which 34 files follow the position that it is asked about."""

    def backlog(self, progress: Any) -> dict[str, Any]:
        return {"backlog_files": 34 if progress is None else 0}


def test_nothing_waits_before_the_first_batch_of_a_run_is_planned() -> None:
    """Until then, only the position of an earlier run is known, behind which all may have landed."""
    lag = SourceLag(CountingSource())  # type: ignore[arg-type]
    query = SimpleNamespace(lastProgress=None)

    assert lag.read(query, is_planned=False) == {}  # type: ignore[arg-type]
    assert lag.read(query, is_planned=True) == {"backlog_files": 34}  # type: ignore[arg-type]
    looked = SimpleNamespace(lastProgress={"sources": [{}]})
    assert SourceLag(CountingSource()).read(looked, is_planned=False) == {"backlog_files": 0}  # type: ignore[arg-type]
