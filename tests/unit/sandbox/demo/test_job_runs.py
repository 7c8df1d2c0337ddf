"""Chains of DAG runs: sequential within a chain, parallel across chains, awaited while they make progress."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from deltaworks.airflow_client.api import AirflowApi, DagRun, TaskInstance
from deltaworks.errors import TransientError
from sandbox.demo import job_runs
from sandbox.demo.job_runs import Job, JobRuns
from sandbox.stack.home import StackHome

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Airflow:
    """Runs that end after they were asked about so often, in the state that is planned."""

    def __init__(self, states: Mapping[str, str] | None = None, *, polls: int = 2) -> None:
        self.states = dict(states or {})
        self.polls = polls
        self.log: list[str] = []
        self.asking: set[str] = set()
        self.answers: dict[tuple[str, str], str] = {}
        self.forms: dict[str, dict[str, Any]] = {}
        self._asked: dict[str, int] = {}

    def trigger(self, dag_id: str, *, conf: Mapping[str, Any]) -> DagRun:
        self.log.append(f"start {dag_id}")
        self.forms[dag_id] = dict(conf)
        self._asked[dag_id] = 0
        return self._run(dag_id, "queued")

    def dag_run(self, dag_id: str, _run_id: str) -> DagRun:
        self._asked[dag_id] += 1
        state = self.states.get(dag_id, "success")
        if self._asked[dag_id] < self.polls or state == "hangs":
            return self._run(dag_id, "running")
        self.log.append(f"end {dag_id}")
        return self._run(dag_id, state)

    def question(self, dag_id: str, _run_id: str, task_id: str) -> Mapping[str, Any] | None:
        return {"response_received": (dag_id, task_id) in self.answers} if dag_id in self.asking else None

    def answer(self, dag_id: str, _run_id: str, task_id: str, option: str) -> None:
        self.answers[dag_id, task_id] = option

    def task_instances(self, dag_id: str, _run_id: str) -> tuple[TaskInstance, ...]:
        return (TaskInstance("work", self.states.get(dag_id, "success"), 1, NOW, NOW, 7.0),)

    @staticmethod
    def _run(dag_id: str, state: str) -> DagRun:
        return DagRun(dag_id, "run", state, NOW, NOW, {})


def runs(airflow: Airflow, tmp_path: Path) -> JobRuns:
    return JobRuns(cast(AirflowApi, airflow), StackHome.at(tmp_path), say=lambda _line: None)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_runs, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(job_runs, "_MARKER_SECONDS", 0.0)


def test_jobs_of_a_chain_run_one_behind_the_other_and_chains_beside_each_other(tmp_path: Path) -> None:
    airflow = Airflow()
    mutate = Job("engagement__mutations", {"dry_run": False})

    ended = runs(airflow, tmp_path).run([Job("games__gold"), Job("games__maintenance")], [mutate])

    assert airflow.log.index("end games__gold") < airflow.log.index("start games__maintenance")
    assert airflow.log.index("start engagement__mutations") < airflow.log.index("end games__gold")
    assert airflow.forms["engagement__mutations"] == {"dry_run": False}
    assert {item.job.dag_id for item in ended} == {"games__gold", "games__maintenance", "engagement__mutations"}
    assert all(item.tasks == ("work: success in 7 s",) for item in ended)


def test_a_question_is_approved_where_the_job_says_so(tmp_path: Path) -> None:
    airflow = Airflow(polls=4)
    airflow.asking = {"games__restore", "games__maintenance"}

    runs(airflow, tmp_path).run(
        [Job("games__restore", approve=True)], [Job("games__maintenance")], [Job("games__gold")]
    )

    assert airflow.answers == {("games__restore", "approve"): "Approve"}


def test_a_failed_run_ends_the_demo_with_its_name_unless_it_may_fail(tmp_path: Path) -> None:
    with pytest.raises(TransientError, match="games__gold run run ended failed"):
        runs(Airflow({"games__gold": "failed"}), tmp_path).run([Job("games__gold"), Job("games__maintenance")])

    (ended,) = runs(Airflow({"health": "failed"}), tmp_path).run([Job("health", must_succeed=False)])
    assert ended.run.state == "failed"


def test_a_run_that_takes_long_is_waited_for_and_one_that_hangs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_runs, "PATIENCE_SECONDS", 0.2)

    with pytest.raises(TransientError, match=r"No progress .* games__gold \(run, running\)"):
        runs(Airflow({"games__gold": "hangs"}), tmp_path).run([Job("games__gold")])
