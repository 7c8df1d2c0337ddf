"""Scheduled tasks that start in Airflow's triggerer, which looks whether they need a process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.testing import present
from tests.dags.airflow_project import REPOSITORY, declare_vault, environment_variables, write_project

#: Creates and schedules a run of each DAG and type on an input line, as the scheduler does, and waits until no task is
#: with the triggerer.
SCHEDULER = f"""
import json, sys, time
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.models.dagbag import DBDagBag
from airflow.models.dagbundle import DagBundleModel
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.xcom import XComModel
from airflow.utils import timezone
from airflow.utils.db import initdb
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from sqlalchemy import select
initdb()
with create_session() as session:
    session.merge(DagBundleModel(name="dags-folder"))
sync_bag_to_db(DagBag(dag_folder={str(REPOSITORY / "dags")!r}), "dags-folder", None)
print("ready", flush=True)
for line in sys.stdin:
    dag_id, run_type, conf = json.loads(line)
    now = timezone.utcnow()
    with create_session() as session:
        dag = SerializedDagModel.get_dag(dag_id, session=session)
        run = dag.create_dagrun(
            run_id=f"{{run_type}}__{{now.isoformat()}}", logical_date=now, data_interval=(now, now), run_after=now,
            run_type=DagRunType(run_type), conf=conf, state=DagRunState.RUNNING,
            triggered_by=DagRunTriggeredByType.TEST, session=session,
        )
        run.dag = dag
        ready, _ = run.update_state(session=session, execute_callbacks=False)
        run.schedule_tis(ready, session=session)
        session.flush()
        run_id = run.run_id
    until = time.monotonic() + 240
    while time.monotonic() < until:
        with create_session() as session:
            run = session.scalar(select(type(run)).where(type(run).run_id == run_id))
            tasks = {{one.task_id: [str(one.state), one.next_method, one.next_kwargs] for one in run.task_instances}}
            if all(state != "deferred" for state, _, _ in tasks.values()):
                run.dag = SerializedDagModel.get_dag(dag_id, session=session)
                run.update_state(session=session, execute_callbacks=False)
                break
        time.sleep(0.3)
    with create_session() as session:
        xcoms = session.scalars(select(XComModel).where(XComModel.run_id == run_id)).all()
        values = {{one.key: XComModel.deserialize_value(one) for one in xcoms}}
        shown = {{"run_id": run_id, "state": str(run.state), "tasks": tasks, "xcoms": values}}
        print(json.dumps(shown), flush=True)
"""


class Triggered:
    """A project whose runs are scheduled in one process, and Airflow's triggerer."""

    def __init__(self, root: Path) -> None:
        self.project = write_project(root / "project")
        declare_vault(self.project)
        pipeline = self.project / "include" / "pipelines" / "games" / "pipeline.yaml"
        pipeline.write_text(
            pipeline.read_text()
            + "privacy: {namespace: people, subject: user, fields: [{path: user, action: vault, as: user}]}\n"
        )
        self.lake = LocalObjects(self.project / "lake")
        home = root / "home"
        home.mkdir()
        variables = environment_variables(self.project, home)
        self.log = root / "log"
        with self.log.open("w") as log:
            self.scheduler = subprocess.Popen(
                [sys.executable, "-c", SCHEDULER],
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            self._next_line("ready")
            self.triggerer = subprocess.Popen(
                [sys.executable, "-m", "airflow", "triggerer", "--skip-serve-logs"],
                env=variables,
                stdout=log,
                stderr=log,
            )

    def _next_line(self, start: str) -> str:
        for line in self.scheduler.stdout or ():
            if line.startswith(start):
                return line
        raise AssertionError(self.log.read_text()[-4_000:])

    def run(self, dag_id: str, run_type: str, **conf: Any) -> Any:
        """Runs a DAG until no task is with the triggerer."""
        assert self.scheduler.stdin is not None
        self.scheduler.stdin.write(json.dumps([dag_id, run_type, conf]) + "\n")
        self.scheduler.stdin.flush()
        return json.loads(self._next_line("{"))

    def end(self) -> None:
        for process in (self.triggerer, self.scheduler):
            process.terminate()
            process.communicate(timeout=180)

    def success_of(self, dag_id: str) -> Any:
        stored = self.lake.get(paths.alert_job(dag_id))
        return None if stored is None else json.loads(stored.data)


@pytest.fixture(scope="module")
def triggered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triggered]:
    started = Triggered(tmp_path_factory.mktemp("triggered"))
    yield started
    started.end()


GOLD_TASKS = ("rebuild_gold", "refresh_gold", "verify_gold")


def gold_states(**scheduled: str) -> dict[str, str]:
    """Returns the states of the tasks of a gold DAG of which only some are scheduled."""
    return dict.fromkeys(GOLD_TASKS, "skipped") | scheduled


def states(done: Any) -> dict[str, str]:
    return {task_id: state for task_id, (state, _, _) in done["tasks"].items()}


def test_a_scheduled_gold_run_without_work_starts_no_process(triggered: Triggered) -> None:
    done = triggered.run("games__gold", "scheduled")

    assert (done["state"], states(done)) == ("success", dict.fromkeys(GOLD_TASKS, "skipped"))
    assert done["xcoms"]["engine"] == "the triggerer, without a process (nothing to build)"
    assert [row["table"] for row in done["xcoms"]["results"]] == ["events_per_hour"]
    assert present(triggered.success_of("games__gold"))["run_id"] == done["run_id"]
    assert triggered.lake.get(paths.gold_state("games", "events_per_hour")) is None, "it has no input yet"


def test_a_manual_run_needs_no_look_and_only_its_operation_gets_a_process(triggered: Triggered) -> None:
    build, refresh = triggered.run("games__gold", "manual"), triggered.run("games__gold", "manual", action="refresh")

    assert states(build) == gold_states(rebuild_gold="scheduled")
    assert states(refresh) == gold_states(refresh_gold="scheduled")
    state, method, kwargs = build["tasks"]["rebuild_gold"]
    assert (state, method) == ("scheduled", "execute_after_look")
    assert '"work": null' in json.dumps(kwargs)


def test_a_scheduled_gold_run_with_work_continues_in_a_process(triggered: Triggered) -> None:
    rows = pa.table({"event_date": pa.array([20_500], pa.date32()), "event_id": ["a"], "batch_id": [1]})
    folder = triggered.project / "lake" / paths.table("games", "events")
    write_deltalake(folder, rows, partition_by=["event_date"])

    done = triggered.run("games__gold", "scheduled")

    assert states(done) == gold_states(rebuild_gold="scheduled")
    assert "events_per_hour to build" in json.dumps(done["tasks"]["rebuild_gold"][2])


def test_a_failed_look_continues_in_a_process(triggered: Triggered) -> None:
    log = triggered.project / "lake" / paths.table("games", "events") / "_delta_log" / "00000000000000000000.json"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("no log\n")

    done = triggered.run("games__gold", "scheduled")

    assert states(done) == gold_states(rebuild_gold="scheduled")
    assert "the look for work failed" in json.dumps(done["tasks"]["rebuild_gold"][2])


def test_a_vault_without_sealed_files_starts_a_process_only_if_none_has_run_within_the_hour(
    triggered: Triggered,
) -> None:
    done = triggered.run("people__vault", "scheduled")

    assert states(done) == {"ingest_vault": "scheduled", "maintain_vault": "None"}
    assert "no ingest has run within the hour" in json.dumps(done["tasks"]["ingest_vault"][2])
