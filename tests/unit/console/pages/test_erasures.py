"""Erasure requests: who sees them, what is due, and certificates to download."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from deltaworks.alerts.raising import raise_alert
from deltaworks.console.pages import erasures as page
from deltaworks.console.table_reads import TableReadResult
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.records.erasure import Erasures
from deltaworks.privacy.paths import control_path
from tests.console_harness import ConsoleHarness, console_harness, person

PRIVACY = "privacy: {namespace: players, fields: [{path: secret, action: drop}]}\n"
SAVED = "/erasures/players/e1/certificate"
CHAIN = "/erasures/players/certificates"


@pytest.fixture
def harness(project: Path) -> ConsoleHarness:
    """Games have personal data and four requests: certified, near its deadline, overdue, and new."""
    declared = project / "include" / "pipelines" / "games" / "pipeline.yaml"
    declared.write_text(declared.read_text() + PRIVACY)
    harness = console_harness(project)
    harness.people["dpo"] = person("dpo", reads=("players__erase",), starts=())
    for name, days_ago in (("e1", 20), ("e2", 28), ("e3", 31), ("e4", 1)):
        receive(harness, name, days_ago=days_ago)
    erasures = Erasures(harness.objects, "players")
    erasures.record_state(erasures.request("e1"), "certified", by="tests")
    harness.objects.put(paths.erasure_certificate("players", "e1"), b'{"request_id": "e1"}')
    return harness


def receive(harness: ConsoleHarness, name: str, *, days_ago: float) -> None:
    received = utc_now() - dt.timedelta(days=days_ago)
    terms = {"purge_by": received + dt.timedelta(days=21), "deadline_at": received + dt.timedelta(days=30)}
    Erasures(harness.objects, "players").create(name, received_at=received, digest="d", by="dpo", **terms)


def test_open_requests_come_first_by_deadline(harness: ConsoleHarness) -> None:
    shown = harness.view("/erasures", by="dpo")

    assert [(row["request_id"], row["severity"]) for row in shown["listed"]["rows"]] == [
        ("e3", "overdue"),
        ("e2", "critical"),
        ("e4", ""),
        ("e1", ""),
    ]
    (counts,) = shown["namespaces"]
    assert {name: counts[name] for name in ("open", "due", "overdue", "certified")} == {
        "open": 3,
        "due": 1,
        "overdue": 1,
        "certified": 1,
    }
    command = "deltaworks privacy advance players --window now --no-dry-run"
    assert counts["command"] == command
    assert command in harness.get("/erasures", by="dpo").text


def test_only_a_certified_request_has_a_certificate_served_as_stored(harness: ConsoleHarness) -> None:
    html = harness.get("/erasures", by="dpo").text
    saved = harness.get(SAVED, by="dpo")

    assert f'href="{SAVED}"' in html
    assert "/erasures/players/e2/certificate" not in html
    assert (saved.status_code, saved.content) == (200, b'{"request_id": "e1"}')
    assert saved.headers["content-disposition"] == 'attachment; filename="erasure-players-e1.json"'
    assert saved.headers["cache-control"] == "no-store"
    assert harness.get("/erasures/players/e2/certificate", by="dpo").status_code == 404
    assert harness.get("/erasures/players/..%2Fe1/certificate", by="dpo").status_code == 404


def test_a_person_who_may_not_read_the_erasure_dag_sees_nothing(harness: ConsoleHarness) -> None:
    listed = harness.get("/erasures", by="eve")

    assert listed.status_code == 200
    assert "players" not in listed.text
    refused = [harness.get(path, by="eve") for path in (SAVED, CHAIN, "/erasures/none/certificates")]
    assert {answer.status_code for answer in refused} == {404}
    assert "players" not in harness.get("/", by="eve").text
    assert "privacy advance" not in listed.text


def test_the_overview_shows_approaching_deadlines_to_people_who_may_see_them(harness: ConsoleHarness) -> None:
    (counts,) = harness.view("/", by="dpo")["erasures"]

    assert (counts["namespace"], counts["due"], counts["overdue"], counts["open"]) == ("players", 1, 1, 3)
    assert 'href="/erasures?only=players"' in harness.get("/", by="dpo").text
    assert harness.view("/", by="eve")["erasures"] == []


def test_an_alert_on_a_request_is_shown_to_people_who_may_see_the_requests(harness: ConsoleHarness) -> None:
    raise_alert(harness.objects, cause="ERASURE_DUE", subject="players e2", summary="due in 48 h")

    (need,) = harness.view("/", by="dpo")["issues"]
    assert (need["cause"], need["subject"]) == ("ERASURE_DUE", "players e2")
    assert 'href="/erasures?only=players"' in harness.get("/", by="dpo").text
    assert harness.view("/", by="eve")["issues"] == []


def test_without_approaching_deadlines_the_overview_shows_none(project: Path) -> None:
    declared = project / "include" / "pipelines" / "games" / "pipeline.yaml"
    declared.write_text(declared.read_text() + PRIVACY)
    harness = console_harness(project)
    receive(harness, "e4", days_ago=1)

    assert harness.view("/")["erasures"] == []


def test_the_certificate_chain_is_verified_by_the_child_process(
    harness: ConsoleHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        page, "read_tables", lambda *_, **__: TableReadResult(rows=({"certificates": 12, "head": True},))
    )
    whole = harness.get(CHAIN, by="dpo").text
    assert "Certificates: 12" in whole
    assert "is not verified" not in whole

    answer = TableReadResult(rows=({"certificates": 12, "head": False},))
    monkeypatch.setattr(page, "read_tables", lambda *_, **__: answer)
    assert "end of the chain is not verified" in harness.get(CHAIN, by="dpo").text

    monkeypatch.setattr(page, "read_tables", lambda *_, **__: TableReadResult(problem="[CERTIFICATES_BROKEN] at <e1>"))
    broken = harness.get(CHAIN, by="dpo").text
    assert "CERTIFICATES_BROKEN" in broken
    assert "each bound to" not in broken


def test_erasure_pages_are_not_cached(harness: ConsoleHarness) -> None:
    assert harness.get("/erasures", by="dpo").headers["cache-control"] == "no-store"


def test_a_damaged_erasure_summary_is_a_message(harness: ConsoleHarness) -> None:
    harness.objects.put(f"{control_path('players')}/erasures.json", b"{")
    answer = harness.get("/erasures", by="dpo")

    assert answer.status_code == 200
    assert "cannot be read" in answer.text
