"""The DAG files: import cost and dependencies, and the rules for every DAG."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.definitions._internal.dag_parsing_context import _AIRFLOW_PARSING_CONTEXT_DAG_ID

from deltaworks.airflow.dag_factory import parsed_catalog
from deltaworks.airflow.operators import SparkJobOperator
from deltaworks.operations.dag_forms import form_by_kind
from deltaworks.operations.registry import OPERATIONS
from deltaworks.specs.groups import stream_dag_id
from deltaworks.specs.project import load_catalog
from tests.dags.airflow_project import REPOSITORY, run_python, write_project
from tests.dags.test_mutation_dags import option_arguments

HEAVY = ("pyspark", "boto3", "botocore", "deltalake", "delta", "pyarrow", "pandas", "fastapi")
_DAGS_BY_FILE = {
    "games__restore": "operations",
    "games__stream": "streams",
    "games__gold": "gold",
    "edits__maintenance": "maintenance",
    "landing__relay": "relays",
}

PARSE = f"""
import json, sys, time
from airflow.dag_processing.dagbag import DagBag
from airflow import plugins_manager
from airflow.serialization.serialized_objects import DagSerialization
plugins_manager.get_operator_extra_links()
bag = DagBag()
for dag in bag.dags.values():
    DagSerialization.from_dict(DagSerialization.to_dict(dag))
