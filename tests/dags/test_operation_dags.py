"""The DAGs of operations: a run executes the chosen one, a deletion counts first, needs an approval, and stays within
it."""

from __future__ import annotations

from typing import Any

import pytest

from deltaworks.operations.base import Operation
from deltaworks.operations.dag_forms import DagForm, form_by_kind, pipeline_forms, relay_forms
from deltaworks.operations.registry import get_operation
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.relay import RelaySpec
from deltaworks.testing import pipeline_spec
from tests.dags.test_mutation_dags import CRM, ENVIRONMENT, options_in
from tests.unit.operations.option_values import required_options

SHOP = pipeline_spec(
    {"name": "orders", "catch_all": True},
    event={"name": {"path": "name"}, "time": {"path": "time"}},
    gold={"tables": [{"name": "daily", "sql": "gold/daily.sql", "reads": ["orders"], "partition_by": "d"}]},
)
LANDING = RelaySpec(relay="landing", queue_url="q", buckets=("landing",))
SUBJECTS = {"pipeline": "shop", "relay": "landing", "namespace": "people"}
#: The forms whose DAGs run only when triggered.
FORMS = {f"{form.operations[0].scope}-{form.kind}": form for form in (*pipeline_forms(SHOP), *relay_forms())}
each_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
APPROVED = {name: form for name, form in FORMS.items() if form.waits_for_approval}


def _as_declared(**changes: Any) -> dict[str, Any]:
    return SHOP.model_dump(mode="json") | changes


def dag_of(form: DagForm) -> Any:
    from deltaworks.airflow.operation_dags import triggered_dag

    return triggered_dag(form, SHOP if form.operations[0].scope == "pipeline" else LANDING, ENVIRONMENT)


def params_for(form: DagForm, operation: Operation, **changes: Any) -> dict[str, Any]:
    """Returns the params of a run that executes an operation, with required options set."""
    options = required_options(operation.options_model(), "orders")
    dag = dag_of(form)
    unset = {name: dag.params.get_param(name).value for name in dag.params}
    return (
        unset
        | form.select(
            operation, options | ({operation.actions_from: operation.actions[0]} if operation.actions_from else {})
        )
        | changes
    )


@pytest.fixture(scope="module")
def restore() -> Any:
    return dag_of(form_by_kind("restore"))


@pytest.mark.parametrize("form", APPROVED.values(), ids=APPROVED)
def test_nothing_runs_before_the_count_is_approved(form: DagForm) -> None:
    dag = dag_of(form)

    assert sorted(task.task_id for task in dag.tasks) == sorted(form.task_ids(gold=True))
    assert dag.get_task("dry_run_gate").upstream_task_ids == {"count"}
    assert dag.get_task("approve").upstream_task_ids == {"dry_run_gate"}
    assert dag.get_task("approve").defaults is None
    count = dag.get_task("count")
    for operation in form.operations:
        work = dag.get_task(operation.name)
        assert work.upstream_task_ids == {"approve"}
        assert work.downstream_task_ids == ({"rebuild_gold"} if operation.rebuilds_gold else set())
        for dry_run in (None, False, True):
            params = params_for(form, operation, dry_run=dry_run)
            assert options_in(count.option_arguments({"params": params})).get("dry_run", True)
            assert count.module_arguments({"params": params}) == ["deltaworks.operations", operation.name]
        assert (count.values["dry_run"], work.values) == (True, {"dry_run": False})


@pytest.mark.parametrize(("dry_run", "goes_on"), [(True, False), (False, True)])
def test_a_dry_run_needs_no_approval(restore: Any, dry_run: bool, goes_on: bool) -> None:
    requested = restore.get_task("dry_run_gate")

    assert restore.params["dry_run"] is True
    assert requested.python_callable(params={"dry_run": dry_run}) is goes_on


