"""Alerts of verdicts, limited restarts of hung processes, overdue jobs, and the health check's login to Airflow."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from deltaworks.airflow.health_alerts import (
    alert_causes,
    alert_on_overdue_jobs,
    alert_on_stale_gold,
    alert_on_verdicts,
    is_overdue,
    longest_interval,
)
from deltaworks.airflow.health_dags import SharedApi, airflow_api
from deltaworks.airflow.restarts import HungProcess, resolve_restart_alerts, restart_hung, with_task_starts
from deltaworks.airflow_client.api import DagRun, TaskInstance
from deltaworks.alerts.notification import Notification
from deltaworks.alerts.raising import alerts
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.health.heartbeat import Heartbeat
from deltaworks.control.health.limits import HealthLimits
from deltaworks.control.health.report import Report, Subject
from deltaworks.control.health.throughput import EventTotals, Throughput
from deltaworks.control.health.verdicts import Verdict, evaluate_health
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import LocalObjects
from deltaworks.control.summaries.stream import BatchSummary, StreamSummaryWriter
from deltaworks.errors import ConfigError, ContractError, TransientError, hint_for
from deltaworks.errors.conditions import catalog, verdict_alerts
from deltaworks.gold.pinned_inputs import record_failed, record_refreshed
from deltaworks.operations.gold import gold_states
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment import AirflowSpec, EnvironmentSpec
from deltaworks.specs.project import load_catalog
from deltaworks.specs.storage import AwsSpec, StorageSpec
from deltaworks.testing import catalog_of, declare_table, pipeline_spec
from tests.airflow_server import airflow_server
from tests.heartbeats import healthy_heartbeat
from tests.records import record_of

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
WELL = Verdict(kind="stream", name="games", state="healthy", cause="OK", detail="Batch 7.", next_step="", since=NOW)


def unhealthy(cause: str, **more: Any) -> Verdict:
    return dataclasses.replace(WELL, state="unhealthy", cause=cause, detail="It is ill.", next_step="Mend it.", **more)


@pytest.fixture
def objects(tmp_path: Path) -> LocalObjects:
    return LocalObjects(tmp_path)


def open_alerts(objects: LocalObjects) -> set[tuple[str, str]]:
    return {(alert.cause, alert.subject) for alert in alerts(objects) if alert.state.is_open}


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (WELL, set()),
        (unhealthy("HEARTBEAT_STALE"), {"STREAM_HUNG"}),
        (unhealthy("BACKLOG_OLD"), {"BACKLOG_OLD"}),
        (unhealthy("BACKLOG_OLD", loss_near=True), {"BACKLOG_OLD", "DATA_LOSS_NEAR"}),
        (unhealthy("SOURCE_EXPIRES", loss_near=True), {"DATA_LOSS_NEAR"}),
        (unhealthy("INPUT_SILENT"), {"INPUT_SILENT"}),
        (unhealthy("PAUSED_WITHOUT_STOP"), {"STOPPED_BY_HAND"}),
        (unhealthy("DEAD_LETTERS"), {"DATA_LOST"}),
        (unhealthy("SPEC_INVALID"), {"STREAM_UNHEALTHY"}),
        (dataclasses.replace(WELL, state="stopped", loss_near=True), {"DATA_LOSS_NEAR"}),
        (unhealthy("ROWS_QUARANTINED", quarantine_excess="Too many."), {"ROWS_QUARANTINED"}),
        (unhealthy("HEARTBEAT_STALE", quarantine_excess="Too many."), {"STREAM_HUNG", "ROWS_QUARANTINED"}),
        (dataclasses.replace(WELL, state="starting", quarantine_excess="Too many."), {"ROWS_QUARANTINED"}),
    ],
    ids=lambda value: value.cause if isinstance(value, Verdict) else "",
)
def test_a_verdict_causes_its_alerts(verdict: Verdict, expected: set[str]) -> None:
    assert alert_causes(verdict) == expected


def test_every_alert_of_verdicts_is_registered() -> None:
    assert set(catalog().alerts) >= verdict_alerts() >= {"DATA_LOSS_NEAR", "STREAM_UNHEALTHY", "DATA_LOST"}


def test_alerts_are_raised_and_resolved_with_verdicts(objects: LocalObjects) -> None:
    other = dataclasses.replace(WELL, name="edits")
    alert_on_verdicts(objects, [unhealthy("BACKLOG_OLD"), other], now=NOW)
    assert open_alerts(objects) == {("BACKLOG_OLD", "stream games")}

    alert_on_verdicts(objects, [unhealthy("HEARTBEAT_STALE"), other], now=NOW + timedelta(minutes=1))
    assert open_alerts(objects) == {("STREAM_HUNG", "stream games")}

    alert_on_verdicts(objects, [WELL, other], now=NOW + timedelta(minutes=2))
    assert open_alerts(objects) == set()


def test_alerts_of_undeclared_subjects_are_resolved(objects: LocalObjects) -> None:
    alert_on_verdicts(objects, [unhealthy("BACKLOG_OLD")], now=NOW)

    alert_on_verdicts(objects, [dataclasses.replace(WELL, name="edits")], now=NOW + timedelta(minutes=1))

    assert open_alerts(objects) == set()


@pytest.mark.parametrize("off", [False, True], ids=["protected", "without a bound"])
def test_an_old_backlog_raises_an_alert_and_resolves_itself(objects: LocalObjects, off: bool) -> None:
    """Input at twice the capacity arrives for three hours, then none until all of it has landed."""
    limits = HealthLimits(backlog_seconds_max=1e9 if off else 3600, stall_seconds=1e9)
    previous, causes = None, []
    for minute in range(0, 420, 5):
        now = NOW + timedelta(minutes=minute)
        # After m minutes the input of the first m/2 minutes has landed; the oldest waiting event arrived then.
        waited = minute / 2 if minute <= 180 else max(0.0, 180 - minute / 2)
        waits = minute < 360
        beat = Heartbeat(
            pipeline="games", owner="o", epoch=1, run="r", state="running", written_at=now.isoformat(),
            started_at=NOW.isoformat(), last_batch_at=now.isoformat(), trigger_seconds=5, batch_id=minute,
            backlog_files=100 if waits else 0,
            oldest_pending_at=(now - timedelta(minutes=waited)).isoformat() if waits else None,
        )  # fmt: skip
        verdict = evaluate_health(beat, None, kind="stream", name="games", now=now, previous=previous, limits=limits)
        alert_on_verdicts(objects, [verdict], now=now)
        previous, causes = verdict, [*causes, verdict.cause]

    assert causes[0] == causes[-1] == "OK"
    sent = [Notification.decode(objects.get(key).data) for key in objects.list("control/alerts/spool/")]  # type: ignore[union-attr]
    expected = [] if off else [("BACKLOG_OLD", "raised"), ("BACKLOG_OLD", "resolved")]
    assert [(notification.cause, notification.kind) for notification in sent] == expected
    assert open_alerts(objects) == set()


@pytest.mark.parametrize("off", [False, True], ids=["protected", "without a bound"])
def test_quarantined_rows_raise_an_alert_with_reasons_and_resolve_it(objects: LocalObjects, off: bool) -> None:
    """For half an hour every event is rejected, then every event is valid."""
    limits = HealthLimits(quarantined_share_max=1.0 if off else 0.05, stall_seconds=1e9)
    previous, throughput, causes, summaries = None, Throughput(), [], set()
    for minute in range(0, 150, 5):
        now = NOW + timedelta(minutes=minute)
        bad = 1_000 if minute < 30 else 0
        read = EventTotals(events=1_000, rows=1_000 - bad, quarantined=bad, reasons={("type_mismatch", "level"): bad})
        throughput = throughput.merged(Throughput().with_batch(now, read), now=now)
        beat = Heartbeat(
            pipeline="games", owner="o", epoch=1, run="r", state="idle", written_at=now.isoformat(),
            started_at=NOW.isoformat(), last_batch_at=now.isoformat(), trigger_seconds=5, batch_id=minute,
        )  # fmt: skip
        options = {"now": now, "previous": previous, "limits": limits, "throughput": throughput}
        previous = evaluate_health(beat, None, kind="stream", name="games", **options)
        alert_on_verdicts(objects, [previous], now=now)
        causes.append(previous.cause)
        summaries |= {alert.summary for alert in alerts(objects) if alert.state.is_open}

    assert causes[-1] == "OK"
    assert open_alerts(objects) == set()
    sent = [Notification.decode(objects.get(key).data) for key in objects.list("control/alerts/spool/")]  # type: ignore[union-attr]
    expected = [] if off else [("ROWS_QUARANTINED", "raised"), ("ROWS_QUARANTINED", "resolved")]
    assert [(notification.cause, notification.kind) for notification in sent] == expected
    if not off:
        assert sent[0].runbook == "reference/alerts.md#too-much-goes-to-quarantine"
        assert any("1,000 of 1,000 events of the last hour are in quarantine" in text for text in summaries)
        assert all(
            "type_mismatch at level" in text and "deltaworks quarantine list games" in text for text in summaries
        )


@pytest.mark.parametrize(
    ("verdict", "step"),
    [
        (
            dataclasses.replace(WELL, state="stopped", cause="STOP_REQUESTED", next_step="deltaworks start games"),
            "Raise the source's retention now, or let it run again: `deltaworks start games`.",
        ),
        (
            unhealthy("HEARTBEAT_STALE"),
            "Raise the source's retention now, then find out why the stream is behind. Mend it.",
        ),
        (unhealthy("SOURCE_EXPIRES"), "Mend it."),
    ],
)
def test_expiring_input_raises_an_alert_with_the_next_step(objects: LocalObjects, verdict: Verdict, step: str) -> None:
    for left, seen in ((7_200.0, "forgets the oldest that waits in 2.0 h"), (-7_200.0, "may have forgotten")):
        verdict = dataclasses.replace(verdict, loss_near=True, time_left_seconds=left)
        alert_on_verdicts(objects, [verdict], now=NOW)
        (alert,) = [one for one in alerts(objects) if one.cause == "DATA_LOSS_NEAR"]
        assert seen in alert.summary
        assert alert.detail["next_step"] == step
        assert alert.summary.endswith(f" Next: {step}")


class FakeAirflow:
    """A fake Airflow API that records cleared tasks."""

    def __init__(self, *, state: str = "running", started: datetime = NOW - timedelta(hours=1)) -> None:
        self.run = DagRun("games__stream", "r1", "running", NOW - timedelta(hours=2), None, {})
        self.task = TaskInstance("ingest", state, 1, started, None, None)
        self.cleared: list[tuple[str, str, str]] = []

    def dag_runs(self, dag_id: str, *, limit: int = 10) -> tuple[DagRun, ...]:
        return (self.run,)

    def task_instances(self, dag_id: str, run_id: str) -> tuple[TaskInstance, ...]:
        return (self.task,)

    def clear_task(self, dag_id: str, run_id: str, task_id: str) -> None:
        self.cleared.append((dag_id, run_id, task_id))


HUNG = HungProcess(
    subject="stream games", dag_id="games__stream", record_key="control/x/restarts.json", max_restarts_per_hour=3
)


def test_the_running_task_of_a_hung_stream_is_cleared(objects: LocalObjects) -> None:
    airflow = FakeAirflow()

    (line,) = restart_hung(objects, [HUNG], airflow, now=NOW)

    assert airflow.cleared == [("games__stream", "r1", "ingest")]
    assert "cleared ingest" in line


@pytest.mark.parametrize(
    "airflow",
    [FakeAirflow(state="up_for_retry"), FakeAirflow(started=NOW - timedelta(seconds=60))],
    ids=["none runs", "it has just started"],
)
def test_nothing_is_cleared_without_a_running_task_or_during_startup(
    objects: LocalObjects, airflow: FakeAirflow
) -> None:
    restart_hung(objects, [HUNG], airflow, now=NOW)

    assert airflow.cleared == []


def hung_report(silent_seconds: float) -> Report:
    subject = Subject("stream", "games", "control/x", HealthLimits())
    heartbeat = healthy_heartbeat("games", written_at=(NOW - timedelta(seconds=silent_seconds)).isoformat())
    verdict = evaluate_health(heartbeat, None, kind="stream", name="games", now=NOW)
    assert verdict.cause == "HEARTBEAT_STALE"
    return Report(subject, verdict, heartbeat)


@pytest.mark.parametrize(
    ("airflow", "silent_seconds", "cause"),
    [
        (FakeAirflow(started=NOW - timedelta(seconds=60)), 600, "BETWEEN_RUNS"),
        (FakeAirflow(started=NOW - timedelta(seconds=200)), 600, "HEARTBEAT_STALE"),
        (FakeAirflow(state="up_for_retry"), 200, "BETWEEN_RUNS"),
        (FakeAirflow(state="up_for_retry"), 4_000, "HEARTBEAT_STALE"),
        (FakeAirflow(state="success"), 200, "HEARTBEAT_STALE"),
    ],
    ids=["just started", "runs for longer", "its next try is near", "no try ever starts", "none runs"],
)
def test_a_process_that_only_just_starts_does_not_hang(airflow: FakeAirflow, silent_seconds: float, cause: str) -> None:
    (found,) = with_task_starts([hung_report(silent_seconds)], airflow, now=NOW)

    assert found.verdict.cause == cause
    assert found.verdict.is_unhealthy == (cause == "HEARTBEAT_STALE")


def test_a_stream_is_checked_by_its_declared_limits(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deltaworks.control.health.report import limits_of
    from deltaworks.specs.project import load_catalog

    usual = limits_of(load_catalog().pipeline("games"))
    monkeypatch.setenv("DELTAWORKS_SET__pipelines__games__health__stale_seconds", "30")
    monkeypatch.setenv("DELTAWORKS_SET__pipelines__games__health__start_seconds", "45")
    declared = limits_of(load_catalog().pipeline("games"))

    assert (usual.stale_seconds(5), usual.grace_seconds) == (120, 180)
    assert (declared.stale_seconds(5), declared.stale_seconds(60), declared.grace_seconds) == (30, 180, 45)


def test_a_stream_may_declare_that_it_starts_sooner(objects: LocalObjects) -> None:
    airflow = FakeAirflow(started=NOW - timedelta(seconds=60))

    restart_hung(objects, [dataclasses.replace(HUNG, startup_seconds=45)], airflow, now=NOW)

    assert len(airflow.cleared) == 1


def test_restarts_of_a_hung_stream_are_limited_and_alerted(objects: LocalObjects) -> None:
    airflow = FakeAirflow()
    for minute in range(30):
        restart_hung(objects, [HUNG], airflow, now=NOW + timedelta(minutes=minute))

    assert len(airflow.cleared) == 3
    assert ("RESTARTS_EXHAUSTED", "stream games") in open_alerts(objects)

    restart_hung(objects, [HUNG], airflow, now=NOW + timedelta(minutes=61))
    assert len(airflow.cleared) == 4, "the hour is over"
    resolve_restart_alerts(objects, ["stream games"], now=NOW + timedelta(minutes=70))
    assert open_alerts(objects) == set()


def test_concurrent_health_checks_restart_once(objects: LocalObjects) -> None:
    class Racing(LocalObjects):
        """Another health check writes between this one's read and write."""

        def put_if_absent(self, key: str, data: bytes) -> bool:
            super().put_if_absent(key, json.dumps({"at": [NOW.isoformat()], "other": True}).encode())
            return super().put_if_absent(key, data)

    airflow = FakeAirflow()

    restart_hung(Racing(objects._root), [HUNG], airflow, now=NOW)

    assert airflow.cleared == []


