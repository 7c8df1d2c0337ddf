"""After any table changes and crashes, applying the messages yields the table's rows."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from deltaworks.control.clock import iso_now
from deltaworks.control.objects import LocalObjects
from deltaworks.control.records.feeds import FeedRecords, ReplayRequest
from deltaworks.feeds import delivery
from tests.crashes import Crash
from tests.examples import examples
from tests.unit.feeds.feed_harness import FeedHarness, Receiver, applied, declared

KEY = ("event_date", "country")
COUNTRIES = ("at", "ch", "de", "fr", "it", "pl", "se")
CONTENT = st.dictionaries(st.sampled_from(COUNTRIES), st.integers(0, 3), max_size=len(COUNTRIES))
#: A step rebuilds a day, or asks for a replay; then the process runs, and dies at a point of the run or not at all.
STEPS = st.lists(
    st.tuples(
        st.one_of(st.tuples(st.integers(0, 2), CONTENT), st.sampled_from(["replay", "everything"])),
        st.one_of(st.none(), st.integers(0, 14)),
    ),
    min_size=1,
    max_size=8,
)


class Points:
    """Counts the points at which a process can crash, and crashes it at one of them."""

    def __init__(self) -> None:
        self.left: int | None = None

    def reach(self) -> None:
        if self.left is None:
            return
        self.left -= 1
        if self.left < 0:
            self.left = None
            raise Crash


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> Points:
    """Before and after every write of the control area, and every message."""
    points = Points()
    monkeypatch.setattr(delivery, "CHUNK_SIZE", 2)
    for name in ("put", "put_if_absent", "put_if_match"):
        original = getattr(LocalObjects, name)

        def around(self: LocalObjects, *arguments: Any, original: Any = original) -> Any:
            points.reach()
            result = original(self, *arguments)
            points.reach()
            return result

        monkeypatch.setattr(LocalObjects, name, around)
    return points


class CrashingReceiver(Receiver):
    """Records messages even if the sender crashes before it gets the reply."""

    def __init__(self, points: Points) -> None:
        super().__init__()
        self._points = points

    def send(self, messages: Any) -> Any:
        outcome = None
        for message in messages:
            self._points.reach()
            outcome = super().send([message])
            self._points.reach()
        return outcome


def folders() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("reads", ["turnover", "totals"])
def test_deliveries_lead_to_the_rows_of_the_source(points: Points, reads: str) -> None:
    @settings(max_examples=examples(25))
    @given(STEPS)
    def holds(steps: list[tuple[Any, int | None]]) -> None:
        for folder in folders():
            points.left = None
            _check(folder, points, reads, steps)

    holds()


def _check(folder: Path, points: Points, reads: str, steps: list[tuple[Any, int | None]]) -> None:
    key = KEY if reads == "turnover" else ("country",)
    harness = FeedHarness(folder, declared({"reads": reads, "key": list(key)}))
    (folder / "include/pipelines/shop/totals.sql").write_text(
        "SELECT country, CAST(sum(orders) AS INT) AS orders FROM turnover GROUP BY country"
    )
    receiver = CrashingReceiver(points)
    for step, dies_at in steps:
        if isinstance(step, tuple):
            harness.rebuild(*step)
        else:
            record = harness.records.read()
            since = None if step == "everything" or record is None or not record.number else 1
            FeedRecords(harness.objects, "shop", "offers").request_replay(
                ReplayRequest(since=since, by="me", at=iso_now())
            )
        points.left = dies_at
        with contextlib.suppress(Crash):
            harness.feed(receiver).run_once()
        points.left = None
    harness.feed(receiver).run_once()
    expected = harness.rows() if reads == "turnover" else _totals(harness)
    assert applied(receiver.messages, key) == expected
    _ids_name_changes(receiver.messages)


def _totals(harness: FeedHarness) -> dict[tuple[Any, ...], dict[str, Any]]:
    totals: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in harness.rows().values():
        total = totals.setdefault((row["country"],), {"country": row["country"], "orders": 0})
        total["orders"] += row["orders"]
    return totals


def _ids_name_changes(messages: list[dict[str, Any]]) -> None:
    """Messages with one id are equal, and each key has one message per delivery."""
    by_id: dict[str, dict[str, Any]] = {}
    for message in messages:
        assert by_id.setdefault(message["id"], message) == message
    places = {(message["number"], str(message["key"])): message["id"] for message in messages}
    assert len(places) == len(by_id)


def test_a_message_contains_only_declared_columns(tmp_path: Path) -> None:
    harness, receiver = FeedHarness(tmp_path, declared({"columns": "orders"})), Receiver()
    harness.rebuild(0, {"de": 1})
    harness.feed(receiver).run_once()
    (message,) = receiver.messages
    assert message["row"] == {"event_date": "2026-03-01", "country": "de", "orders": 1}