def test_an_approval_shows_count_and_options_of_the_chosen_action(restore: Any) -> None:
    from deltaworks.airflow.approvals import question_text

    results = [{"table": "orders", "rows_removed": 7}, {"table": "clicks", "rows_removed": 0}]
    params = {"action": "restore", "table": "orders", "reason": "a bad deploy", "to_time": None, "dry_run": False}
    over = {"action": "start_over", "reason": "a new source", "repair": "prepared", "dry_run": False}
    approve = restore.get_task("approve")

    lines = question_text(results, approve.shown_options(params)).splitlines()

    for line in ("In all: rows removed 7", "1 more with nothing to do", "table   rows_removed", "orders  7"):
        assert line in lines
    assert "reason: a bad deploy" in lines
    assert not any("clicks" in line for line in lines), "it is not at stake"
    assert not any("to_time" in line for line in lines)
    assert question_text([], approve.shown_options(params)).splitlines()[-2] == "reason: a bad deploy"
    assert rendered_template(approve.subject, params, task=approve) == "restore shop?"
    assert rendered_template(approve.subject, over, task=approve) == "pipelines start-over shop?"
    assert "repair" not in approve.shown_options(over), "the default of another action is not what is approved"


@each_form
def test_a_run_executes_the_chosen_operation_alone(form: DagForm) -> None:
    from airflow.sdk.exceptions import AirflowSkipException

    dag = dag_of(form)
    for chosen in form.operations:
        params = params_for(form, chosen)
        for operation in form.operations:
            task = dag.get_task(operation.name)
            task.selected_if = rendered_template(task.selected_if, params)
            if operation == chosen:
                task.skip_unless_selected()
            else:
                with pytest.raises(AirflowSkipException):
                    task.skip_unless_selected()
            task.selected_if = dag_of(form).get_task(operation.name).selected_if


def rendered_template(template: str, params: dict[str, Any], **context: Any) -> str:
    from jinja2 import Environment

    text: str = Environment(autoescape=False).from_string(template).render(params=params, **context)
    return text


@each_form
def test_a_destructive_operation_is_a_dry_run_unless_the_form_says_otherwise(form: DagForm) -> None:
    if form.waits_for_approval:
        return
    dag = dag_of(form)
    for operation in form.operations:
        if operation.destructive:
            task = dag.get_task(operation.name)
            assert options_in(task.option_arguments({"params": params_for(form, operation)})).get("dry_run", True)
            acting = params_for(form, operation, dry_run=False)
            assert options_in(task.option_arguments({"params": acting}))["dry_run"] is False


@each_form
def test_a_task_starts_the_job_of_its_operation_for_its_subject(form: DagForm) -> None:
    from deltaworks.airflow.operators import SparkJobOperator

    dag = dag_of(form)
    for operation in form.operations:
        work = dag.get_task(operation.name)
        assert isinstance(work, SparkJobOperator) == operation.needs_spark
        arguments = work.application_args if operation.needs_spark else work.arguments
        assert arguments == [f"--{operation.scope}", SUBJECTS[operation.scope]]
        if operation.needs_spark:
            assert work.application.endswith(f"/spark_jobs/{operation.name}.py")
        else:
            assert work.module_arguments({}) == ["deltaworks.operations", operation.name]


def test_an_option_of_another_action_is_refused_before_anything_is_counted(restore: Any) -> None:
    from deltaworks.errors import ConfigError

    params = params_for(form_by_kind("restore"), get_operation("start_over"), to_batch=7)

    with pytest.raises(ConfigError, match="OPTION_INVALID"):
        restore.get_task("count").option_arguments({"params": params})


def test_a_pipeline_has_dags_for_the_operations_it_can_run() -> None:
    def operations(spec: PipelineSpec) -> set[str]:
        return {one.name for form in pipeline_forms(spec) for one in form.operations}

    shop, crm = operations(SHOP), operations(PipelineSpec.model_validate(CRM))
    followed = {"kind": "delta", "pipeline": "crm", "table": "activities"}
    follower = operations(SHOP.model_validate(_as_declared(source=followed)))

    assert shop == crm
    assert shop - follower == {"reprocess", "recover_files"}, "a Delta table keeps no objects to read again"
    assert shop & {"rebuild_gold", "mutate_tables", "vacuum_tables"} == set()
    assert [form.kind for form in relay_forms()] == ["control", "recover"]
    assert {one.name for form in relay_forms() for one in form.operations} == {"reconcile", "redrive", "control_relay"}


@each_form
def test_a_runbook_describes_the_actions_and_the_commands(form: DagForm) -> None:
    dag = dag_of(form)

    for operation in form.operations:
        assert f"`deltaworks {operation.command} {SUBJECTS[operation.scope]}" in dag.doc_md
        assert operation.concurrency_note() in dag.doc_md
        assert all(f"**{action}**" in dag.doc_md for action in operation.actions)
    assert ("approve" in dag.doc_md) == form.waits_for_approval


