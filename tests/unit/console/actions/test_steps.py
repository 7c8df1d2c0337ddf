"""Steps of an action: form, count, confirmation and run; who may start it, once, from the console's own pages."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

from tests.console_harness import ConsoleHarness

OWN = {"origin": "http://testserver"}
CONTROL, VACUUM = "/actions/control/games", "/actions/vacuum_tables/games"


def send(harness: ConsoleHarness, path: str, values: dict[str, Any], *, by: str | None = "ada", **headers: str) -> Any:
    return harness.client.post(
        path,
        data=values,
        headers={"accept": "text/html", **OWN, **({} if by is None else {"X-Person": by}), **headers},
        follow_redirects=False,
    )


def hidden_value(page: str, name: str) -> str:
    """Returns the value of a hidden field."""
    match = re.search(rf'name="{name}" value="([^"]*)"', page)
    assert match is not None, name
    return html.unescape(match[1])


def hidden_fields(harness: ConsoleHarness, path: str) -> dict[str, str]:
    """Returns the hidden fields of a newly opened form."""
    return {"_nonce": hidden_value(harness.get(path).text, "_nonce")}


def test_a_stop_is_one_run_of_the_control_dag_with_what_the_form_says(with_forms: ConsoleHarness) -> None:
    form = hidden_fields(with_forms, f"{CONTROL}?verb=stop")

    answer = send(with_forms, CONTROL, {**form, "verb": "stop", "reason": "a new key", "wait_seconds": "60"})

    ((dag_id, run_id, conf),) = with_forms.actions.started
    assert (dag_id, run_id) == ("games__control", f"console__{form['_nonce']}")
    assert conf == {"action": "stop", "target": None, "reason": "a new key", "wait_seconds": 60.0}
    assert (answer.status_code, answer.headers["location"]) == (303, f"{CONTROL}/runs/{run_id}")
    assert "complete" in with_forms.get(answer.headers["location"]).text


def test_a_form_sent_twice_starts_one_run(with_forms: ConsoleHarness) -> None:
    values = {**hidden_fields(with_forms, CONTROL), "verb": "restart"}

    addresses = {send(with_forms, CONTROL, values).headers["location"] for _ in range(2)}

    assert len(with_forms.actions.started) == 1
    assert len(addresses) == 1


def test_a_destructive_action_counts_first_and_runs_with_the_counted_options(with_forms: ConsoleHarness) -> None:
    with_forms.actions.results = [{"table": "events", "files": 40}, {"table": "purchase", "files": 2}]
    counted = send(with_forms, VACUUM, {**hidden_fields(with_forms, VACUUM), "tables": "events"}).headers["location"]
    assert with_forms.actions.started[0][2]["dry_run"] is True

    run_page = with_forms.get(counted).text
    assert "Continue with the counted action" in run_page
    confirm = with_forms.get(counted.replace("/runs/", "/confirm/")).text
    assert re.search(r"files <strong>42</strong>", confirm), "the dialog names what goes"
    answer = send(
        with_forms,
        VACUUM,
        {
            "_nonce": hidden_value(confirm, "_nonce"),
            "_count_run": hidden_value(confirm, "_count_run"),
            "tables": "purchase",
        },
    )

    assert answer.status_code == 303
    first, second = with_forms.actions.started
    assert second[2] == {**first[2], "dry_run": False}, "what was counted, whatever the form says by then"


@pytest.mark.parametrize("ends", ["failed", "running"])
def test_a_count_that_did_not_succeed_cannot_be_confirmed(with_forms: ConsoleHarness, ends: str) -> None:
    counted = send(with_forms, VACUUM, hidden_fields(with_forms, VACUUM)).headers["location"]
    with_forms.actions.end_state = ends

    answer = send(with_forms, VACUUM, {"_nonce": "n" * 20, "_count_run": counted.rpartition("/")[2]})

    assert answer.status_code == 422
    assert "ACTION_NOT_COUNTED" in answer.text
    assert len(with_forms.actions.started) == 1


def test_a_form_cannot_skip_the_count(with_forms: ConsoleHarness) -> None:
    send(with_forms, VACUUM, {**hidden_fields(with_forms, VACUUM), "dry_run": "off"})
    send(with_forms, VACUUM, {**hidden_fields(with_forms, VACUUM), "dry_run": "false"})

    assert [conf["dry_run"] for _, _, conf in with_forms.actions.started] == [True, True]


@pytest.mark.parametrize(
    ("by", "headers", "status"),
    [
        ("ada", {"origin": "https://evil.example"}, 403),
        ("ada", {"origin": "http://testserver", "sec-fetch-site": "cross-site"}, 403),
        ("vic", OWN, 403),
        ("eve", OWN, 404),
        ("mallory", OWN, 403),
        (None, OWN, 401),
    ],
)
def test_other_people_and_pages_start_nothing(
    with_forms: ConsoleHarness, by: str | None, headers: dict[str, str], status: int
) -> None:
    values = {"_nonce": "n" * 20, "verb": "stop"}

    assert send(with_forms, CONTROL, values, by=by, **headers).status_code == status
    assert with_forms.actions.started == []


@pytest.mark.parametrize("nonce", ["", "short", "x" * 65, "../../api/v2/dags", "nnnnnnnnnnnnnnnn\n"])
def test_a_form_without_a_nonce_is_rejected(with_forms: ConsoleHarness, nonce: str) -> None:
    assert send(with_forms, CONTROL, {"_nonce": nonce, "verb": "stop"}).status_code == 422 or nonce.endswith("\n")
    assert all(run_id == f"console__{nonce.strip()}" for _, run_id, _ in with_forms.actions.started)
    assert not with_forms.actions.started or nonce.endswith("\n")


def test_an_invalid_value_is_shown_with_the_submitted_form(with_forms: ConsoleHarness) -> None:
    answer = send(
        with_forms,
        CONTROL,
        {**hidden_fields(with_forms, CONTROL), "verb": "explode", "reason": "<b>why</b>", "wait_seconds": "5"},
    )

    assert answer.status_code == 422
    assert "is not one of stop, start, restart" in html.unescape(answer.text)
    assert "&lt;b&gt;why&lt;/b&gt;" in answer.text
    assert with_forms.actions.started == []


def test_a_viewer_is_shown_the_command_and_no_button(with_forms: ConsoleHarness) -> None:
    page = with_forms.get(f"{CONTROL}?verb=stop", by="vic").text

    assert "deltaworks control stop games" in page or "deltaworks control games stop" in page
    assert "<form" not in page


def test_a_dead_scheduler_leaves_commands_in_place_of_buttons(with_forms: ConsoleHarness) -> None:
    with_forms.actions.outage = "Airflow's scheduler is unhealthy: nothing would run."

    page = with_forms.get(f"{CONTROL}?verb=restart").text

    assert "scheduler is unhealthy" in page
    assert "deltaworks control games restart" in page
    assert "<form" not in page
    assert send(with_forms, CONTROL, {"_nonce": "n" * 20, "verb": "stop"}).status_code == 503
    assert with_forms.actions.started == []


@pytest.mark.parametrize(
    "path",
    ["/actions/explode/games", "/actions/control/nothing", "/actions/mutate_tables/games", "/actions/control/landing"],
)
def test_an_unknown_action_is_not_found(with_forms: ConsoleHarness, path: str) -> None:
    assert with_forms.get(path).status_code == 404
    assert send(with_forms, path, {"_nonce": "n" * 20}).status_code == 404


def test_a_form_that_is_too_large_is_rejected(with_forms: ConsoleHarness) -> None:
    assert send(with_forms, CONTROL, {"_nonce": "n" * 20, "reason": "x" * 70_000}).status_code == 413


def test_results_of_hostile_names_are_text(with_forms: ConsoleHarness) -> None:
    name = '"><img src=x onerror=alert(1)>{{7*7}}'
    with_forms.actions.results = [{"table": name, name: 3}]

    page = with_forms.get(send(with_forms, VACUUM, hidden_fields(with_forms, VACUUM)).headers["location"]).text

    assert "<img" not in page
    assert html.escape(name, quote=False).replace('"', "&#34;") in page


def test_a_form_and_a_run_are_available_as_json(with_forms: ConsoleHarness) -> None:
    run = send(with_forms, CONTROL, {**hidden_fields(with_forms, CONTROL), "verb": "stop"}).headers["location"]

    assert [field["name"] for field in with_forms.view(CONTROL)["fields"]] == [
        "verb",
        "target",
        "reason",
        "wait_seconds",
    ]
    assert with_forms.view(run)["status"]["conf"]["action"] == "stop"