@pytest.mark.parametrize(
    ("schedule", "hours", "overdue"),
    [
        ("0 3 * * *", 47.9, False),
        ("0 3 * * *", 48.1, True),
        ("*/5 * * * *", 1.0, False),
        ("*/5 * * * *", 1.2, True),
        ("0 3 * * 1", 24 * 14 - 1, False),
        ("0 3 * * 1", 24 * 14 + 1, True),
    ],
)
def test_a_job_is_overdue_after_two_of_its_intervals_or_one_and_an_hour(
    schedule: str, hours: float, overdue: bool
) -> None:
    assert is_overdue(schedule, NOW - timedelta(hours=hours), NOW) == overdue


def test_the_longest_interval_of_a_weekday_schedule_is_the_weekend() -> None:
    assert longest_interval("0 3 * * 1-5", NOW) == timedelta(days=3)


def test_a_preset_that_only_airflow_has_has_an_interval() -> None:
    assert longest_interval("@quarterly", NOW) == timedelta(days=92)


def context_of(objects: LocalObjects, *, leaf: bool = True, exception: object = None) -> Any:
    task = SimpleNamespace(downstream_task_ids=set() if leaf else {"rebuild_gold"})
    ti = SimpleNamespace(dag_id="games__maintenance", task_id="vacuum_tables", run_id="r1", try_number=2)
    return {"ti": ti, "task": task, "exception": exception}


