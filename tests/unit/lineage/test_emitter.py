"""Events are sent in order and without blocking the job: a failing backend costs events, but no time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from deltaworks.lineage.events import build_event, open_client
from deltaworks.lineage.runs import Emitter
from deltaworks.specs.environment import LineageSpec
from tests.unit.lineage.backend import running_backend


def lineage_to(url: str, **more: Any) -> LineageSpec:
    return LineageSpec(transport={"type": "http", "url": url} | more)


def an_event(number: int = 0) -> Any:
    return build_event(
        "RUNNING",
        at="2026-03-01T10:20:30Z",
        run_id=f"0198c3a0-0000-7000-8000-{number:012d}",
        namespace="deltaworks",
        job="games.stream",
        kind="STREAMING",
    )


def test_events_arrive_in_order_with_the_key_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINEAGE_KEY", "the-key")
    with running_backend() as backend:
        spec = lineage_to(backend.address, auth={"type": "api_key", "apiKey": "env:LINEAGE_KEY"})
        emitter = Emitter(lambda: open_client(spec))
        for number in range(5):
            emitter.emit(lambda number=number: an_event(number))  # type: ignore[misc]
        counts = emitter.close(seconds=60)
    assert [item["run"]["runId"][-1] for item in backend.events] == ["0", "1", "2", "3", "4"]
    assert (counts.sent, counts.failed, counts.dropped) == (5, 0, 0)
    assert {headers["Authorization"] for headers in backend.headers} == {"Bearer the-key"}


def test_a_hanging_backend_delays_nothing_and_dropped_events_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running_backend(hangs=True) as backend:
        emitter = Emitter(lambda: open_client(lineage_to(backend.address, timeout=60)), capacity=10)
        started = time.monotonic()
        for number in range(1000):
            emitter.emit(lambda number=number: an_event(number))  # type: ignore[misc]
        assert time.monotonic() - started < 1
        closing = time.monotonic()
        counts = emitter.close(seconds=0.5)
        assert time.monotonic() - closing < 5
    # One is on its way, and is lost with the others.
    assert (counts.sent, counts.failed) == (0, 0)
    assert counts.dropped == 1000
    assert "0 events sent, 0 failed, 1000 dropped" in caplog.text


def test_an_unavailable_backend_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    spec = lineage_to("http://127.0.0.1:9", retry={"total": 0})
    emitter = Emitter(lambda: open_client(spec))
    for number in range(3):
        emitter.emit(lambda number=number: an_event(number))  # type: ignore[misc]
    counts = emitter.close(seconds=60)
    assert (counts.sent, counts.failed, counts.dropped) == (0, 3, 0)
    assert (
        len(
            [
                record
                for record in caplog.records
                if record.levelname == "WARNING" and record.name == "deltaworks.lineage.runs"
            ]
        )
        == 2
    )


@pytest.mark.parametrize("where", ["open", "make", "send"])
def test_the_thread_survives_any_failure(where: str) -> None:
    sent: list[Any] = []
    fails = [True]

    def failing(at: str) -> None:
        if at == where and fails:
            fails.clear()
            raise RuntimeError(at)

    def open_sender() -> Callable[[Any], None]:
        failing("open")

        def send(created: Any) -> None:
            failing("send")
            sent.append(created)

        return send

    def created() -> str:
        failing("make")
        return "event"

    emitter = Emitter(open_sender)
    emitter.emit(created)
    emitter.emit(created)
    counts = emitter.close(seconds=30)
    assert (counts.sent, counts.failed, sent) == (1, 1, ["event"])