print(json.dumps({{
    "errors": bag.import_errors,
    "dags": sorted(bag.dags),
    "seconds": {{s.file: s.duration.total_seconds() for s in bag.dagbag_stats}},
    "heavy": [name for name in {HEAVY!r} if name in sys.modules],
    "plugin_errors": plugins_manager.get_import_errors(),
}}))
"""


@pytest.fixture(scope="module")
def bag(sample_project: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DELTAWORKS_PROJECT", str(sample_project))
        patch.setenv("DELTAWORKS_ENVIRONMENT", "local")
        from airflow.dag_processing.dagbag import DagBag

        yield DagBag(dag_folder=str(REPOSITORY / "dags"))


def test_every_dag_file_imports_and_serializes_without_spark_or_storage_clients(sample_project: Path) -> None:
    parsed = run_python(PARSE, sample_project)

    for file, seconds in sorted(parsed["seconds"].items()):
        print(f"{file}: {seconds:.3f} s")
    assert parsed["errors"] == {}
    assert parsed["plugin_errors"] == {}
    assert parsed["heavy"] == []
    for_one = ["control", "maintenance", "recover", "replay", "reprocess", "restore", "stream"]
    assert parsed["dags"] == sorted(
        [
            "landing__clean",
            "landing__control",
            "landing__recover",
            "landing__relay",
            "games__gold",
            "deltaworks__health",
            *(f"{pipeline}__{name}" for name in for_one for pipeline in ("edits", "games")),
        ]
    )


def test_the_pipelines_of_this_project_have_their_dags() -> None:
    parsed = run_python(PARSE, REPOSITORY)
    pipelines = load_catalog("local", root=REPOSITORY).pipelines
    assert sorted(pipelines) == sorted(
        path.parent.name for path in REPOSITORY.glob("include/pipelines/*/pipeline.yaml")
    )

    assert parsed["errors"] == {}
    streams = {dag for dag in parsed["dags"] if dag.endswith(("__stream", "__stream_group"))}
    assert streams == {stream_dag_id(name, spec.stream_group) for name, spec in pipelines.items()}
    assert [dag for dag in parsed["dags"] if dag.endswith("__find_lost_events")] == [
        "games__find_lost_events",
        "mobile__find_lost_events",
    ]
    # Airflow lists 100 DAGs per page.
    assert len(parsed["dags"]) <= 100
    assert max(Counter(dag.partition("__")[0] for dag in parsed["dags"]).values()) <= 11


def test_dag_files_contain_only_wiring() -> None:
    for path in (REPOSITORY / "dags").glob("*.py"):
        assert len(path.read_text().splitlines()) <= 12, path


def test_every_dag_has_an_owner_tags_and_a_runbook(bag: Any) -> None:
    for dag in bag.dags.values():
        assert dag.owner not in ("", "airflow"), dag.dag_id
        assert dag.tags, dag.dag_id
        for part in ("When red", "deltaworks st" if "continuous" in dag.tags else "#"):
            assert part in dag.doc_md, dag.dag_id
        assert len(dag.doc_md) > 500, dag.dag_id


def test_every_dag_runs_once_at_a_time_and_never_catches_up(bag: Any) -> None:
    for dag in bag.dags.values():
        assert dag.max_active_runs == 1, dag.dag_id
        assert not dag.catchup, dag.dag_id
        assert dag.is_paused_upon_creation is False, dag.dag_id


def test_no_dag_but_those_of_gold_can_be_backfilled(bag: Any) -> None:
    from airflow.timetables.simple import ContinuousTimetable

    assert not ContinuousTimetable.periodic
    for dag in bag.dags.values():
        if "continuous" in dag.tags:
            assert dag.schedule == "@continuous", dag.dag_id
        else:
            assert dag.allowed_run_types, dag.dag_id
            allowed = {run_type.value for run_type in dag.allowed_run_types}
            assert ("backfill" in allowed) == dag.dag_id.endswith("__gold"), dag.dag_id


def pool_of(dag_id: str, task: Any) -> str:
    """Returns the pool of a task: of a Spark job by the class of its operation, in any DAG."""
    shares = load_catalog().environment.shares
    kind = dag_id.rpartition("__")[2]
    if kind == "relay":
        return "relays"
    if kind == "stream":
        return "streams"
    if kind.startswith("control"):
        return "default_pool"
    if not isinstance(task, SparkJobOperator):
        return "processes"
    return shares.of((OPERATIONS.get(task.task_id) or form_by_kind(kind).operations[0]).job_class).pool


def test_every_task_has_its_pool_and_retries(bag: Any) -> None:
    for dag in bag.dags.values():
        for task in dag.tasks:
            expected = "default_pool" if dag.dag_id == "deltaworks__health" else pool_of(dag.dag_id, task)
            assert task.pool == expected, (dag.dag_id, task.task_id)
            if dag.dag_id != "deltaworks__health":
                assert task.retries >= 1, (dag.dag_id, task.task_id)
                assert task.retry_policy is not None, (dag.dag_id, task.task_id)
                assert task.retry_exponential_backoff, (dag.dag_id, task.task_id)


def test_continuous_tasks_have_no_timeout_and_a_high_failure_limit(bag: Any) -> None:
    endless = [dag for dag in bag.dags.values() if "continuous" in dag.tags]
    assert len(endless) == 3
    for dag in endless:
        assert dag.max_consecutive_failed_dag_runs >= 20, dag.dag_id
        assert dag.dagrun_timeout is None, dag.dag_id
        assert all(task.execution_timeout is None for task in dag.tasks), dag.dag_id


def test_batch_tasks_have_a_timeout(bag: Any) -> None:
    for dag in bag.dags.values():
        if "continuous" not in dag.tags:
            assert dag.dagrun_timeout is not None, dag.dag_id
            for task in dag.tasks:
                # A task that waits for a person has its own time-out, which ends before the run's.
                timeout = task.execution_timeout or task.response_timeout
                assert timeout is not None, task.task_id
                assert task.execution_timeout or timeout < dag.dagrun_timeout, task.task_id


def test_cleaning_is_a_dry_run_by_default(bag: Any) -> None:
    dag = bag.dags["landing__clean"]
    (task,) = dag.tasks

    assert dag.params["dry_run"] is True
    assert dag.params.get_param("dry_run").description
    assert task.arguments[:2] == ["--relay", "landing"]
    assert task.option_arguments({"params": dict(dag.params)}) == []
    assert task.option_arguments({"params": {"dry_run": False}}) == ['--options={"dry_run":false}']


def test_maintenance_runs_its_steps_in_order(bag: Any) -> None:
    dag = bag.dags["games__maintenance"]

    order = [task.task_id for task in dag.topological_sort()]

    always = [
        "expire_quarantine",
        "optimize_tables",
        "vacuum_gate",
        "count",
        "approve",
        "vacuum_tables",
        "rebuild_gold",
        "verify_gold",
        "remove_orphans",
        "compact_control_tables",
        "learn_input_rate",
        "snapshot_health",
    ]
    assert order == [*always, "record_night"]
    assert [len(dag.get_task(task).upstream_task_ids) for task in order] == [0, *[1] * (len(order) - 1)]
    assert [task.task_id for task in bag.dags["edits__maintenance"].tasks] == [
        *(name for name in always if name not in ("rebuild_gold", "verify_gold")),
        "record_night",
    ]
    note = dag.get_task("record_night")
    assert (note.is_teardown, note.on_failure_fail_dagrun) == (True, True), "it fails the run of a failed step"


def test_recent_files_are_deleted_only_with_approval(bag: Any) -> None:
    dag = bag.dags["games__maintenance"]
    form = {"retention_hours": 48, "allow_below_minimum": "the disk is full", "dry_run": False, "steps": None}

    assert dag.get_task("approve").defaults is None
    assert dag.get_task("vacuum_gate").python_callable(params=form)
    deleting = [
        task.task_id
        for task in dag.tasks
        if task.task_id in ("count", "vacuum_tables")
        and {"retention_hours": 48, "dry_run": False}.items() <= options_for(task, form).items()
    ]
    assert deleting == ["vacuum_tables"]


def options_for(task: Any, form: dict[str, Any]) -> dict[str, Any]:
    return option_arguments(task, {"tables": None, "dry_run": False} | form)


def test_jobs_have_failure_and_success_callbacks(bag: Any) -> None:
    from deltaworks.airflow.job_alerts import alert_on_failure, resolve_on_success

    jobs = [dag for dag in bag.dags.values() if dag.dag_id.rpartition("__")[2] not in ("stream", "relay", "health")]
    assert {dag.dag_id.rpartition("__")[2] for dag in jobs} >= {"gold", "maintenance", "reprocess", "clean"}
    note = bag.dags["games__maintenance"].get_task("record_night")
    assert (note.on_success_callback, note.on_failure_callback) == ([], []), "it is no part of what it notes"
    for dag in jobs:
        for task in (task for task in dag.tasks if task.task_id != "record_night"):
            assert alert_on_failure in task.on_failure_callback, (dag.dag_id, task.task_id)
            assert resolve_on_success in task.on_success_callback, (dag.dag_id, task.task_id)


def test_gold_tables_are_assets_of_the_task_that_builds_them(bag: Any, sample_project: Path) -> None:
    for dag_id in ("games__gold", "games__maintenance"):
        outlets = bag.dags[dag_id].get_task("rebuild_gold").outlets

        assert [asset.name for asset in outlets] == ["gold.games.events_per_hour"]
        assert outlets[0].uri == f"file://{sample_project}/lake/tables/games/events_per_hour"


def test_the_asset_graph_shows_the_inputs_of_gold_and_no_stream_updates(bag: Any) -> None:
    gold, stream = bag.dags["games__gold"].get_task("rebuild_gold"), bag.dags["games__stream"].get_task("ingest")

    assert "bronze.games.events" in {asset.name for asset in gold.inlets}
    assert {asset.name.partition(".")[0] for asset in gold.inlets} == {"bronze"}
    assert stream.outlets == []


@pytest.mark.parametrize(
    ("dag_id", "read"),
    [
        ("games__restore", ["games"]),
        ("edits__stream", ["edits"]),
        ("landing__relay", []),
        ("small__stream_group", ["edits", "games"]),
        ("deltaworks__health", ["edits", "games"]),
        ("deltaworks__rules", ["edits", "games"]),
        ("players__vault", ["edits", "games"]),
        (None, ["edits", "games"]),
    ],
)
def test_a_task_loads_the_pipeline_of_its_dag_and_the_scheduler_loads_all(
    sample_project: Path, monkeypatch: pytest.MonkeyPatch, dag_id: str | None, read: list[str]
) -> None:
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(sample_project))
    monkeypatch.setenv("DELTAWORKS_ENVIRONMENT", "local")
    monkeypatch.delenv(_AIRFLOW_PARSING_CONTEXT_DAG_ID, raising=False)
    if dag_id is not None:
        monkeypatch.setenv(_AIRFLOW_PARSING_CONTEXT_DAG_ID, dag_id)

    assert sorted(parsed_catalog().pipelines) == read


def test_the_file_of_a_task_has_its_dag_and_none_of_other_pipelines(sample_project: Path) -> None:
    code = f"""
