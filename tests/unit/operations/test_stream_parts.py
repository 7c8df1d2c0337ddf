"""Gold refresh during a stream: when it runs, and how its failures reach heartbeat and health."""

from __future__ import annotations

import datetime as dt
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from deltaworks.control.health.heartbeat import HeartbeatWriter, read_heartbeat
from deltaworks.control.health.verdicts import evaluate_health
from deltaworks.control.objects import LocalObjects
from deltaworks.engine.driver_host import OwnDriver, SharedDriver
from deltaworks.engine.runner import StreamContext
from deltaworks.errors.conditions import alert_for_verdict
from deltaworks.gold import refresh_loop
from deltaworks.operations.stream_parts import refresh_gold
from deltaworks.testing import present
from tests.unit.specs.test_gold import hourly

FAILURE = {"table": "minutes", "condition": "GOLD_SQL_INVALID", "message": "no such column", "hint": "Mend the SQL."}


class FakeLoop:
    made: ClassVar[list[FakeLoop]] = []

    def __init__(self, spark: Any, catalog: Any, pipeline: str, **options: Any) -> None:
        self.options, self.events = options, [f"made for {pipeline} in {options['pool']}"]
        FakeLoop.made.append(self)

    def start(self) -> None:
        self.events.append("started")

    def close(self, *, wait_seconds: float) -> None:
        self.events.append("closed")


@pytest.fixture
def heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HeartbeatWriter:
    monkeypatch.setattr(refresh_loop, "GoldRefreshLoop", FakeLoop)
    FakeLoop.made.clear()
    return HeartbeatWriter(LocalObjects(tmp_path), "heartbeat.json", pipeline="traffic", trigger_seconds=60)


def refreshing(heartbeat: HeartbeatWriter, spec: Any, host: Any = None, *, once: bool = False) -> Any:
    nothing: Any = None
    lease: Any = SimpleNamespace(is_lost=False)
    return refresh_gold(
        StreamContext(
            spark=nothing,
            catalog=nothing,
            spec=spec,
            lease=lease,
            heartbeat=heartbeat,
            host=host or OwnDriver(),
            available_now=once,
            batch_committed=threading.Event(),
        )
    )


def test_gold_is_refreshed_during_the_stream_only_if_declared(heartbeat: HeartbeatWriter) -> None:
    with refreshing(heartbeat, hourly()):
        assert FakeLoop.made == []
    with refreshing(heartbeat, hourly(lag="1m"), once=True):
        assert FakeLoop.made == []
    member = SharedDriver("traffic", exit_driver=lambda error: None)
    gold = refreshing(heartbeat, hourly(lag="1m"), member)
    gold.__enter__()
    assert FakeLoop.made[0].events == ["made for traffic in traffic.gold", "started"]
    assert not gold.__exit__(KeyError, KeyError(), None)
    assert FakeLoop.made[0].events[-1] == "closed", "also where the stream fails"


def test_failed_builds_are_in_the_heartbeat_and_in_health(heartbeat: HeartbeatWriter, tmp_path: Path) -> None:
    now = dt.datetime.now(dt.UTC)
    heartbeat.start()
    heartbeat.update(state="idle", batch_id=3)
    with refreshing(heartbeat, hourly(lag="1m")):
        FakeLoop.made[0].options["report_failures"]((FAILURE | {"since": (now - dt.timedelta(minutes=5)).isoformat()},))
        heartbeat.close()
    written = present(read_heartbeat(LocalObjects(tmp_path), "heartbeat.json"))

    verdict = evaluate_health(written, None, kind="stream", name="traffic", now=now)

    assert (verdict.state, verdict.cause, verdict.next_step) == ("unhealthy", "GOLD_REFRESH_FAILING", "Mend the SQL.")
    assert "Batches commit, but gold tables cannot be built for 5" in verdict.detail
    assert "minutes: [GOLD_SQL_INVALID] no such column" in verdict.detail
    assert alert_for_verdict("GOLD_REFRESH_FAILING") == "GOLD_REFRESH_FAILING"
