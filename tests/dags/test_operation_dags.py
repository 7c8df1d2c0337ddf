"""The DAGs of operations: a deletion counts first, needs an approval, and stays within it."""

from __future__ import annotations

from typing import Any

import pytest

from deltaworks.operations.base import Operation
from deltaworks.operations.registry import OPERATIONS, get_operation
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.relay import RelaySpec
from tests.dags.test_mutation_dags import CRM, ENVIRONMENT

SHOP = PipelineSpec.model_validate(
    {
        "pipeline": "shop",
        "description": "orders",
        "owner": "tests",
        "source": {"kind": "s3_sqs", "relay": "landing", "bucket": "landing"},
        "event": {"name": {"path": "name"}, "time": {"path": "time"}},
        "tables": [{"name": "orders", "catch_all": True}],
        "gold": {"tables": [{"name": "daily", "sql": "gold/daily.sql", "reads": ["orders"], "partition_by": "d"}]},
    }
)
LANDING = RelaySpec(relay="landing", queue_url="q", buckets=("landing",))
each_operation = pytest.mark.parametrize("declared", OPERATIONS.values(), ids=OPERATIONS)
PLAIN = [declared for declared in OPERATIONS.values() if not declared.approval and declared.scope != "namespace"]
SUBJECTS = {"pipeline": "shop", "relay": "landing", "namespace": "people"}
APPROVED = [declared for declared in OPERATIONS.values() if declared.approval]


def _as_declared(**changes: Any) -> dict[str, Any]:
    return SHOP.model_dump(mode="json") | changes


def dag_of(declared: Operation) -> Any:
    from deltaworks.airflow import privacy_dags
    from deltaworks.airflow.operation_dags import operation_dag

    if declared.scope == "namespace":
        dags = {dag.dag_id: dag for dag in privacy_dags.namespace_dags("people", (SHOP,), ENVIRONMENT)}
        return dags[declared.dag_id("people")]
    return operation_dag(declared, SHOP if declared.scope == "pipeline" else LANDING, ENVIRONMENT)


@pytest.fixture(scope="module")
def restore() -> Any:
    return dag_of(get_operation("restore"))


@pytest.mark.parametrize("declared", APPROVED, ids=lambda declared: declared.name)
def test_nothing_runs_before_the_count_is_approved(declared: Operation) -> None:
    dag = dag_of(declared)

    steps = ["count", "dry_run_gate", "approve", declared.name, *(["rebuild_gold"] if declared.rebuilds_gold else [])]
    assert [task.task_id for task in dag.topological_sort()] == steps
    assert [len(task.upstream_task_ids) for task in dag.topological_sort()] == [0, *[1] * (len(steps) - 1)]
    assert dag.get_task("approve").defaults is None
    count, work = dag.get_task("count"), dag.get_task(declared.name)
    required = {"table": "orders"} if "table" in dag.params else {}
    for form in ({}, {"dry_run": False}, {"dry_run": True}):
        assert "--no-dry-run" not in count.option_arguments({"params": required | form})
    assert (count.values["dry_run"], work.values) == (True, {"dry_run": False})


@pytest.mark.parametrize(("dry_run", "goes_on"), [(True, False), (False, True)])
def test_a_dry_run_needs_no_approval(restore: Any, dry_run: bool, goes_on: bool) -> None:
    requested = restore.get_task("dry_run_gate")

    assert restore.params["dry_run"] is True
    assert requested.python_callable(params={"dry_run": dry_run}) is goes_on


