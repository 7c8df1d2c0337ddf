"""The last task of a maintenance run records it, and says which step, table and file failed and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from deltaworks.airflow.maintenance_dags import RecordNightOperator, describe_failure, night_task
from deltaworks.control.objects import LocalObjects
from deltaworks.control.paths import nights_summary
from deltaworks.control.summaries.base import read_summary
from deltaworks.control.summaries.nights import NightsSummary
from deltaworks.errors import ContractError

BROKEN = "[DATA_FILE_UNREADABLE] table clicks: part-1.parquet is truncated"


@dataclass
class Instance:
    """A task instance of a run whose steps ended with these states, results and errors."""

    states: dict[str, str]
    left: dict[tuple[str, str], Any] = field(default_factory=dict)
    dag_id: str = "games__maintenance"
    run_id: str = "night"

    def get_task_breadcrumbs(self, **_: str) -> list[dict[str, Any]]:
        return [{"task_id": name, "state": state, "duration": 2.0} for name, state in self.states.items()]

    def xcom_pull(self, *, task_ids: str, key: str) -> Any:
        return self.left.get((task_ids, key))


def ended_run(objects: LocalObjects, monkeypatch: pytest.MonkeyPatch, instance: Instance) -> None:
    """Runs the last task of a run."""
    from deltaworks.airflow import maintenance_dags

    monkeypatch.setattr(maintenance_dags, "set_environment_keys", lambda environment: None)
    monkeypatch.setattr("deltaworks.control.objects.open_objects", lambda lake: objects)
    steps = [SimpleNamespace(task_id=name, operation=name) for name in instance.states]
    gate = SimpleNamespace(task_id="vacuum_gate", operation=None)
    run = SimpleNamespace(
        run_id="night", start_date=datetime(2026, 3, 1, tzinfo=UTC), run_after=None, run_type="manual"
    )
    environment: Any = SimpleNamespace(lake=None)
    context: Any = {
        "ti": instance,
        "dag": SimpleNamespace(topological_sort=lambda: [*steps, gate]),
        "dag_run": run,
    }
    RecordNightOperator(task_id="record_night", pipeline="games", environment=environment).execute(context)


def recorded(objects: LocalObjects) -> Any:
    summary, _ = read_summary(NightsSummary, objects, nights_summary("games"))
    assert summary is not None
    return summary.nights[0]


def test_a_run_of_which_every_step_succeeded_is_recorded_and_succeeds(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = LocalObjects(tmp_path)
    engine = "spark-submit on local[2] (engine spark)"
    results = [{"table": "clicks", "files": 3, "engine": "Spark's executors: 40 listings and deletions"}]
    left = {("vacuum_tables", "engine"): engine, ("vacuum_tables", "results"): results}

    ended_run(objects, monkeypatch, Instance({"vacuum_tables": "success", "rebuild_gold": "skipped"}, left))

    (task,) = recorded(objects).tasks
    assert (task.task, task.engine) == ("vacuum_tables", engine)
    assert task.results[0].engine == "Spark's executors: 40 listings and deletions"


def test_a_failed_step_fails_the_run_after_the_others_and_is_named_with_its_tables(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = LocalObjects(tmp_path)
    results = [{"table": "clicks", "error": BROKEN}, {"table": "views", "files": 4}]
    left = {("optimize_tables", "results"): results, ("optimize_tables", "error"): "the first error alone"}
    states = {"optimize_tables": "failed", "vacuum_tables": "success", "rebuild_gold": "success"}

    with pytest.raises(ContractError) as caught:
        ended_run(objects, monkeypatch, Instance(states, left))

    assert caught.value.condition == "MAINTENANCE_STEPS_FAILED"
    assert "1 of 3 steps of the maintenance of games failed; the others were done." in caught.value.message
    assert f"optimize_tables: clicks: {BROKEN}" in caught.value.message
    assert not caught.value.retryable
    assert recorded(objects).failed == ("optimize_tables",)


def test_the_reason_of_a_step_without_results_is_its_error_and_of_one_that_was_not_approved_that_it_was_not() -> None:
    failed = night_task("rebuild_gold", {"state": "failed"}, None, "spark-submit", "[X] it broke")
    refused = night_task("vacuum_tables", {"state": "upstream_failed"}, None)

    assert describe_failure(failed) == "rebuild_gold: [X] it broke"
    assert describe_failure(refused) == "vacuum_tables: it was not approved"
    assert describe_failure(night_task("a", {"state": "failed"}, None)) == "a: see its log"