def test_a_failed_task_raises_an_alert_that_its_next_success_resolves(objects: LocalObjects) -> None:
    from deltaworks.airflow.job_alerts import last_success, raise_failure_alert, record_success
    from deltaworks.errors import ConcurrencyError

    raise_failure_alert(
        objects, context_of(objects, exception=ConcurrencyError("DELTA_CONFLICT", "Lost.", hint="Again."))
    )
    (alert,) = alerts(objects)
    assert alert.subject == "games__maintenance.vacuum_tables"
    assert "[DELTA_CONFLICT] Lost. Next: Again." in alert.summary
    assert alert.detail["condition"] == "DELTA_CONFLICT"
    assert alert.detail["next_step"] == "Again."

    assert last_success(objects, "games__maintenance", now=NOW) == NOW
    assert record_success(objects, context_of(objects))
    assert open_alerts(objects) == set()
    assert last_success(objects, "games__maintenance", now=NOW) > NOW
    assert not record_success(objects, context_of(objects)), "there is nothing to tell"


def manual_context(objects: LocalObjects, form: dict[str, Any], **fixed: Any) -> Any:
    """Returns the context of a manual VACUUM run."""
    from deltaworks.operations.registry import get_operation

    context = context_of(objects)
    task = SimpleNamespace(task_id="vacuum_tables", operation=get_operation("vacuum_tables"), values=fixed)
    task.downstream_task_ids = set()
    return context | {"task": task, "params": form | {"steps": ["vacuum_tables"]}}