import json, runpy
from airflow.sdk import DAG
from airflow.sdk.definitions._internal.dag_parsing_context import _airflow_parsing_context_manager
dags = {{}}
for dag_id, file in {_DAGS_BY_FILE!r}.items():
    with _airflow_parsing_context_manager(dag_id=dag_id):
        names = runpy.run_path(f"{REPOSITORY}/dags/{{file}}.py")
    dags[dag_id] = sorted(value.dag_id for value in names.values() if isinstance(value, DAG))
print(json.dumps(dags))
"""
    for dag_id, there in run_python(code, sample_project).items():
        assert dag_id in there
        assert {other.rpartition("__")[0] for other in there} <= {dag_id.rpartition("__")[0], "landing"}


def test_tasks_do_not_copy_the_params_of_the_dag(bag: Any) -> None:
    forms = [dag for dag in bag.dags.values() if dag.params]
    assert {"games__restore", "games__gold", "games__maintenance", "landing__clean"} <= {dag.dag_id for dag in forms}
    for dag in forms:
        for task in dag.tasks:
            assert not set(task.params) & set(dag.params), (dag.dag_id, task.task_id)


def test_operations_have_dags_for_the_declared_pipelines(tmp_path: Path) -> None:
    project = write_project(tmp_path)
    environment = project / "include" / "environments" / "local.yaml"
    environment.write_text(environment.read_text() + "operation_dags: [edits]\n")
    (project / "include" / "pipelines" / "games" / "pipeline.yaml").write_text("pipeline: games\ncolour: blue\n")

    dags = run_python(PARSE, project)["dags"]

    assert "edits__restore" in dags
    assert "landing__recover" in dags
    assert [dag for dag in dags if dag.startswith("games__")] == ["games__maintenance", "games__stream"]
