"""The overview in every state, with damaged objects, and for people with different access."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from deltaworks.alerts.deadman import write_health_heartbeat
from deltaworks.alerts.raising import raise_alert
from deltaworks.console.host import PendingApproval
from deltaworks.console.pages.overview import stream_report, visible_reports
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.health.heartbeat import StopFlag
from deltaworks.control.paths import collector_control
from deltaworks.privacy.paths import control_path
from tests.console_harness import ConsoleHarness, ago, page_context, write_process_heartbeat
from tests.recording_objects import NotingObjects
from tests.unit.control.health.test_collectors import heartbeat_of as collector_beat
from tests.unit.control.health.test_processes import declare_project

STATES = {
    "healthy": {},
    "unhealthy": {"written_at": ago(4_000)},
    "starting": {"state": "starting"},
    "lagging": {"oldest_pending_at": ago(600), "backlog_files": 3},
}


def row_of(harness: ConsoleHarness, name: str = "games") -> dict[str, object]:
    rows: list[dict[str, object]] = harness.view("/")["streams"]
    return next(row for row in rows if row["name"] == name)


@pytest.mark.parametrize("state", STATES)
def test_each_state_is_a_word_and_a_mark(harness: ConsoleHarness, state: str) -> None:
    harness.write_heartbeat("games", **STATES[state])

    assert row_of(harness)["state"] == state
    assert f"</span> {state}" in harness.get("/").text


def test_unhealthy_streams_come_first_with_their_next_step(harness: ConsoleHarness) -> None:
    harness.write_heartbeat("edits")
    harness.write_heartbeat("games", written_at=ago(4_000))
    shown = harness.view("/")

    assert [row["name"] for row in shown["streams"]] == ["games", "edits"]
    assert ("HEARTBEAT_STALE", "games") in {(need["cause"], need["pipeline"]) for need in shown["issues"]}
    assert all(need["next_step"] for need in shown["issues"])


def test_a_stopped_stream_shows_the_person_who_stopped_it(harness: ConsoleHarness) -> None:
    harness.write_heartbeat("edits", state="ended")
    StopFlag(harness.objects, paths.stop_request(paths.pipeline_control("edits"))).set(by="ada", reason="upgrade")
    row = row_of(harness, "edits")

    assert row["state"] == "stopped"
    assert "ada" in str(row["detail"])


def test_an_open_alert_on_another_subject_is_an_issue(harness: ConsoleHarness) -> None:
    harness.write_heartbeat("games")
    harness.write_heartbeat("edits")
    raise_alert(harness.objects, cause="JOB_OVERDUE", subject="games__gold", summary="last came to its end 2 h ago")

    assert "JOB_OVERDUE" in {need["cause"] for need in harness.view("/")["issues"]}
    assert "JOB_OVERDUE" not in {need["cause"] for need in harness.view("/", by="eve")["issues"]}


SUSPENDED = {"table": "purchase", "reason": "suspended", "since_batch": 790, "condition": "TABLE_SCHEMA_DIFFERS"}


def issues(harness: ConsoleHarness, **query: str) -> list[tuple[str, str]]:
    return [(need["cause"], need["subject"]) for need in harness.view("/", **query)["issues"]]


def only_games(harness: ConsoleHarness) -> None:
    """Makes all streams except games healthy."""
    harness.write_heartbeat("edits")
    write_process_heartbeat(harness.objects, paths.relay_control("landing"), "landing", batch_id=None)


def test_a_verdict_with_an_alert_is_shown_once_with_its_start(harness: ConsoleHarness) -> None:
    only_games(harness)
    harness.write_heartbeat("games", written_at=ago(4_000))
    for cause in ("STREAM_HUNG", "RESTARTS_EXHAUSTED"):
        raise_alert(harness.objects, cause=cause, subject="stream games", summary=f"{cause} was raised")

    (need,) = harness.view("/")["issues"]
    assert (need["cause"], need["subject"]) == ("HEARTBEAT_STALE", "stream games")
    assert need["since"] is not None, "the health check has not judged it yet, and the alert knows"
    assert "RESTARTS_EXHAUSTED was raised" in need["detail"], "that nothing restarts it any more is not left out"


@pytest.mark.parametrize("subject", ["stream games", "games.purchase"])
def test_a_suspended_table_is_shown_once_and_is_resumed_by_its_name(harness: ConsoleHarness, subject: str) -> None:
    only_games(harness)
    harness.write_heartbeat("games", held=({**SUSPENDED, "at": ago(600), "message": "column amount"},))
    raise_alert(harness.objects, cause="TABLE_SUSPENDED", subject=subject, summary="seen")

    (need,) = harness.view("/")["issues"]
    assert (need["cause"], need["subject"], need["pipeline"]) == ("TABLE_SUSPENDED", "games.purchase", "games")
    assert "deltaworks tables resume games purchase" in need["next_step"]
    assert need["since"]
    assert "table=purchase" in harness.get("/").text


def test_each_of_two_suspended_tables_is_shown(harness: ConsoleHarness) -> None:
    only_games(harness)
    held = tuple({**SUSPENDED, "table": name, "at": ago(600)} for name in ("purchase", "events"))
    harness.write_heartbeat("games", held=held)

    assert issues(harness) == [("TABLE_SUSPENDED", "games.events"), ("TABLE_SUSPENDED", "games.purchase")]


def test_another_alert_of_the_same_stream_is_not_hidden_by_its_verdict(harness: ConsoleHarness) -> None:
    only_games(harness)
    harness.write_heartbeat("games", written_at=ago(4_000))
    for cause in ("DATA_LOSS_NEAR", "STREAM_HUNG"):
        raise_alert(harness.objects, cause=cause, subject="stream games", summary="seen")

    assert issues(harness) == [("DATA_LOSS_NEAR", "stream games"), ("HEARTBEAT_STALE", "stream games")]


def health_ran(harness: ConsoleHarness, *, seconds_ago: float) -> None:
    write_health_heartbeat(
        harness.objects, run="r", checked=3, unhealthy=0, now=utc_now() - timedelta(seconds=seconds_ago)
    )


def test_a_silent_health_check_is_one_issue(harness: ConsoleHarness) -> None:
    only_games(harness)
    harness.write_heartbeat("games")
    health_ran(harness, seconds_ago=7_200)
    assert issues(harness) == [("HEALTH_SILENT", "deltaworks__health")]

    raise_alert(harness.objects, cause="HEALTH_SILENT", subject="deltaworks__health", summary="for 120 min")
    assert issues(harness) == [("HEALTH_SILENT", "deltaworks__health")]
    assert issues(harness, by="eve") == [], "whoever may not see the health check"


def test_a_running_health_check_is_no_issue(harness: ConsoleHarness) -> None:
    only_games(harness)
    harness.write_heartbeat("games")
    health_ran(harness, seconds_ago=20)

    assert issues(harness) == []


def pending_approval(dag_id: str, subject: str = "vacuum games?") -> PendingApproval:
    return PendingApproval(
        dag_id=dag_id, run_id="r", subject=subject, since=utc_now(), address=f"/dags/{dag_id}/runs/r"
    )


def test_pending_approvals_are_counted_for_people_who_may_see_them(harness: ConsoleHarness) -> None:
    harness.actions.approvals = (
        pending_approval("games__vacuum_tables"),
        pending_approval("edits__stream", "<b>edits</b>"),
    )

    assert [one["dag_id"] for one in harness.view("/")["approvals"]] == ["games__vacuum_tables", "edits__stream"]
    assert [one["dag_id"] for one in harness.view("/", by="eve")["approvals"]] == ["edits__stream"]
    html = harness.get("/").text
    assert "Pending approvals: 2" in html
    assert 'data-airflow-link href="/dags/games__vacuum_tables/runs/r"' in html
    assert "&lt;b&gt;edits&lt;/b&gt;" in html


def test_without_pending_approvals_none_are_shown(harness: ConsoleHarness) -> None:
    assert "Waiting for an answer" not in harness.get("/").text


def test_a_person_sees_only_streams_of_visible_dags(harness: ConsoleHarness) -> None:
    harness.write_heartbeat("edits")
    harness.write_heartbeat("games", written_at=ago(4_000))
    shown = harness.view("/", by="eve")

    assert [row["name"] for row in shown["streams"]] == ["edits"]
    assert shown["other_processes"] == []
    assert shown["issues"] == []
    assert "games" not in harness.get("/", by="eve").text


def test_rows_are_filtered_by_words(harness: ConsoleHarness) -> None:
    harness.write_heartbeat("edits")
    shown = harness.view("/?only=EDIT")

    assert [row["name"] for row in shown["streams"]] == ["edits"]
    assert shown["hidden_rows"] == 2


def test_a_relay_shows_its_dead_letters(harness: ConsoleHarness) -> None:
    write_process_heartbeat(harness.objects, paths.relay_control("landing"), "landing", dead_letters=3, batch_id=None)
    (relay,) = harness.view("/")["other_processes"]

    assert (relay["name"], relay["dead_letters"]) == ("landing", 3)


@pytest.mark.parametrize("torn", [b"", b"{", b"[]", b"null", b'{"format": 99}', b"\xff\xfe"])
@pytest.mark.parametrize(
    "key",
    [
        paths.heartbeat(paths.pipeline_control("games")),
        paths.stop_request(paths.pipeline_control("games")),
        paths.throughput(paths.pipeline_control("games")),
        paths.health_verdicts(),
        paths.alerts("health.json"),
        paths.alert_state("JOB_FAILED", "x"),
    ],
)
def test_a_damaged_object_breaks_no_page(harness: ConsoleHarness, key: str, torn: bytes) -> None:
    harness.write_heartbeat("games")
    harness.objects.put(key, torn)

    assert harness.get("/").status_code == 200
    assert {row["name"] for row in harness.view("/")["streams"]} == {"edits", "games"}


def test_ages_are_no_part_of_the_view(harness: ConsoleHarness) -> None:
    harness.write_heartbeat("games", written_at=datetime.now(UTC).isoformat())
    first = harness.get("/?format=json").headers["etag"]

    assert harness.get("/?format=json").headers["etag"] == first


def test_collectors_are_checked_for_the_overview_and_not_for_a_stream_page(tmp_path: Path) -> None:
    catalog, objects = declare_project(tmp_path / "project"), NotingObjects(tmp_path / "lake")
    now = utc_now()
    beat = collector_beat(written_at=now.isoformat(), started_at=now.isoformat())
    objects.put(paths.collector_heartbeat("edge", "c" * 32), beat.encode())
    alone, _ = stream_report(page_context(catalog, objects, now=now), "shop")
    read_for_stream = [objects.times_read(folder) for folder in (collector_control(""), control_path(""))]
    every, _ = visible_reports(page_context(catalog, objects, now=now + timedelta(hours=1)))

    assert alone is not None
    assert alone.subject.key == "shop__stream"
    assert read_for_stream == [0, 0]
    causes = {item.subject.key: item.verdict.cause for item in every}
    assert causes["edge__collector"] == "COLLECTOR_STALE"
    assert causes["customers__vault"] == "STARTING"


def test_critical_issues_are_open_cards_before_the_streams_and_others_are_folded_after_them(
    harness: ConsoleHarness,
) -> None:
    harness.write_heartbeat("games", written_at=ago(4_000))
    harness.write_heartbeat("edits")
    harness.actions.approvals = (pending_approval("games__vacuum_tables"),)
    for cause, subject in (("RULE_UNKNOWN", "games.crash_rate"), ("GOLD_STALE", "games.daily"),
                           ("JOB_OVERDUE", "edits__gold"), ("CHANNEL_FAILING", "webhook")):  # fmt: skip
        raise_alert(harness.objects, cause=cause, subject=subject, summary="It is so.")

    page = harness.get("/").text

    cards = re.findall(r'<details class="issue (\w+)" data-key="(\w+) [^"]*"( open)?>', page)
    assert {severity for severity, _, is_open in cards if is_open} == {"critical"}
    assert all(is_open for severity, _, is_open in cards if severity == "critical")
    places = [page.index(f"<h2 id={name}") for name in ('"approvals"', '"critical"', '"streams"', '"warnings"')]
    assert places == sorted(places)
    assert re.findall(r"<h3>(?:<a [^>]*>)?(\w+)", page[places[-1] :]) == ["Platform", "games", "edits"]
    warnings = [cause for severity, cause, _ in cards if severity == "warning"]
    assert warnings.index("GOLD_STALE") < warnings.index("RULE_UNKNOWN"), "rules come last"
    assert "games.daily: landed rows wait for a gold table longer than declared" in page


@pytest.mark.parametrize("state", ["healthy", "lagging"])
def test_an_alert_that_the_page_itself_knows_to_be_over_is_no_issue(harness: ConsoleHarness, state: str) -> None:
    only_games(harness)
    harness.write_heartbeat("games", **STATES[state])
    health_ran(harness, seconds_ago=20)
    for cause in ("STREAM_HUNG", "STREAM_UNHEALTHY"):
        raise_alert(harness.objects, cause=cause, subject="stream games", summary="as of a minute ago")
    raise_alert(harness.objects, cause="HEALTH_SILENT", subject="deltaworks__health", summary="for 120 min")
    raise_alert(harness.objects, cause="DATA_LOSS_NEAR", subject="stream games", summary="this is told of its own")

    assert issues(harness) == [("DATA_LOSS_NEAR", "stream games")]


def test_the_rules_of_a_pipeline_that_wait_for_data_are_one_issue(harness: ConsoleHarness) -> None:
    only_games(harness)
    harness.write_heartbeat("games")
    for rule in ("crash_rate", "bookings_low", "cdn_slow"):
        raise_alert(
            harness.objects,
            cause="RULE_UNKNOWN",
            subject=f"games.{rule}",
            summary=f"{rule} cannot be judged: games.events has no rows newer than 2024-03-11 (limit 25 min).",
            detail={"next_step": "Find out why games.events gets no rows."},
        )
    raise_alert(harness.objects, cause="RULE_UNKNOWN", subject="edits.rate", summary="rate cannot be judged: no rows.")

    assert issues(harness) == [("RULE_UNKNOWN", "edits.rate"), ("RULE_UNKNOWN", "games")]
    (need,) = [need for need in harness.view("/")["issues"] if need["subject"] == "games"]
    assert "3 rules of games wait for data: bookings_low, cdn_slow, crash_rate." in need["detail"]
    assert "deltaworks alerts rules games" in need["next_step"]
    assert need["since"]
    assert harness.get("/").status_code == 200


def test_only_suspended_tables_are_resumed_by_a_person(harness: ConsoleHarness) -> None:
    only_games(harness)
    held = ({**SUSPENDED, "at": ago(600)}, {**SUSPENDED, "table": "events", "reason": "reprocess", "at": ago(60)})
    harness.write_heartbeat("games", held=held)

    for page in ("/", "/streams/games"):
        text = harness.get(page).text
        assert "resume purchase" in text
        assert "resume events" not in text, "the job that holds it lets it go on"
    assert row_of(harness)["held"] == ["purchase", "events"]