@pytest.mark.parametrize(
    ("form", "fixed", "made_good"),
    [
        ({"dry_run": False, "tables": None, "max_files": 5}, {"dry_run": False}, True),
        ({"dry_run": False}, {}, True),
        ({"dry_run": False}, {"spark": True}, True),
        ({"dry_run": False}, {"spark": True, "dry_run": "True"}, False),
        ({"dry_run": True}, {}, False),
        ({"dry_run": False}, {"dry_run": "True"}, False),
        ({"dry_run": False, "tables": ["events"]}, {"dry_run": False}, False),
    ],
)
def test_a_complete_manual_run_resolves_the_failure_of_a_night(
    objects: LocalObjects, form: dict[str, Any], fixed: dict[str, Any], made_good: bool
) -> None:
    from deltaworks.airflow.job_alerts import raise_failure_alert, record_success

    raise_failure_alert(objects, context_of(objects, exception=RuntimeError("no")))
    of_another = context_of(objects, exception=RuntimeError("no"))
    of_another["ti"].dag_id = "edits__maintenance"
    raise_failure_alert(objects, of_another)

    record_success(objects, manual_context(objects, form, **fixed))

    still = {subject for _, subject in open_alerts(objects)}
    assert still == {"edits__maintenance.vacuum_tables"} | (
        set() if made_good else {"games__maintenance.vacuum_tables"}
    )


