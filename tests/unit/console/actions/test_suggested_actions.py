"""For each condition, written as its records, the overview shows the cause, the next step and the action."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from deltaworks.alerts.deadman import write_health_heartbeat
from deltaworks.alerts.raising import raise_alert
from deltaworks.console.actions.suggested_actions import (
    SuggestedAction,
    command_form_path,
    issue_actions,
    process_actions,
    suggest_action,
)
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.foreign_errors import data_file_error
from deltaworks.control.health.throughput import EventTotals, Throughput
from deltaworks.errors.conditions import catalog
from deltaworks.operations.registry import OPERATIONS
from tests.console_harness import ConsoleHarness, ago, write_process_heartbeat
from tests.unit.console.actions.test_fields import params_of

ALERTS, HEALTH_CAUSES = catalog().alerts, catalog().health_causes
GAMES = paths.pipeline_control("games")


def beating(**changes: Any) -> Callable[[ConsoleHarness], None]:
    return lambda harness: harness.write_heartbeat("games", **changes)


def expiring(harness: ConsoleHarness) -> None:
    # Relative to now, because a long test session may reach this test late.
    harness.write_heartbeat("games", oldest_pending_at=ago(3500), retention_seconds=3600, backlog_files=4)


def alerting(cause: str, subject: str) -> Callable[[ConsoleHarness], None]:
    def happens(harness: ConsoleHarness) -> None:
        raise_alert(harness.objects, cause=cause, subject=subject, summary="seen")

    return happens


def quarantining(harness: ConsoleHarness) -> None:
    harness.write_heartbeat("games")
    total = EventTotals(events=1000, rows=100, quarantined=900, reasons={("type_mismatch", "level"): 900})
    written = Throughput().with_batch(utc_now() - timedelta(minutes=1), total)
    harness.objects.put(paths.throughput(GAMES), written.encode())


def relay_dies(harness: ConsoleHarness) -> None:
    write_process_heartbeat(harness.objects, paths.relay_control("landing"), "landing", written_at=ago(9000))


def spec_breaks(harness: ConsoleHarness) -> None:
    file = harness.catalog.root / "include" / "pipelines" / "games" / "pipeline.yaml"
    file.write_text(file.read_text() + "\nno_such_key: 1\n")


def health_dies(harness: ConsoleHarness) -> None:
    write_health_heartbeat(harness.objects, run="r", checked=3, unhealthy=0, now=utc_now() - timedelta(hours=2))


@dataclass(frozen=True)
class IssueCase:
    """What happens, what the overview has to call it, and the form that mends it; where nothing that can be pressed
    does, the page that says more."""

    happens: Callable[[ConsoleHarness], None]
    cause: str
    form: str
    page: str = ""


def failed(condition: str, *, retryable: bool = True) -> Callable[[ConsoleHarness], None]:
    error = {"condition": condition, "message": "it says why", "hint": "Do this.", "retryable": retryable}
    return beating(state="failed", written_at=ago(900), error=error)


TROUBLES = {
    "a hung driver": IssueCase(beating(written_at=ago(9000)), "HEARTBEAT_STALE", "/actions/control/games?verb=restart"),
    "a red source": IssueCase(
        failed("STORAGE_UNREACHABLE"), "STORAGE_UNREACHABLE", "/actions/control/games?verb=restart"
    ),
    "a poison table": IssueCase(
        alerting("TABLE_SUSPENDED", "games.purchase"),
        "TABLE_SUSPENDED",
        "/actions/resume_table/games?table=purchase",
    ),
    "a full quarantine": IssueCase(quarantining, "ROWS_QUARANTINED", "/actions/replay_quarantine/games"),
    "late gold": IssueCase(
        alerting("GOLD_STALE", "games.daily"), "GOLD_STALE", "/actions/rebuild_gold/games?tables=daily"
    ),
    "a dead relay": IssueCase(relay_dies, "HEARTBEAT_STALE", "/actions/control_relay/landing?verb=restart"),
    "a failing night": IssueCase(
        alerting("JOB_FAILED", "games__maintenance.vacuum_tables"), "JOB_FAILED", "/actions/vacuum_tables/games"
    ),
    "an expiring source": IssueCase(
        expiring,
        "SOURCE_EXPIRES",
        "/actions/control/games?verb=restart",
    ),
    "a lost lease": IssueCase(failed("LEASE_LOST"), "LEASE_LOST", "/actions/control/games?verb=restart"),
    "a broken spec": IssueCase(spec_breaks, "INVALID_DECLARATION", "", "/streams/games"),
    "a dead channel": IssueCase(
        alerting("CHANNEL_FAILING", "sns people"), "CHANNEL_FAILING", "", "/alerts?only=sns+people"
    ),
    "no alerts are raised": IssueCase(health_dies, "HEALTH_SILENT", "", "/dag/deltaworks__health"),
}


def forms_in(page: str) -> set[str]:
    return {html.unescape(path) for path in re.findall(r'href="(/actions/[^"]*)"', page)}


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
def test_the_overview_names_the_cause_and_offers_the_action(harness: ConsoleHarness, trouble: IssueCase) -> None:
    trouble.happens(harness)

    page = harness.get("/").text
    cards = [card.partition("</details>")[0] for card in page.split('<details class="issue ')[1:]]
    items = [item for item in cards if f"<code>{trouble.cause}</code>" in item]
    assert items, (trouble.cause, cards)
    forms = set.union(*map(forms_in, items))

    assert forms == ({trouble.form} if trouble.form else set())
    for item in items:
        step = item.partition("<strong>Next:</strong>")[2].partition("</span>")[0]
        assert len(re.sub(r"<[^>]*>", "", step)) > 6, "the next step is in words"
        links = re.findall(r'class="actions"><a href="([^"]*)"', item)
        assert html.unescape(links[0]) == (trouble.form or trouble.page)
        assert links[1:] in ([], ["/streams/games"]), "a card leads to the page of its stream"
        assert harness.get(trouble.page or "/").status_code == 200


def test_every_alert_has_a_default_next_step(harness: ConsoleHarness) -> None:
    for cause in ALERTS:
        raise_alert(harness.objects, cause=cause, subject="games.purchase", summary="seen")
    issues = {one["cause"]: one for one in harness.view("/")["issues"] if one["subject"] == "games.purchase"}

    assert issues.keys() == ALERTS.keys()
    assert [cause for cause, one in issues.items() if not (one["next_step"].endswith(".") and one["since"])] == []


@pytest.mark.parametrize("trouble", [one for one in TROUBLES.values() if one.form], ids=lambda one: one.cause)
def test_the_action_is_a_prefilled_form_that_exists(harness: ConsoleHarness, trouble: IssueCase) -> None:
    for declared in OPERATIONS.values():
        subject = "landing" if declared.scope == "relay" else "games"
        harness.actions.forms[declared.dag_id(subject)] = params_of(declared)

    answer = harness.get(trouble.form)

    assert answer.status_code == 200
    for value in re.findall(r"=(\w+)", trouble.form):
        assert (
            f"<option selected>{value}</option>" in answer.text
            or f'value="{value}"' in answer.text
            or value in ("daily",)
        )


SUBJECTS = (
    *("stream games", "relay landing", "games.purchase", "games__gold.rebuild", "feeds games", "", "x y", "a__"),
    *("players__erase.erase", "players__vault.ingest_vault", "keep_vault__players.maintain_vault"),
)


def has_form(action: SuggestedAction | None, subject: str) -> bool:
    if action is None:
        return True
    _, _, operation, name = action.path.partition("?")[0].split("/")
    scope = "relay" if subject.startswith("relay") else "pipeline"
    return operation in OPERATIONS and OPERATIONS[operation].scope == scope and bool(name)


def test_no_cause_suggests_a_form_that_does_not_exist() -> None:
    cases = [(cause, subject) for cause in sorted({*ALERTS, *HEALTH_CAUSES}) for subject in SUBJECTS]

    assert [case for case in cases if not has_form(suggest_action(*case), case[1])] == []
    suggested = [action for case in cases if (action := suggest_action(*case)) is not None]
    assert not has_form(replace(suggested[0], path="/actions/none/games"), "stream games")


@pytest.mark.parametrize("name", [one.name for one in OPERATIONS.values() if one.scope == "namespace"])
def test_operations_on_a_namespace_have_no_form_for_a_pipeline(harness: ConsoleHarness, name: str) -> None:
    declared = OPERATIONS[name]
    harness.actions.forms[declared.dag_id("games")] = params_of(declared)

    assert harness.get(f"/actions/{declared.name}/games").status_code == 404
    assert command_form_path(f"deltaworks {declared.command} games") == ""


def test_a_stopped_process_can_be_started_and_a_running_one_stopped_or_restarted() -> None:
    words = {
        state: [action.label for action in process_actions("stream", "games", state)]
        for state in ("stopped", "healthy")
    }

    assert words == {"stopped": ["start"], "healthy": ["restart", "stop"]}
    assert [action.path for action in process_actions("stream", "games", "healthy", ("purchase",))][-1] == (
        "/actions/resume_table/games?table=purchase"
    )
    assert process_actions("rules", "rules", "healthy") == ()


@pytest.mark.parametrize(
    ("cause", "action"),
    [
        # A retry of the build, or a restart on the edit that was refused, fails again.
        ("GOLD_REFRESH_FAILING", None),
        ("SPEC_CHANGE_UNSAFE", SuggestedAction("start", "/actions/control/games?verb=start")),
        ("DATA_FILE_MISSING", SuggestedAction("recover files", "/actions/recover_files/games")),
        ("DATA_FILE_UNREADABLE", SuggestedAction("recover files", "/actions/recover_files/games")),
    ],
)
def test_the_action_of_a_failing_stream_is_one_that_mends_it(cause: str, action: SuggestedAction | None) -> None:
    assert suggest_action(cause, "stream games") == action


@pytest.mark.parametrize(
    ("cause", "subject"),
    [
        ("JOB_FAILED", "games__gold.rebuild_gold"),
        ("JOB_FAILED", "games__maintenance.optimize_tables"),
        ("JOB_FAILED", "games__reprocess.reprocess"),
        ("GOLD_REFRESH_FAILING", "games.events_per_hour"),
        ("RULE_BROKEN", "games.crash_rate"),
        ("FEED_STALE", "feeds games"),
    ],
)
def test_the_action_of_a_failure_over_a_damaged_file_is_its_repair(cause: str, subject: str) -> None:
    damaged = data_file_error(FileNotFoundError("Path does not exist: tables/games/purchase/part-0.parquet"))
    unnamed = data_file_error(OSError("Parquet magic bytes not found in footer"), tables=("games.a", "games.b"))
    assert damaged is not None
    assert unnamed is not None

    action = suggest_action(cause, subject, damaged.hint)

    assert action == SuggestedAction("recover files", "/actions/recover_files/games?table=purchase")
    assert issue_actions(cause, subject, "games", damaged.hint)[0] == action
    assert suggest_action(cause, subject, unnamed.hint) == replace(action, path="/actions/recover_files/games")


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("deltaworks quarantine replay games", "/actions/replay_quarantine/games"),
        ("deltaworks quarantine replay games --no-dry-run", "/actions/replay_quarantine/games"),
        (
            "deltaworks restore games --table=events --to-version 811",
            "/actions/restore/games?table=events&to_version=811",
        ),
        ("deltaworks tables resume games purchase", "/actions/resume_table/games?table=purchase"),
        ("deltaworks recover files games purchase --full", "/actions/recover_files/games?table=purchase&full=on"),
        ("deltaworks files redrive landing --limit=5", "/actions/redrive/landing?limit=5"),
        ("deltaworks quarantine replay PIPELINE", ""),
        ("deltaworks restore", ""),
        ("deltaworks status", ""),
        ("deltaworks restore games --no-such-flag", ""),
        ("rm -rf /", ""),
        ("deltaworks restore 'games", ""),
        ("deltaworks restore '../../x?y=1'", "/actions/restore/..%2F..%2Fx%3Fy%3D1"),
    ],
)
def test_a_command_of_an_operation_has_its_form(command: str, path: str) -> None:
    assert command_form_path(command) == path
