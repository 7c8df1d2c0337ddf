"""Verdicts on relays and streams."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.control.health.heartbeat import Heartbeat, StopRequest
from deltaworks.control.health.limits import Finding, HealthLimits
from deltaworks.control.health.throughput import EventTotals, Throughput
from deltaworks.control.health.verdicts import (
    STARTED_AT_VARIABLE,
    Verdict,
    evaluate_health,
    invalid_spec_verdict,
    unreadable_verdict,
    verdict_of,
)
from deltaworks.errors import ConfigError
from tests.heartbeats import healthy_heartbeat

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
STOP = StopRequest(by="ada", reason="upgrade", at="2026-11-21T11:00:00+00:00")


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat()


def heartbeat_of(**changes: Any) -> Heartbeat:
    """The heartbeat of a stream that has run for an hour, written five seconds ago."""
    batch = {"run": "games__stream/r/ingest/1", "last_batch_at": ago(20), "batch_id": 7, "backlog_files": 0}
    return healthy_heartbeat("games", **{"written_at": ago(5), "started_at": ago(3600)} | batch | changes)


def verdict_on(heartbeat: Heartbeat | None, stop: StopRequest | None = None, **options: Any) -> Verdict:
    return evaluate_health(heartbeat, stop, kind="stream", name="games", **{"now": NOW, **options})


def test_a_recent_heartbeat_without_backlog_is_healthy() -> None:
    verdict = verdict_on(heartbeat_of())

    assert (verdict.state, verdict.cause) == ("healthy", "OK")
    assert not verdict.is_unhealthy


@pytest.mark.parametrize(
    ("trigger_seconds", "age_seconds", "cause"),
    [(5, 119, "OK"), (5, 121, "HEARTBEAT_STALE"), (60, 179, "OK"), (60, 181, "HEARTBEAT_STALE")],
)
def test_a_heartbeat_is_stale_after_three_triggers_but_not_before_two_minutes(
    trigger_seconds: float, age_seconds: float, cause: str
) -> None:
    assert verdict_on(heartbeat_of(trigger_seconds=trigger_seconds, written_at=ago(age_seconds))).cause == cause


def test_a_hung_stream_is_unhealthy_despite_good_last_progress() -> None:
    verdict = verdict_on(heartbeat_of(state="running", written_at=ago(600)))

    assert verdict.is_unhealthy
    assert "games__stream/r/ingest/1" in verdict.detail
    assert verdict.next_step


def test_a_stopped_stream_is_never_unhealthy() -> None:
    for heartbeat in (None, heartbeat_of(state="ended", written_at=ago(90_000)), heartbeat_of(written_at=ago(90_000))):
        verdict = verdict_on(heartbeat, STOP)

        assert verdict.state == "stopped"
        assert "ada" in verdict.detail


def test_a_running_stream_with_a_stop_request_is_stopping() -> None:
    assert verdict_on(heartbeat_of(), STOP).state == "stopping"


def test_a_stream_that_never_ran_has_a_grace_period_counted_over_checks() -> None:
    first = verdict_on(None)
    later = verdict_on(None, now=NOW + timedelta(seconds=181), previous=first)
    still = verdict_on(None, now=NOW + timedelta(seconds=240), previous=later)

    assert first.state == "starting"
    assert (later.state, later.cause, later.since) == ("unhealthy", "NEVER_STARTED", NOW)
    assert still.is_unhealthy
    assert still.next_step == "Open the log of the last run of the DAG games__stream."
    assert verdict_on(None, now=NOW + timedelta(seconds=240), previous=later, dag="small__stream_group").next_step == (
        "Open the log of the last run of the DAG small__stream_group."
    )


def test_between_two_runs_it_is_starting_and_later_not_restarted() -> None:
    assert verdict_on(heartbeat_of(state="ended", written_at=ago(20))).cause == "BETWEEN_RUNS"
    assert verdict_on(heartbeat_of(state="ended", written_at=ago(200))).cause == "NOT_RESTARTED"


def test_a_dag_paused_after_a_clean_end_is_paused_on_purpose() -> None:
    assert verdict_on(heartbeat_of(state="ended", written_at=ago(9000)), paused=True).state == "paused"
    assert verdict_on(None, paused=True).state == "paused"


@pytest.mark.parametrize("state", ["failed", "running", "starting", "stopping"])
def test_a_dag_that_paused_itself_after_failures_is_unhealthy(state: Any) -> None:
    verdict = verdict_on(heartbeat_of(state=state, written_at=ago(9000)), paused=True)

    assert (verdict.state, verdict.cause) == ("unhealthy", "PAUSED_WITHOUT_STOP")


def test_a_retryable_failure_has_a_grace_period_and_another_is_unhealthy_immediately() -> None:
    transient = {"condition": "STORAGE_REFUSED", "message": "m", "hint": "h", "retryable": True}
    contract = {"condition": "SCHEMA_CHANGED", "message": "m", "hint": "mend it", "retryable": False}

    assert verdict_on(heartbeat_of(state="failed", written_at=ago(30), error=transient)).state == "starting"
    assert verdict_on(heartbeat_of(state="failed", written_at=ago(300), error=transient)).cause == "STORAGE_REFUSED"
    final = verdict_on(heartbeat_of(state="failed", written_at=ago(1), error=contract))
    assert (final.state, final.cause, final.next_step) == ("unhealthy", "SCHEMA_CHANGED", "mend it")


def test_a_restart_loop_is_detected_although_each_run_is_young() -> None:
    verdict, now = None, NOW
    seen = []
    for minute in range(15):
        now = NOW + timedelta(minutes=minute)
        written = (now - timedelta(seconds=2)).isoformat()
        heartbeat = heartbeat_of(state="starting", written_at=written, started_at=written)
        verdict = verdict_on(heartbeat, now=now, previous=verdict)
        seen.append(verdict.cause)

    assert seen[:11] == ["STARTING"] * 11
    assert seen[11:] == ["RESTART_LOOP"] * 4
    well = heartbeat_of(written_at=now.isoformat(), last_batch_at=now.isoformat())
    assert verdict_on(well, now=now, previous=verdict).state == "healthy"


def test_a_start_that_takes_too_long_is_unhealthy() -> None:
    assert verdict_on(heartbeat_of(state="starting", started_at=ago(60))).state == "starting"
    assert verdict_on(heartbeat_of(state="starting", started_at=ago(601))).cause == "START_SLOW"


def test_a_backlog_without_batches_is_no_progress() -> None:
    stuck = heartbeat_of(backlog_files=3, last_batch_at=ago(901), oldest_pending_at=ago(950))

    assert verdict_on(stuck).cause == "NO_PROGRESS"
    assert verdict_on(stuck, limits=HealthLimits(stall_seconds=1800)).state == "lagging"
    assert verdict_on(stuck.replace(started_at=ago(60))).state == "lagging"


def test_an_old_backlog_is_first_lagging_then_unhealthy() -> None:
    assert verdict_on(heartbeat_of(backlog_files=9, oldest_pending_at=ago(200))).state == "healthy"
    assert verdict_on(heartbeat_of(backlog_files=9, oldest_pending_at=ago(400))).state == "lagging"
    assert verdict_on(heartbeat_of(backlog_files=9, oldest_pending_at=ago(4000))).cause == "BACKLOG_OLD"


def test_a_reported_error_is_the_cause() -> None:
    error = {"condition": "QUEUE_DENIED", "message": "no access", "hint": "grant it"}

    verdict = verdict_on(heartbeat_of(error=error))

    assert (verdict.cause, verdict.next_step) == ("QUEUE_DENIED", "grant it")
    assert "no access" in verdict.detail


def test_an_unreadable_heartbeat_is_unhealthy_and_keeps_its_start() -> None:
    first = unreadable_verdict(OSError("refused"), kind="stream", name="games", now=NOW)
    second = unreadable_verdict(
        OSError("refused"), kind="stream", name="games", now=NOW + timedelta(minutes=1), previous=first
    )

    assert first.is_unhealthy
    assert second.since == NOW


beats = st.builds(
    heartbeat_of,
    state=st.sampled_from(["starting", "running", "idle", "stopping", "ended", "failed"]),
    written_at=st.floats(-100, 1e6).map(ago),
    started_at=st.floats(-100, 1e6).map(ago),
    last_batch_at=st.one_of(st.none(), st.floats(0, 1e6).map(ago)),
    oldest_pending_at=st.one_of(st.none(), st.floats(0, 1e6).map(ago)),
    backlog_files=st.one_of(st.none(), st.integers(0, 1000)),
    trigger_seconds=st.floats(0.1, 3600),
    error=st.one_of(st.none(), st.fixed_dictionaries({"condition": st.just("X"), "retryable": st.booleans()})),
)


@given(
    heartbeat=st.one_of(st.none(), beats),
    stop=st.sampled_from([None, STOP]),
    paused=st.sampled_from([None, True, False]),
)
def test_every_unhealthy_verdict_has_a_next_step_and_a_stop_overrides_all(
    heartbeat: Heartbeat | None, stop: StopRequest | None, paused: bool | None
) -> None:
    verdict = verdict_on(heartbeat, stop, paused=paused)

    assert verdict.cause
    assert verdict.detail
    if verdict.is_unhealthy:
        assert verdict.next_step
        assert stop is None


@given(heartbeat=beats)
def test_an_older_heartbeat_is_never_healthier(heartbeat: Heartbeat) -> None:
    now_verdict = verdict_on(heartbeat, paused=False)
    much_later = verdict_on(heartbeat, paused=False, now=NOW + timedelta(days=30))

    assert much_later.is_unhealthy
    assert now_verdict.state in ("healthy", "lagging", "starting", "unhealthy")


SUSPENDED = {
    "table": "orders",
    "reason": "suspended",
    "since_batch": 7,
    "at": ago(600),
    "condition": "COMMIT_REFUSED",
    "message": "no",
    "by": "the stream",
}


def test_a_suspended_table_is_unhealthy_with_a_next_step() -> None:
    verdict = verdict_on(heartbeat_of(held=(SUSPENDED,)))

    assert (verdict.state, verdict.cause) == ("unhealthy", "TABLE_SUSPENDED")
    assert "orders since batch 7: [COMMIT_REFUSED] no" in verdict.detail
    assert "deltaworks tables resume games orders" in verdict.next_step


def test_a_table_held_by_a_write_turn_is_healthy() -> None:
    assert verdict_on(heartbeat_of(held=({**SUSPENDED, "reason": "write_turn"},))).cause == "OK"


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"dead_letters": 3}, "DEAD_LETTERS"),
        ({"lost_files": 2, "lost_examples": ("landing/games/1",)}, "FILES_LOST"),
        ({"lost_ranges": 1, "lost_examples": ("shop/0/10-14",)}, "RECORDS_LOST"),
        ({"dead_letters": 0, "lost_files": 0}, "OK"),
    ],
)
def test_missing_files_are_unhealthy(changes: dict[str, Any], cause: str) -> None:
    verdict = verdict_on(heartbeat_of(**changes))

    assert (verdict.cause, verdict.is_unhealthy) == (cause, cause != "OK")


RETENTION = HealthLimits(retention_seconds=24 * 3600)


@pytest.mark.parametrize(
    ("waited_hours", "cause", "near"),
    [(0.01, "OK", False), (17.9, "BACKLOG_OLD", False), (18.1, "SOURCE_EXPIRES", True)],
)
def test_the_time_until_the_source_deletes_input_is_reported_and_too_little_is_unhealthy(
    waited_hours: float, cause: str, near: bool
) -> None:
    limits = dataclasses.replace(RETENTION, backlog_seconds_max=1e9 if near else 3600)

    verdict = verdict_on(heartbeat_of(oldest_pending_at=ago(waited_hours * 3600), backlog_files=3), limits=limits)

    assert verdict.cause == cause
    assert verdict.loss_near == near
    assert verdict.time_left_seconds == pytest.approx((24 - waited_hours) * 3600)


def test_the_retention_reported_by_the_source_overrides_the_declared_one() -> None:
    waiting = heartbeat_of(oldest_pending_at=ago(3600), retention_seconds=2 * 3600.0)

    assert verdict_on(waiting, limits=RETENTION).time_left_seconds == pytest.approx(3600)


def test_time_also_runs_out_for_hung_and_stopped_streams() -> None:
    old = heartbeat_of(written_at=ago(20 * 3600), backlog_files=0, oldest_pending_at=None)

    hung, stopped = verdict_on(old, limits=RETENTION), verdict_on(old, STOP, limits=RETENTION)

    assert (hung.cause, hung.loss_near) == ("HEARTBEAT_STALE", True)
    assert (stopped.state, stopped.loss_near) == ("stopped", True)
    assert hung.time_left_seconds == pytest.approx(4 * 3600)


def test_without_a_known_retention_no_time_is_reported() -> None:
    verdict = verdict_on(heartbeat_of(oldest_pending_at=ago(40 * 3600)))

    assert verdict.time_left_seconds is None
    assert not verdict.loss_near


@pytest.mark.parametrize(("silent_minutes", "cause"), [(89, "OK"), (91, "INPUT_SILENT")])
def test_missing_input_beyond_the_declared_limit_is_reported(silent_minutes: float, cause: str) -> None:
    limits = HealthLimits(no_input_seconds=90 * 60)

    assert verdict_on(heartbeat_of(last_batch_at=ago(silent_minutes * 60)), limits=limits).cause == cause


def test_the_last_input_is_kept_across_runs_but_not_across_a_stop() -> None:
    limits = HealthLimits(no_input_seconds=90 * 60)
    before = verdict_on(heartbeat_of(last_batch_at=ago(80 * 60)), limits=limits)
    new_run = heartbeat_of(last_batch_at=None, started_at=ago(60), written_at=ago(5))

    at = NOW + timedelta(minutes=11)
    fresh = new_run.replace(written_at=at.isoformat())
    stopped = dataclasses.replace(before, state="stopped")

    assert before.cause == "OK"
    assert verdict_on(fresh, limits=limits, previous=before, now=at).cause == "INPUT_SILENT"
    assert verdict_on(fresh, limits=limits, previous=stopped, now=at).cause == "OK"


def test_a_backlog_is_not_missing_input() -> None:
    limits = HealthLimits(no_input_seconds=60, stall_seconds=1e9)

    assert verdict_on(heartbeat_of(last_batch_at=ago(600), backlog_files=2), limits=limits).cause != "INPUT_SILENT"


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"batch_id": None, "backlog_files": 0}, "No batch in this run yet; nothing waits."),
        ({"batch_id": None, "backlog_files": None}, "No batch in this run yet; nothing waits."),
        ({"batch_id": 7, "backlog_files": 1}, "Batch 7; 1 file waits."),
        ({"batch_id": 7, "backlog_files": 2_000}, "Batch 7; 2,000 files wait."),
        ({"batch_id": 7, "backlog_records": 0}, "Batch 7; nothing waits."),
        ({"batch_id": 7, "backlog_records": 12}, "Batch 7; 12 records wait."),
    ],
)
def test_a_healthy_stream_reports_its_batch_and_backlog(changes: dict[str, Any], detail: str) -> None:
    assert verdict_on(heartbeat_of(**changes)).detail == detail


TOO_MANY = Throughput().with_batch(NOW, EventTotals(events=100, quarantined=100, reasons={("malformed", ""): 100}))


def test_a_stream_that_quarantines_everything_is_unhealthy() -> None:
    verdict = verdict_on(heartbeat_of(), throughput=TOO_MANY)

    assert (verdict.state, verdict.cause) == ("unhealthy", "ROWS_QUARANTINED")
    assert "100 malformed" in verdict.detail
    assert "reference/alerts.md#too-much-goes-to-quarantine" in verdict.next_step


@pytest.mark.parametrize(
    ("heartbeat", "stop", "cause"),
    [
        (heartbeat_of(state="starting", started_at=ago(5)), None, "STARTING"),
        (heartbeat_of(written_at=ago(900)), None, "HEARTBEAT_STALE"),
        (heartbeat_of(state="ended", written_at=ago(900)), STOP, "STOP_REQUESTED"),
        (heartbeat_of(backlog_files=1, oldest_pending_at=ago(9_000)), None, "BACKLOG_OLD"),
    ],
)
def test_another_cause_takes_precedence_over_too_much_in_quarantine(
    heartbeat: Heartbeat, stop: StopRequest | None, cause: str
) -> None:
    verdict = verdict_on(heartbeat, stop, throughput=TOO_MANY)

    assert verdict.cause == cause
    assert "100 of 100 events" in verdict.quarantine_excess


@pytest.mark.parametrize(
    ("heartbeat", "under_way"),
    [
        (heartbeat_of(), True),
        (heartbeat_of(state="idle"), True),
        (heartbeat_of(state="ended"), False),
        (heartbeat_of(state="failed"), False),
        (heartbeat_of(written_at=ago(3600)), False),
        (None, False),
    ],
)
def test_a_stream_with_an_invalid_spec_is_unhealthy_and_reports_whether_it_runs(
    heartbeat: Heartbeat | None, under_way: bool
) -> None:
    error = ConfigError("SPEC_INVALID", "pipeline.yaml:2: colour.", hint="Mend it.")

    verdict = invalid_spec_verdict(error, kind="stream", name="games", now=NOW, heartbeat=heartbeat)

    assert (verdict.state, verdict.cause, verdict.next_step) == ("unhealthy", "INVALID_DECLARATION", "Mend it.")
    said = "The current run continues with the previous spec." if under_way else "It is not running."
    assert verdict.detail == f"pipeline.yaml:2: colour. {said}"


@pytest.mark.parametrize(
    ("state", "cause", "lasts"),
    [
        ("unhealthy", "VAULT_BEHIND", True),
        ("unhealthy", "VAULT_UNREADABLE", False),
        ("starting", "VAULT_BEHIND", False),
        ("healthy", "OK", False),
    ],
)
def test_since_restarts_when_state_or_cause_changes(state: Any, cause: str, lasts: bool) -> None:
    begun = NOW - timedelta(hours=1)
    before = verdict_of(Finding("unhealthy", "VAULT_BEHIND", "first"), kind="vault", name="people", now=begun)
    verdict = verdict_of(Finding(state, cause, "then"), kind="vault", name="people", now=NOW, previous=before)

    assert (before.since, verdict.since) == (begun, begun if lasts else NOW)
    assert (verdict.state, verdict.cause, verdict.detail) == (state, cause, "then")


def test_a_stream_is_starting_while_its_stack_has_just_started(monkeypatch: pytest.MonkeyPatch) -> None:
    old = ago(86_400)
    never = dataclasses.replace(
        verdict_on(None), cause="NEVER_STARTED", since=NOW - timedelta(days=1), state="unhealthy"
    )
    last_states = [
        (heartbeat_of(state="ended", written_at=old), None),
        (heartbeat_of(state="running", written_at=old), None),
        (heartbeat_of(state="failed", written_at=old, error={"condition": "BATCH_STALLED"}), None),
        (None, never),
    ]

    def states(up_seconds: float) -> set[str]:
        monkeypatch.setenv(STARTED_AT_VARIABLE, ago(up_seconds))
        return {verdict_on(heartbeat, previous=previous).state for heartbeat, previous in last_states}

    assert states(5) == states(170) == {"starting"}
    assert states(200) == states(86_400) == {"unhealthy"}
    monkeypatch.delenv(STARTED_AT_VARIABLE)
    assert {verdict_on(heartbeat, previous=previous).state for heartbeat, previous in last_states} == {"unhealthy"}


@pytest.mark.parametrize("state", ["starting", "idle", "running"])
def test_a_running_stream_whose_dag_is_paused_is_told_at_once(state: str) -> None:
    verdict = verdict_on(heartbeat_of(state=state, started_at=ago(300)), paused=True)

    assert (verdict.state, verdict.cause) == ("unhealthy", "PAUSED_WHILE_RUNNING")
    assert "the run under way is its last" in verdict.detail
    assert verdict.next_step.startswith("deltaworks start games")
    assert verdict_on(heartbeat_of(state=state), paused=False).cause != "PAUSED_WHILE_RUNNING"
    assert verdict_on(heartbeat_of(state=state), paused=None).cause != "PAUSED_WHILE_RUNNING"


def test_a_paused_stream_with_a_trouble_or_a_stop_request_shows_that() -> None:
    failing = heartbeat_of(error={"condition": "DELTA_CONFLICT", "message": "x"})
    stop = StopRequest(by="ada", reason="upgrade", at=ago(5))

    assert verdict_on(failing, paused=True).cause == "DELTA_CONFLICT"
    assert verdict_on(heartbeat_of(), stop, paused=True).state == "stopping"


@pytest.mark.parametrize("last", ["running", "idle", "failed"])
@pytest.mark.parametrize("before", [{"paused": True}, {"stop": StopRequest(by="ada", reason="x", at=ago(600))}])
def test_the_heartbeat_of_the_last_run_is_not_that_of_the_one_that_starts(last: str, before: dict[str, Any]) -> None:
    old = heartbeat_of(state=last, written_at=ago(900), error=None)
    previous = verdict_on(old, **before)
    started = verdict_on(old, paused=False, previous=previous)
    assert (started.state, started.cause) == ("starting", "BETWEEN_RUNS")

    def later(seconds: float) -> str:
        return verdict_on(old, paused=False, previous=started, now=NOW + timedelta(seconds=seconds)).state

    assert [later(seconds) for seconds in (10, 170, 200)] == ["starting", "starting", "unhealthy"]