def test_a_night_succeeds_with_the_task_before_its_teardown(objects: LocalObjects) -> None:
    from deltaworks.airflow.job_alerts import last_success, record_success

    context = context_of(objects, leaf=False)
    record_success(objects, context)
    assert last_success(objects, "games__maintenance", now=NOW) == NOW, "rebuild_gold follows"
    context["task"].downstream_task_ids = {"record_night"}

    record_success(objects, context)

    assert last_success(objects, "games__maintenance", now=NOW) > NOW


@pytest.mark.parametrize("condition", ["GOLD_CHECK_FAILED", "MUTATIONS_BEHIND"])
def test_some_conditions_are_alerts_of_their_own(objects: LocalObjects, condition: str) -> None:
    from deltaworks.airflow.job_alerts import raise_failure_alert, record_success
    from deltaworks.errors import ContractError

    raise_failure_alert(objects, context_of(objects, exception=ContractError(condition, "It is so.")))
    assert {cause for cause, _ in open_alerts(objects)} == {condition}

    assert record_success(objects, context_of(objects))
    assert open_alerts(objects) == set()


def test_a_skipped_night_is_alerted_as_overdue(objects: LocalObjects) -> None:
    from deltaworks.airflow.job_alerts import record_success

    catalog, night = load_catalog("local"), "games__maintenance"
    assert night not in alert_on_overdue_jobs(objects, catalog, now=NOW)
    late = NOW + timedelta(hours=49)
    # Without a run there is no callback: only the check detects it.
    assert open_alerts(objects) == set()

    assert [night in alert_on_overdue_jobs(objects, catalog, now=late + timedelta(minutes=n)) for n in range(3)] == [
        True
    ] * 3
    assert ("JOB_OVERDUE", night) in open_alerts(objects)
    raised = [alert for alert in alerts(objects) if (alert.cause, alert.subject) == ("JOB_OVERDUE", night)]
    assert [len(alert.state.notification_times) for alert in raised] == [1]

    record_success(objects, context_of(objects))
    assert night not in alert_on_overdue_jobs(objects, catalog, now=utc_now())
    assert ("JOB_OVERDUE", night) not in open_alerts(objects)


