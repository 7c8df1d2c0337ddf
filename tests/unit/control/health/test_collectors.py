"""Verdicts on collectors: silent, behind, damaged, or missing acknowledged events."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.health.collectors import CollectorHeartbeatWriter, evaluate_collector
from deltaworks.control.health.processes import process_reports
from deltaworks.control.objects import LocalObjects
from deltaworks.control.records.collector import (
    CollectorHeartbeat,
    LostEvents,
    MissingRange,
    SourceStatus,
    read_collector_heartbeats,
    read_hour_counts,
)
from deltaworks.errors.conditions import alert_for_verdict
from deltaworks.specs.project import load_catalog
from tests.unit.kubernetes.conftest import write_collector
from tests.unit.specs.conftest import write_project

NOW = datetime(2026, 11, 23, 14, 30, tzinfo=UTC)


def ago(**past: float) -> str:
    return (NOW - timedelta(**past)).isoformat()


def heartbeat_of(**changes: Any) -> CollectorHeartbeat:
    facts: dict[str, Any] = {
        "collector": "edge",
        "id": "c" * 32,
        "state": "running",
        "written_at": ago(seconds=5),
        "started_at": ago(hours=5),
        "next_seq": 101,
        "spool_bytes": 1 << 20,
        "spool_max_bytes": 10 << 20,
    }
    return CollectorHeartbeat(**facts | changes)


@pytest.mark.parametrize(
    ("facts", "cause", "said"),
    [
        ({}, "OK", "1 processes"),
        ({"written_at": ago(minutes=3)}, "COLLECTOR_STALE", "3 min"),
        ({"oldest_at": ago(minutes=5)}, "OK", ""),
        (
            {
                "oldest_at": ago(minutes=20),
                "sources": {"shop": SourceStatus(problem="AccessDenied", problem_since=ago())},
            },
            "SPOOL_OLD",
            "AccessDenied",
        ),
        ({"damaged": ("seg-1.wal.damaged",)}, "SPOOL_DAMAGED", "seg-1.wal.damaged"),
        ({"sources": {"shop": SourceStatus(dead_letters=3)}}, "EVENTS_UNDELIVERABLE", "3 events"),
        ({"state": "ended", "written_at": ago(hours=3)}, "OK", "Ended"),
        ({"state": "ended", "written_at": ago(hours=3), "oldest_at": ago(hours=4)}, "SPOOL_OLD", "10 % full"),
        ({"state": "ended", "written_at": ago(days=3), "oldest_at": ago(days=4)}, "SPOOL_OLD", "10 % full"),
    ],
)
def test_a_collector_is_evaluated_from_its_processes(facts: dict[str, Any], cause: str, said: str) -> None:
    verdict = evaluate_collector("edge", [heartbeat_of(**facts)], None, now=NOW)
    assert (verdict.cause, verdict.is_unhealthy) == (cause, cause != "OK")
    assert said in verdict.detail
    if verdict.is_unhealthy:
        assert verdict.next_step
        assert alert_for_verdict(cause) in ("COLLECTOR_UNHEALTHY", "EVENTS_LOST")


def test_one_unhealthy_process_is_enough_and_long_ended_ones_are_ignored() -> None:
    gone = heartbeat_of(id="a" * 32, state="ended", written_at=ago(days=3))
    stale = heartbeat_of(id="b" * 32, written_at=ago(hours=1))
    assert evaluate_collector("edge", [gone, heartbeat_of()], None, now=NOW).state == "healthy"
    assert evaluate_collector("edge", [heartbeat_of(), stale], None, now=NOW).cause == "COLLECTOR_STALE"


def test_lost_events_come_first_with_their_start() -> None:
    losses = LostEvents(checked_at=ago(minutes=5), missing=(MissingRange(id="c" * 32, first=7, last=9),))
    first = evaluate_collector("edge", [heartbeat_of(damaged=("x",))], losses, now=NOW - timedelta(hours=1))
    verdict = evaluate_collector("edge", [heartbeat_of(damaged=("x",))], losses, now=NOW, previous=first)
    assert (verdict.cause, verdict.since) == ("EVENTS_LOST", NOW - timedelta(hours=1))
    assert "3 acknowledged events" in verdict.detail
    assert "cccccccc: 7-9" in verdict.detail
    assert alert_for_verdict("EVENTS_LOST") == "EVENTS_LOST"


def test_a_declared_collector_that_never_ran_is_not_reported(tmp_path: Path) -> None:
    root = write_project(tmp_path / "project")
    write_collector(root)
    catalog, objects = load_catalog(root=root), LocalObjects(tmp_path / "lake")
    assert process_reports(catalog, objects, now=NOW) == []
    objects.put(paths.collector_heartbeat("edge", "c" * 32), heartbeat_of(written_at=ago(hours=1)).encode())
    (report,) = process_reports(catalog, objects, now=NOW)
    assert (report.subject.key, report.verdict.cause) == ("edge__collector", "COLLECTOR_STALE")
    objects.put(paths.collector_heartbeat("edge", "c" * 32), b"{")
    (report,) = process_reports(catalog, objects, now=NOW)
    assert report.verdict.cause == "HEARTBEAT_UNREADABLE"


def test_hourly_counts_continue_after_a_restart_and_end_with_the_hour(tmp_path: Path) -> None:
    objects, now = LocalObjects(tmp_path), NOW
    taken: dict[str, dict[str, int]] = {"shop": {"accepted": 10}}
    seq = 11

    def process() -> CollectorHeartbeatWriter:
        return CollectorHeartbeatWriter(objects, lambda: heartbeat_of(next_seq=seq), lambda: taken, clock=lambda: now)

    first = process()
    first.write()
    taken, seq = {"shop": {"accepted": 15, "kept": 1}}, 17
    first.write()
    taken, seq = {"shop": {"accepted": 4}}, 21
    second = process()
    second.write()
    now = NOW + timedelta(hours=1)
    taken, seq = {"shop": {"accepted": 5}}, 22
    second.write()
    second.write()
    old, new = read_hour_counts(objects, "edge")
    assert (old.hour, old.next_seq, old.is_complete) == ("2026-11-23T14", 22, True)
    assert old.sources == {"shop": {"accepted": 20, "kept": 1}}
    assert (new.hour, new.first_seq, new.next_seq, new.is_complete) == ("2026-11-23T15", 22, 22, False)
    assert [item.next_seq for item in read_collector_heartbeats(objects, "edge")] == [22]


def test_storage_failures_do_not_stop_the_collector(tmp_path: Path) -> None:
    class Failing(LocalObjects):
        def put(self, key: str, data: bytes) -> None:
            raise OSError("away")

    beats = CollectorHeartbeatWriter(Failing(tmp_path), heartbeat_of, dict, interval_seconds=0.01)
    beats.start()
    assert beats.stop(timeout_seconds=30)
