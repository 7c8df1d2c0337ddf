"""Operations run in Airflow: triggered with the command's options, followed, and answered with their results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deltaworks.airflow_client import requests as airflow_requests
from deltaworks.airflow_client.api import AirflowApi
from deltaworks.airflow_client.login import login_from_variable
from deltaworks.control.listing import Listing
from deltaworks.errors import ConfigError, ContractError, DeltaworksError, TransientError
from deltaworks.operations import in_airflow
from deltaworks.operations.base import Report
from deltaworks.operations.dag_forms import form_of
from deltaworks.operations.in_airflow import run_in_airflow
from deltaworks.operations.registry import OPERATIONS, get_operation
from deltaworks.specs.project import load_catalog
from tests.airflow_server import AirflowServer, RunScript, airflow_server
from tests.offenders import failures
from tests.unit.operations.option_values import required_options
from tests.unit.specs.conftest import PIPELINE, write_project

RESTORE, REPROCESS, SNAPSHOT = "shop__restore", "shop__reprocess", "shop__maintenance"
IN_EARNEST = {"table": "orders", "to_batch": "3", "dry_run": False}
RECORDS = [{"table": "orders", "rows_removed": 12}, {"omitted": 1}]
ERROR = {"condition": "REPROCESS_OBJECTS_MISSING", "message": "3 objects are gone.", "hint": "Have them sent again."}
Run = Callable[..., Report]


@pytest.fixture
def server() -> Iterator[AirflowServer]:
    with airflow_server(RESTORE, REPROCESS, SNAPSHOT) as server:
        yield server


@pytest.fixture
def printed() -> list[str]:
    return []


@pytest.fixture
def run(server: AirflowServer, printed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(in_airflow, "_POLL_SECONDS", 0.01)
    catalog = load_catalog(root=write_project(tmp_path, pipeline=PIPELINE + "approvers: [ada, {id: '7', name: bo}]\n"))

    def call(name: str, values: dict[str, Any] | None = None, *, minutes: float = 1.0) -> Report:
        return run_in_airflow(
            get_operation(name),
            catalog,
            "shop",
            values or {},
            wait_minutes=minutes,
            echo=printed.append,
            connect=lambda: AirflowApi(login_from_variable(server.connection())),
        )

    return call


def listed(report: Report) -> list[Any]:
    (listing,) = (part for part in report.parts if isinstance(part, Listing))
    return listing.as_records()


def check_form_values(declared: Any) -> None:
    model = declared.options_model()
    options = model.model_validate(required_options(model, "x"))

    form = form_of(declared)
    values = form.run_values(declared, options)

    assert form.option_values(declared, values) == options.model_dump(mode="json")
    assert form.chosen(values) == declared or values["steps"] == [declared.name]
    assert json.loads(json.dumps(values)) == values
    assert declared.dag_id("shop").startswith("shop__")


def test_a_run_gets_every_option_of_the_command() -> None:
    assert failures(check_form_values, OPERATIONS) == {}


def test_a_run_is_triggered_followed_and_returns_its_results(
    server: AirflowServer, run: Run, printed: list[str]
) -> None:
    server.scripts[REPROCESS] = RunScript(
        steps=[
            ("queued", {"reprocess": None}),
            ("running", {"reprocess": "running"}),
            ("running", {"reprocess": "running"}),
            ("success", {"reprocess": "success"}),
        ],
        results={"reprocess": json.dumps(RECORDS)},
    )

    report = run("reprocess", {"tables": ["orders"], "from_start": True, "dry_run": None})

    ((dag_id, run_id), (conf, _)) = next(iter(server.runs.items()))
    assert dag_id == REPROCESS
    assert (conf["tables"], conf["from_start"], conf["dry_run"]) == (["orders"], True, True)
    assert printed[0].startswith(f"Triggered {REPROCESS}: run {run_id}, {server.url}/dags/{REPROCESS}/runs/manual__")
    assert printed[1:] == [
        "It is queued: one run of a DAG is active at a time.",
        "reprocess: running",
        "reprocess: success after 3 s",
    ]
    assert listed(report) == RECORDS
    assert report.exit_code == 0


def test_a_dry_run_of_an_operation_with_approval_shows_the_count(server: AirflowServer, run: Run) -> None:
    steps = {"count": "success", "dry_run_gate": "success", "approve": "skipped", "restore": "skipped"}
    server.scripts[RESTORE] = RunScript(steps=[("success", steps)], results={"count": RECORDS})

    assert listed(run("restore", {"table": "orders", "to_batch": "3"})) == RECORDS


def test_an_approval_is_requested_and_the_run_continues_once_it_is_given(
    server: AirflowServer, run: Run, printed: list[str]
) -> None:
    server.scripts[RESTORE] = RunScript(
        steps=[
            ("running", {"count": "success", "approve": "awaiting_input", "restore": None}),
            ("running", {"count": "success", "approve": "awaiting_input", "restore": None}),
            ("running", {"count": "success", "approve": "success", "restore": "running"}),
            ("success", {"count": "success", "approve": "success", "restore": "success"}),
        ],
        results={"count": [], "restore": RECORDS},
    )

    report = run("restore", IN_EARNEST)

    (question,) = (line for line in printed if "approval" in line)
    assert question.startswith(f"approve waits for approval by ada, bo: {server.url}/dags/{RESTORE}/runs/manual__")
    assert question.endswith("/tasks/approve/required_actions")
    assert listed(report) == RECORDS


def test_a_rejected_approval_is_an_error(server: AirflowServer, run: Run) -> None:
    steps = {"count": "success", "approve": "success", "restore": "skipped"}
    server.scripts[RESTORE] = RunScript(steps=[("success", steps)], results={"count": RECORDS})

    with pytest.raises(ContractError, match=r"APPROVAL_REJECTED.*nothing was done") as raised:
        run("restore", IN_EARNEST)

    assert raised.value.exit_code == 11


def test_an_unanswered_approval_keeps_waiting_and_is_linked(server: AirflowServer, run: Run) -> None:
    server.scripts[RESTORE] = RunScript(steps=[("running", {"count": "success", "approve": "awaiting_input"})])

    with pytest.raises(TransientError, match="APPROVAL_PENDING") as raised:
        run("restore", IN_EARNEST, minutes=0.001)

    assert "/tasks/approve/required_actions" in raised.value.hint


def test_a_failed_run_returns_its_jobs_error(server: AirflowServer, run: Run) -> None:
    failed = [("failed", {"reprocess": "failed"})]
    server.scripts[REPROCESS] = RunScript(steps=failed, errors={"reprocess": ERROR | {"retryable": False}})

    with pytest.raises(DeltaworksError, match="DAG_RUN_FAILED") as raised:
        run("reprocess", {"from_start": True})

    assert "failed in reprocess: [REPROCESS_OBJECTS_MISSING] 3 objects are gone." in raised.value.message
    assert raised.value.hint.startswith("Have them sent again. Its log: ")
    assert (raised.value.exit_code, raised.value.retryable) == (21, False)


@pytest.mark.parametrize("stored", [None, "a text", ["a list"], 3])
def test_a_failed_run_without_a_stored_error_names_the_failed_task(
    server: AirflowServer, run: Run, stored: Any
) -> None:
    steps = [("failed", {"reprocess": "failed"})]
    server.scripts[REPROCESS] = RunScript(steps=steps, errors={"reprocess": stored} if stored else {})

    with pytest.raises(TransientError, match=r"failed in reprocess\. Next: Its log: http"):
        run("reprocess", {"from_start": True})


def test_a_run_longer_than_the_timeout_continues(server: AirflowServer, run: Run) -> None:
    server.scripts[REPROCESS] = RunScript(steps=[("running", {"reprocess": "running"})])

    with pytest.raises(TransientError, match=r"DAG_RUN_TIMEOUT.*still running and continues"):
        run("reprocess", {"from_start": True}, minutes=0.001)


def test_following_a_run_survives_a_restart_of_airflow(
    server: AirflowServer, run: Run, printed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(airflow_requests, "_RETRY_SECONDS", 0.0)
    answer = server.finish_request

    def outage_after_the_trigger(*arguments: Any) -> None:
        if server.runs and len(server.requests) < 6:
            server.broken = 1
        answer(*arguments)

    monkeypatch.setattr(server, "finish_request", outage_after_the_trigger)
    server.scripts[REPROCESS] = RunScript(steps=[("success", {"reprocess": "success"})], results={"reprocess": RECORDS})

    assert listed(run("reprocess", {"from_start": True})) == RECORDS
    assert any("does not answer (AIRFLOW_UNREACHABLE)" in line for line in printed)


def test_a_run_is_not_followed_with_a_zero_timeout(server: AirflowServer, run: Run, printed: list[str]) -> None:
    report = run("restore", IN_EARNEST, minutes=0)

    assert len(server.runs) == 1
    assert "waits there for approval of its count" in str(report.parts[0])
    assert len(printed) == 1


def test_a_paused_dag_is_not_triggered(server: AirflowServer, run: Run) -> None:
    server.paused[SNAPSHOT] = True

    with pytest.raises(ConfigError, match=r"AIRFLOW_DAG_PAUSED.*None was triggered"):
        run("snapshot_health")

    assert server.runs == {}


def test_an_unknown_dag_is_rejected_with_the_closest_match(server: AirflowServer, run: Run) -> None:
    del server.paused[SNAPSHOT]

    with pytest.raises(ConfigError, match="AIRFLOW_DAG_UNKNOWN"):
        run("snapshot_health")


def test_a_login_without_permission_gets_an_error(server: AirflowServer, run: Run) -> None:
    server.forbidden = ("POST /dags",)

    with pytest.raises(ConfigError, match=r"AIRFLOW_FORBIDDEN.*may not trigger the DAG"):
        run("snapshot_health")


@pytest.mark.parametrize(("name", "reason"), [("rebuild_gold", "gold tables"), ("mutate_tables", "mutations")])
def test_an_unavailable_operation_is_rejected_before_a_request(
    server: AirflowServer, run: Run, name: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=rf"OPERATION_UNAVAILABLE.*{reason}"):
        run(name)

    assert server.requests == []


def test_an_invalid_option_is_rejected_before_a_request(server: AirflowServer, run: Run) -> None:
    with pytest.raises(ConfigError, match="OPTION_INVALID"):
        run("restore", {"table": "orders", "to_batch": "three"})

    assert server.requests == []


def test_a_run_that_waits_for_a_slot_names_what_uses_it(run: Run, server: AirflowServer, printed: list[str]) -> None:
    steps = [("running", {"reprocess": "scheduled"})] * 3 + [("success", {"reprocess": "success"})]
    server.scripts[REPROCESS] = RunScript(steps=steps)
    server.pool_users = [("games__maintenance", "optimize_tables")]

    run("reprocess", {"events": "2026-01-01..2026-01-02"})

    text = "reprocess waits for a slot of pool spark_jobs, which is used by games__maintenance.optimize_tables."
    assert printed.count(text) == 1


def test_a_wait_that_airflow_does_not_explain_is_not_reported(
    run: Run, server: AirflowServer, printed: list[str]
) -> None:
    server.scripts[REPROCESS] = RunScript(steps=[("running", {"reprocess": "queued"}), ("success", {})])
    server.forbidden = ("GET /dags/~/dagRuns",)

    run("reprocess", {"events": "2026-01-01..2026-01-02"})

    assert not any("slot" in line for line in printed)