def test_a_damaged_success_record_is_replaced(
    objects: LocalObjects,
) -> None:
    from deltaworks.airflow.job_alerts import last_success

    objects.put("control/alerts/jobs/games__maintenance.json", b"{torn")

    assert last_success(objects, "games__maintenance", now=NOW) == NOW
    assert last_success(objects, "games__maintenance", now=NOW + timedelta(hours=49)) == NOW


def test_a_task_with_downstream_tasks_does_not_complete_its_job(objects: LocalObjects) -> None:
    from deltaworks.airflow.job_alerts import record_success

    record_success(objects, context_of(objects, leaf=False))

    assert objects.list("control/alerts/jobs/") == []


def gold_catalog(tmp_path: Path) -> Catalog:
    tables = [
        {"name": name, "sql": "x.sql", "reads": ["events"], "partition_by": "event_date", "checks": checks}
        for name, checks in {"daily": {}, "slow": {"max_age_minutes": 600}}.items()
    ]
    gold = {"max_age_minutes": 60, "tables": tables}
    return catalog_of(tmp_path, pipeline_spec(declare_table("events"), pipeline="games", gold=gold))


def land_rows(objects: LocalObjects, minute: int) -> None:
    writer = StreamSummaryWriter(objects, "games")
    at = (NOW + timedelta(minutes=minute)).isoformat()
    writer.add(record_of(BatchSummary, batch_id=minute, at=at, rows=5))
    writer.write(NOW)


