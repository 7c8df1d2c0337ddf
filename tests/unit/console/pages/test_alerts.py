"""Alerts: firing, silenced and resolved ones."""

from __future__ import annotations

import html

import pytest

from deltaworks.alerts.raising import raise_alert, resolve_alert
from deltaworks.alerts.silences import create_silence
from deltaworks.control import paths
from tests.console_harness import ConsoleHarness


@pytest.fixture
def with_alerts(harness: ConsoleHarness) -> ConsoleHarness:
    raise_alert(harness.objects, cause="GOLD_STALE", subject="games.daily", summary="It is late.")
    raise_alert(harness.objects, cause="DATA_LOSS_NEAR", subject="stream edits", summary="3 h left.")
    raise_alert(harness.objects, cause="JOB_OVERDUE", subject="games__gold", summary="It was due.")
    resolve_alert(harness.objects, cause="JOB_OVERDUE", subject="games__gold")
    raise_alert(harness.objects, cause="CHANNEL_FAILING", subject="people", summary="It refuses.")
    return harness


def test_an_alert_has_its_next_step_once_and_its_action(harness: ConsoleHarness) -> None:
    step = "Start it again: `deltaworks start games`."
    raise_alert(
        harness.objects,
        cause="DATA_LOSS_NEAR",
        subject="stream games",
        summary=f"3 h left. Next: {step}",
        detail={"next_step": step},
    )

    (row,) = harness.view("/alerts")["listed"]["rows"]
    page = harness.get("/alerts").text

    assert (row["summary"], row["next_step"]) == ("3 h left.", step)
    assert page.count("deltaworks start games") == 1, "as a command that can be copied"
    assert 'href="/actions/control/games?verb=restart"' in page


def shown(harness: ConsoleHarness, show: str = "firing", *, by: str = "ada") -> list[str]:
    return [row["cause"] for row in harness.view(f"/alerts?show={show}", by=by)["listed"]["rows"]]


def silence(harness: ConsoleHarness, **more: str) -> None:
    said = {"pipeline": "games", "cause": "GOLD_STALE", "reason": "a backfill runs", "by": "bob"}
    create_silence(harness.objects, **{**said, **more}, hours=2)  # type: ignore[arg-type]


def test_the_most_severe_come_first_and_resolved_alerts_are_history(with_alerts: ConsoleHarness) -> None:
    assert shown(with_alerts)[0] == "DATA_LOSS_NEAR"
    assert set(shown(with_alerts)) == {"DATA_LOSS_NEAR", "GOLD_STALE", "CHANNEL_FAILING"}
    assert shown(with_alerts, "history") == ["JOB_OVERDUE"]
    assert shown(with_alerts, "anything") == shown(with_alerts)
    (ended,) = with_alerts.view("/alerts?show=history")["listed"]["rows"]
    assert ended["began_at"] <= ended["since"], "history says when it began and when it ended"
    page = with_alerts.get("/alerts?show=history").text
    assert [page.count(f'data-label="{name}"') for name in ("began", "ended", "last notification")] == [1, 1, 1]


def test_a_silenced_alert_is_shown_with_its_author(with_alerts: ConsoleHarness) -> None:
    silence(with_alerts)

    assert "GOLD_STALE" not in shown(with_alerts)
    assert shown(with_alerts, "silenced") == ["GOLD_STALE"]
    page = with_alerts.get("/alerts?show=silenced").text
    assert "a backfill runs" in page
    assert "bob" in page
    assert "deltaworks alerts silence games GOLD_STALE --subject &#39;*&#39; --end" in page


def test_each_alert_of_a_pipeline_has_the_form_that_silences_it(with_alerts: ConsoleHarness) -> None:
    page = html.unescape(with_alerts.get("/alerts").text)

    assert 'href="/actions/silence_alert/games?cause=GOLD_STALE&subject=games.daily&hours=1' in page
    assert "deltaworks alerts silence" not in page, "the command is on the page of the form"


def test_a_person_sees_alerts_and_silences_of_visible_subjects(with_alerts: ConsoleHarness) -> None:
    silence(with_alerts)

    assert shown(with_alerts, by="eve") == ["DATA_LOSS_NEAR"]
    assert shown(with_alerts, "silenced", by="eve") == []
    view = with_alerts.view("/alerts", by="eve")
    assert (view["silences"], view["waiting_notifications"], view["silenced"]) == ([], None, 0)
    assert "backfill" not in with_alerts.get("/alerts", by="eve").text


def test_a_person_who_may_start_the_dag_may_silence(with_alerts: ConsoleHarness) -> None:
    may = {row["cause"]: row["may_silence"] for row in with_alerts.view("/alerts")["listed"]["rows"]}
    assert may == {"DATA_LOSS_NEAR": True, "GOLD_STALE": True, "CHANNEL_FAILING": False}
    assert not any(row["may_silence"] for row in with_alerts.view("/alerts", by="vic")["listed"]["rows"])


def test_waiting_notifications_are_counted(with_alerts: ConsoleHarness) -> None:
    assert (
        with_alerts.view("/alerts")["waiting_notifications"]
        == len(with_alerts.objects.list(paths.alerts("spool/")))
        > 0
    )


@pytest.mark.parametrize("torn", [b"", b"{", b"[]", b"null", b'{"format": 99}', b"\xff\xfe"])
@pytest.mark.parametrize("key", [paths.alert_state("JOB_FAILED", "x"), "control/alerts/silences/x.json"])
def test_a_damaged_object_breaks_no_page(with_alerts: ConsoleHarness, key: str, torn: bytes) -> None:
    with_alerts.objects.put(key, torn)

    for show in ("firing", "silenced", "history"):
        assert with_alerts.get(f"/alerts?show={show}").status_code == 200


def test_no_alert_is_firing(harness: ConsoleHarness) -> None:
    assert "No alert is firing." in harness.get("/alerts").text
    assert "No alert is silenced." in harness.get("/alerts?show=silenced").text
    assert "No alert was resolved recently." in harness.get("/alerts?show=history").text