def test_an_approval_shows_count_and_params(restore: Any) -> None:
    from types import SimpleNamespace

    from jinja2 import Environment

    results = [{"table": "orders", "rows_removed": 7}, {"table": "clicks", "rows_removed": 0}]
    params = {"table": "orders", "reason": "a bad deploy", "to_time": None, "dry_run": False}
    ti = SimpleNamespace(xcom_pull=lambda **_: results)

    approve = restore.get_task("approve")
    body = Environment(autoescape=False).from_string(approve.body).render(ti=ti, params=params)
    nothing = (
        Environment(autoescape=False)
        .from_string(approve.body)
        .render(ti=SimpleNamespace(xcom_pull=lambda **_: None), params=params)
    )

    for line in ("| table | rows_removed |", "| orders | 7 |", "| clicks | 0 |", "- reason: a bad deploy"):
        assert line in body.splitlines(), body
    assert "to_time" not in body
    assert "nothing is done" in nothing
    assert approve.subject == "restore shop?"


@pytest.mark.parametrize("declared", PLAIN, ids=lambda declared: declared.name)
def test_an_operation_without_approval_is_one_task_with_a_form(declared: Operation) -> None:
    (task,) = dag_of(declared).tasks

    assert task.task_id == declared.name
    assert task.from_form
    if declared.destructive:
        required = {name: "orders" for name in ("table", "feed") if name in dag_of(declared).params}
        assert "--no-dry-run" not in task.option_arguments({"params": required})
        assert task.option_arguments({"params": required | {"dry_run": False}})[-1] == "--no-dry-run"


@each_operation
def test_a_task_starts_the_job_of_its_operation_for_its_subject(declared: Operation) -> None:
    from deltaworks.airflow.operators import SparkJobOperator

    dag = dag_of(declared)
    # The DAG of a reveal counts and asks; who opens the vault does it outside of Airflow.
    work = dag.get_task("count" if declared.name == "reveal" else declared.name)

    assert isinstance(work, SparkJobOperator) == declared.needs_spark
    program, arguments = (
        (work.application, work.application_args) if declared.needs_spark else (work.program[0], work.arguments)
    )
    assert program.endswith(f"/spark_jobs/{declared.name}.py")
    assert arguments[:2] == [f"--{declared.scope}", SUBJECTS[declared.scope]]
    assert len(arguments) == 2 or declared.scope == "namespace"


def test_a_pipeline_has_dags_for_available_unscheduled_operations() -> None:
    from deltaworks.airflow.operation_dags import available_operations, relay_operations

    shop = {declared.name for declared in available_operations(SHOP)}
    crm = {declared.name for declared in available_operations(PipelineSpec.model_validate(CRM))}

    assert shop - crm == {"refresh_gold"}
    assert crm - shop == {"purge_deleted"}
    followed = {"kind": "delta", "pipeline": "crm", "table": "activities"}
    follower = {declared.name for declared in available_operations(SHOP.model_validate(_as_declared(source=followed)))}
    assert shop - follower == {"reprocess", "recover_files"}, "a Delta table keeps no objects to read again"
    assert (shop | crm) & {"rebuild_gold", "mutate_tables"} == set()
    assert {declared.name for declared in relay_operations()} == {"reconcile", "redrive", "control_relay"}


@each_operation
def test_a_runbook_describes_the_steps_and_the_command(declared: Operation) -> None:
    dag = dag_of(declared)

    assert f"`deltaworks {declared.command} {SUBJECTS[declared.scope]}" in dag.doc_md
    assert declared.concurrency_note() in dag.doc_md
    assert ("approve" in dag.doc_md) == (declared.approval or declared.name == "reveal")


def test_the_page_of_a_reprocess_names_its_restrictions() -> None:
    from deltaworks.airflow.operation_dags import operation_dag

    crm = operation_dag(get_operation("reprocess"), PipelineSpec.model_validate(CRM), ENVIRONMENT)
    shop = dag_of(get_operation("reprocess"))

    assert "Mutations change `activities`" in crm.doc_md
    assert "REPROCESS_MUTABLE" in crm.doc_md
    assert "REPROCESS_MUTABLE" not in shop.doc_md


def test_the_form_of_a_reprocess_selects_records_and_a_time_of_arrival() -> None:
    form = dag_of(get_operation("reprocess")).params

    assert form.get_param("offsets").schema["type"] == ["null", "array"]
    assert form.get_param("arrived").schema["type"] == ["null", "string"]