def test_a_gold_table_is_stale_while_landed_rows_wait_and_never_without_new_ones(
    objects: LocalObjects, tmp_path: Path
) -> None:
    catalog, home = gold_catalog(tmp_path), PipelineHome(objects, "games")

    def stale_at(minute: int) -> list[str]:
        return alert_on_stale_gold(objects, catalog, now=NOW + timedelta(minutes=minute))

    for table in ("daily", "slow"):
        record_refreshed(home, table, now=NOW)
    assert [stale_at(minute) for minute in (0, 61, 5_000)] == [[], [], []], "its stream is paused"
    land_rows(objects, 5_000)
    assert [stale_at(minute) for minute in (5_001, 5_060, 5_061)] == [[], [], ["games.daily"]]
    (alert,) = (one for one in alerts(objects) if one.cause == "GOLD_STALE")
    assert "Rows that landed 61 min ago wait for games.daily" in alert.summary
    record_refreshed(home, "daily", now=NOW + timedelta(minutes=5_062))
    assert stale_at(5_063) == []
    assert open_alerts(objects) == set()


def test_a_gold_table_that_was_never_built_is_stale_once_rows_wait_since_it_was_seen(
    objects: LocalObjects, tmp_path: Path
) -> None:
    catalog = gold_catalog(tmp_path)
    land_rows(objects, -5_000)
    failed = ContractError("GOLD_SQL_INVALID", "x.sql: no such column")

    stale = []
    for minute in (0, 60, 61):
        stale.append(alert_on_stale_gold(objects, catalog, now=NOW + timedelta(minutes=minute)))
        record_failed(PipelineHome(objects, "games"), "daily", failed, now=NOW)

    assert stale == [[], [], ["games.daily"]]
    assert gold_states(objects, catalog.pipeline("games"), now=NOW)["slow"].state == "never built"


