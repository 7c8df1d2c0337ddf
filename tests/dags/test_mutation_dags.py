"""The DAGs of a pipeline with mutations: batches, maintenance order, and the check of waiting requests."""

from __future__ import annotations

import copy
import datetime as dt
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deltaworks.operations.options import from_argument
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.storage import AwsSpec, StorageSpec
from deltaworks.testing import declare_pipeline, declare_table, write_files
from tests.dags.airflow_project import REPOSITORY, run_python, write_project

HERE = StorageSpec(root="file:///lake")
ENVIRONMENT = EnvironmentSpec(environment="tests", lake=HERE, landing=HERE, messaging=AwsSpec())
#: A Sunday.
RUN_AFTER = dt.datetime(2026, 11, 22, 3, 30, tzinfo=dt.UTC)
TEXTS = ("org_id", "op", "id", "new_id", "name")
CRM: dict[str, Any] = declare_pipeline(
    declare_table(
        "activities",
        "org_id string from org",
        "contact_id string from contact",
        "origin_contact_id string from contact",
        when={"kind": "activity"},
        partition_by=["org_id"],
        mutable={"id": "contact_id", "origin": "origin_contact_id"},
    ),
    declare_table(
        "requests",
        *(f"{name} string" for name in TEXTS),
        "fields map<string,string>",
        "seq long",
        when={"kind": "request"},
    ),
    pipeline="crm",
    source={"kind": "s3_sqs", "relay": "landing", "bucket": "deltaworks-landing", "prefix": "crm/"},
    event={"name": {"path": "kind"}, "time": {"path": "time"}},
    maintenance={"schedule": "30 3 * * *"},
    mutations={"requests": "requests"},
)


def options_in(arguments: list[str]) -> dict[str, Any]:
    """Returns the options among the arguments of a job."""
    return next((from_argument(word.removeprefix("--options=")) for word in arguments if word[:10] == "--options="), {})


def option_arguments(task: Any, params: dict[str, Any], *, run_type: str = "manual") -> dict[str, Any]:
    """Returns the options of a task's job, with templates rendered as in a run with this form."""
    from jinja2 import Environment

    context = {"params": params, "dag_run": SimpleNamespace(run_type=run_type, run_after=RUN_AFTER)}
    rendered = copy.copy(task)
    rendered.values = {
        name: Environment(autoescape=False).from_string(value).render(context) if isinstance(value, str) else value
        for name, value in task.values.items()
    }
    return options_in(rendered.option_arguments(context))


@pytest.fixture(scope="module")
def spec() -> PipelineSpec:
    return PipelineSpec.model_validate(CRM)


@pytest.fixture(scope="module")
def dag(spec: PipelineSpec) -> Any:
    from deltaworks.airflow.scheduled_dags import mutation_dag

    return mutation_dag(spec, ENVIRONMENT)


def test_batches_are_applied_every_ten_minutes_one_run_at_a_time(dag: Any) -> None:
    (task,) = dag.tasks

    assert dag.dag_id == "crm__mutations"
    assert dag.schedule.expression == "*/10 * * * *"
    assert (dag.max_active_runs, dag.catchup) == (1, False)
    assert "backfill" not in {run_type.value for run_type in dag.allowed_run_types}
    assert (task.pool, task.retries) == ("mutations", 3)
    assert task.application.endswith("spark_jobs/mutate_tables.py")
    for part in ("When red", "MUTATIONS_BEHIND", "`activities`"):
        assert part in dag.doc_md


@pytest.mark.parametrize(
    ("run_type", "form", "arguments"),
    [
        ("scheduled", {}, {"dry_run": False}),
        ("manual", {}, {}),
        ("manual", {"dry_run": False}, {"dry_run": False}),
        ("manual", {"org": "acme", "dry_run": False}, {"org": "acme", "dry_run": False}),
        ("manual", {"org": "acme"}, {"org": "acme"}),
    ],
)
def test_a_scheduled_run_applies_and_a_manual_one_follows_its_form(
    dag: Any, run_type: str, form: dict[str, Any], arguments: dict[str, Any]
) -> None:
    (task,) = dag.tasks
    params = {name: dag.params[name] for name in dag.params} | form

    assert option_arguments(task, params, run_type=run_type) == arguments


@pytest.mark.parametrize(("declared", "engine"), [("spark", "spark"), ("auto", "process"), ("process", "process")])
def test_a_process_applies_small_batches_unless_every_job_is_submitted(
    spec: PipelineSpec, declared: str, engine: str
) -> None:
    from jinja2 import Environment

    from deltaworks.airflow.maintenance_dags import maintenance_dag
    from deltaworks.airflow.scheduled_dags import mutation_dag

    environment = ENVIRONMENT.model_copy(update={"maintenance_on": declared})
    (task,) = mutation_dag(spec, environment).tasks
    night = maintenance_dag(spec, environment).get_task("mutate_tables")

    def of_night(chosen: str | None) -> str:
        return Environment(autoescape=False).from_string(night.engine).render(params={"maintenance_on": chosen})

    assert task.engine == engine
    assert [of_night(chosen) for chosen in (None, "spark", "process")] == [engine, "spark", "process"]


def test_the_order_of_maintenance_tasks_with_mutations(spec: PipelineSpec) -> None:
    from deltaworks.airflow.maintenance_dags import maintenance_dag

    nightly = maintenance_dag(spec, ENVIRONMENT)
    order = [task.task_id for task in nightly.topological_sort()]

    steps = ["mutate_tables", "purge_deleted", "expire_quarantine", "optimize_tables"]
    assert order[:8] == [*steps, "vacuum_gate", "count", "approve", "vacuum_tables"]
    assert [len(nightly.get_task(task).upstream_task_ids) for task in order] == [0, *[1] * (len(order) - 1)]
    assert option_arguments(nightly.get_task("mutate_tables"), {}, run_type="scheduled") == {"dry_run": False}
    purge = nightly.get_task("purge_deleted")
    assert option_arguments(purge, {"dry_run": True}) == {}
    assert option_arguments(purge, {"dry_run": False}) == {"dry_run": False}


def test_the_health_dag_checks_waiting_mutation_requests(tmp_path: Path, spec: PipelineSpec) -> None:
    from deltaworks.airflow.health_dags import health_dag

    without = Catalog(environment=ENVIRONMENT, relays={}, pipelines={}, root=tmp_path)
    assert [task.task_id for task in health_dag(without, ENVIRONMENT).tasks] == ["check_streams"]
    judge = health_dag(replace(without, pipelines={"crm": spec}), ENVIRONMENT).get_task("check_mutations")
    assert (judge.module, judge.retries) == ("deltaworks.mutations.backlog_check", 0)

    project = write_project(tmp_path)
    write_files(project, {"include/pipelines/crm/pipeline.yaml": json.dumps(CRM)})
    program = f"""
import json
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder={str(REPOSITORY / "dags")!r})
print(json.dumps([sorted(bag.dags), bag.import_errors, sorted(bag.dags["deltaworks__health"].task_dict)]))
"""
    dags, errors, tasks = run_python(program, project)
    assert errors == {}
    assert [name for name in dags if name.endswith("__mutations")] == ["crm__mutations"]
    assert tasks == ["check_data_files", "check_mutations", "check_streams"]