def test_the_page_of_a_reprocess_names_its_restrictions() -> None:
    from deltaworks.airflow.operation_dags import triggered_dag

    crm = triggered_dag(form_by_kind("reprocess"), PipelineSpec.model_validate(CRM), ENVIRONMENT)
    shop = dag_of(form_by_kind("reprocess"))

    assert "Mutations change `activities`" in crm.doc_md
    assert "REPROCESS_MUTABLE" in crm.doc_md
    assert "REPROCESS_MUTABLE" not in shop.doc_md


def test_the_form_of_a_reprocess_selects_files_and_a_time_of_arrival_but_no_records_of_other_sources() -> None:
    form = dag_of(form_by_kind("reprocess")).params

    assert form.get_param("files").schema["type"] == ["null", "array"]
    assert "offsets" not in form
    assert form.get_param("arrived").schema["type"] == ["null", "string"]


@pytest.fixture(scope="module")
def maintenance() -> Any:
    from deltaworks.airflow.maintenance_dags import maintenance_dag

    return maintenance_dag(SHOP, ENVIRONMENT)


def maintenance_params(dag: Any, **changes: Any) -> dict[str, Any]:
    return {name: dag.params.get_param(name).value for name in dag.params} | changes


@pytest.mark.parametrize(
    ("changes", "asks"),
    [
        ({}, False),
        ({"tables": ["orders"]}, False),
        ({"steps": ["vacuum_tables"]}, True),
        ({"steps": ["vacuum_tables"], "dry_run": True}, False),
        ({"steps": ["optimize_tables"]}, False),
        ({"steps": ["optimize_tables", "vacuum_tables"]}, True),
        ({"retention_hours": 24, "allow_below_minimum": "the disk is full"}, True),
        ({"max_files": 9}, True),
        ({"max_files": 9, "steps": ["optimize_tables"]}, False),
    ],
)
def test_maintenance_asks_before_a_vacuum_that_a_person_selected_or_changed(
    maintenance: Any, changes: dict[str, Any], asks: bool
) -> None:
    gate = maintenance.get_task("vacuum_gate")

    assert gate.python_callable(params=maintenance_params(maintenance, **changes)) is asks
    assert maintenance.get_task("count").upstream_task_ids == {"vacuum_gate"}
    assert maintenance.get_task("approve").upstream_task_ids == {"count"}
    assert maintenance.get_task("vacuum_tables").upstream_task_ids == {"approve"}
    assert not maintenance.get_task("approve").ignore_downstream_trigger_rules, "a rejection skips VACUUM alone"


def test_each_step_of_maintenance_runs_if_no_other_was_selected_and_says_whether_it_is_unattended(
    maintenance: Any,
) -> None:
    steps = maintenance.params.get_param("steps").schema["items"]["enum"]
    tasks = {task.task_id: task for task in maintenance.tasks if getattr(task, "operation", None) is not None}

    assert steps == [
        "expire_quarantine",
        "optimize_tables",
        "vacuum_tables",
        "rebuild_gold",
        "verify_gold",
        "remove_orphans",
        "compact_control_tables",
        "learn_input_rate",
        "snapshot_health",
    ]
    for selected in ([], ["vacuum_tables"], ["optimize_tables", "rebuild_gold"]):
        params = maintenance_params(maintenance, steps=selected or None)
        run = {name for name, task in tasks.items() if rendered_template(task.selected_if, params) == "True"}
        assert run == set(selected or steps)
        said = {rendered_template(task.env_vars["DELTAWORKS_UNATTENDED"], params) for task in tasks.values()}
        assert said == {str(not selected)}
    rules = {name: task.trigger_rule.value for name, task in tasks.items()}
    assert rules.pop("vacuum_tables") == "none_failed", "it does not run where its approval failed"
    assert set(rules.values()) == {"all_done"}


def test_the_tables_of_maintenance_are_not_those_of_its_gold_step(maintenance: Any) -> None:
    params = maintenance_params(maintenance, tables=["orders"], steps=["rebuild_gold"])

    assert maintenance.get_task("rebuild_gold").option_arguments({"params": params}) == []