def test_gold_alerts_stay_as_they_are_while_the_storage_does_not_answer(
    objects: LocalObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = gold_catalog(tmp_path)
    record_refreshed(PipelineHome(objects, "games"), "daily", now=NOW)
    land_rows(objects, 1)
    assert alert_on_stale_gold(objects, catalog, now=NOW + timedelta(minutes=62)) == ["games.daily"]
    read = objects.get

    def silent(key: str) -> Any:
        if key == paths.recent_batches("games"):
            raise TransientError("STORAGE_UNREACHABLE", key)
        return read(key)

    monkeypatch.setattr(objects, "get", silent)
    with pytest.raises(TransientError):
        alert_on_stale_gold(objects, catalog, now=NOW + timedelta(minutes=63))
    assert ("GOLD_STALE", "games.daily") in open_alerts(objects)


def test_a_failing_callback_does_not_fail_the_task(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from deltaworks.airflow import job_alerts

    def unreachable() -> Any:
        raise OSError("no lake")

    monkeypatch.setattr(job_alerts, "_open_control", unreachable)

    failed = context_of(LocalObjects(Path("none")))
    task = f"{failed['ti'].dag_id}.{failed['ti'].task_id}"
    job_alerts.alert_on_failure(failed)
    job_alerts.resolve_on_success(context_of(LocalObjects(Path("none"))))

    assert [record.getMessage() for record in caplog.records if record.name == job_alerts.__name__] == [
        "The alert for the failed task could not be raised.",
        f"JOB_FAILED {task}: It ended without an error. Next: {hint_for('JOB_FAILED')}",
        "The success could not be recorded.",
    ]


@pytest.mark.parametrize("minutes", [None, "30"])
def test_a_declared_deadline_uses_airflows_deadline_alert(
    project: Path, monkeypatch: pytest.MonkeyPatch, minutes: str | None
) -> None:
    from deltaworks.airflow.scheduled_dags import gold_dag
    from deltaworks.specs.project import load_catalog

    if minutes is not None:
        monkeypatch.setenv("DELTAWORKS_SET__pipelines__games__gold__deadline_minutes", minutes)
    catalog = load_catalog()
    dag = gold_dag(catalog.pipeline("games"), catalog.environment)

    declared = [(alert.interval, alert.callback.path, alert.callback.kwargs) for alert in dag.deadline or []]

    path, kwargs = "deltaworks.airflow.job_alerts.alert_on_missed_deadline", {"dag_id": "games__gold", "minutes": 30.0}
    assert declared == ([] if minutes is None else [(timedelta(minutes=30), path, kwargs)])


def test_a_missed_deadline_raises_an_alert_that_the_next_success_resolves(
    project: Path, objects: LocalObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltaworks.airflow import job_alerts
    from deltaworks.specs.project import load_catalog

    catalog = load_catalog()
    monkeypatch.setattr(job_alerts, "_open_control", lambda: (objects, catalog))

    job_alerts.alert_on_missed_deadline(
        dag_id="games__maintenance", minutes=30, context={"dag_run": {"dag_run_id": "scheduled__1"}}
    )
    (alert,) = alerts(objects)
    assert (alert.cause, alert.subject, alert.detail) == (
        "DEADLINE_MISSED",
        "games__maintenance",
        {"run": "scheduled__1"},
    )
    job_alerts.resolve_on_success(context_of(objects))

    assert open_alerts(objects) == set()


VARIABLE = "AIRFLOW_CONN_DELTAWORKS_AIRFLOW"


def environment(**airflow: Any) -> EnvironmentSpec:
    lake = StorageSpec(root="file:///lake")
    declared = AirflowSpec.model_validate(airflow) if airflow else None
    return EnvironmentSpec(environment="prod", lake=lake, landing=lake, messaging=AwsSpec(), airflow=declared)


@pytest.fixture
def without_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """An Airflow without the connection."""

    def missing(conn_id: str) -> Any:
        raise AirflowNotFoundException(conn_id)

    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(BaseHook, "get_connection", missing)


@pytest.mark.usefixtures("without_connection")
def test_without_a_connection_the_environments_airflow_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with airflow_server("games__stream") as server:
        monkeypatch.setenv("PASSWORD_OF_ADA", server.login[1])
        declared = environment(url=server.url, username=server.login[0], password="env:PASSWORD_OF_ADA")

        with airflow_api(declared) as api:
            api.pause("games__stream")

        assert server.paused["games__stream"]


@pytest.mark.usefixtures("without_connection")
def test_a_run_of_the_health_check_logs_in_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with airflow_server("games__stream") as server, contextlib.ExitStack() as stack:
        monkeypatch.setenv("PASSWORD_OF_ADA", server.login[1])
        declared = environment(url=server.url, username=server.login[0], password="env:PASSWORD_OF_ADA")
        shared = SharedApi(declared, stack)

        assert server.issued == 0
        for _ in range(3):
            assert len(shared.open().dags()) == 1
        assert server.issued == 1


@pytest.mark.usefixtures("without_connection")
def test_without_any_login_each_use_of_the_api_has_the_error() -> None:
    with contextlib.ExitStack() as stack:
        shared = SharedApi(environment(), stack)
        for _ in range(2):
            with pytest.raises(ConfigError, match="AIRFLOW_CONNECTION_MISSING"):
                shared.open()


@pytest.mark.usefixtures("without_connection")
def test_without_any_login_hung_streams_are_not_restarted_and_the_log_has_a_hint() -> None:
    with pytest.raises(ConfigError, match="AIRFLOW_CONNECTION_MISSING"):
        airflow_api(environment())


def test_a_connection_of_airflow_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = (
        '{"conn_type": "http", "host": "airflow", "port": 8443, "schema": "https", "login": "bo", "password": "p"}'
    )
    monkeypatch.setenv(VARIABLE, connection)

    with airflow_api(environment(url="https://elsewhere", token="env:TOKEN")) as api:
        assert (api.login.url, api.login.username) == ("https://airflow:8443", "bo")
        assert api.login.source == "the connection deltaworks_airflow"
