"""Complete DAG runs in Airflow's task runner, with a spark-submit that records its arguments.

A night without work, marked `integration`, has its twins in the runs of some steps and of a failed night.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.control.paths import nights_summary
from deltaworks.control.summaries.jobs import Night, NightsSummary
from deltaworks.errors import ConfigError
from deltaworks.testing import present
from tests.dags.airflow_project import REPOSITORY, environment_variables, write_project
from tests.heartbeats import put_heartbeat
from tests.unit.alerts.aws_harness import Aws

DONE = "DAG_RUN_DONE "
#: Runs the DAG named on each input line in one Airflow process, because starting Airflow takes longer than a run.
RUNNER = f"""
import json, sys
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import BundleDagBag, DagBag, sync_bag_to_db
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.db import initdb
from airflow.utils.session import create_session
from sqlalchemy import select
initdb()
manager = DagBundlesManager()
manager.sync_bundles_to_db()
files = {{}}
for bundle in manager.get_all_dag_bundles():
    bag = BundleDagBag(dag_folder=bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
    sync_bag_to_db(bag, bundle.name, None)
    files |= {{dag_id: dag.fileloc for dag_id, dag in bag.dags.items()}}
for line in sys.stdin:
    dag_id, conf = json.loads(line)
    # A run fills in its tasks, so each has its own, of the one file that has its DAG.
    run = DagBag(dag_folder=files[dag_id]).dags[dag_id].test(run_conf=conf)
    with create_session() as session:
        tasks = session.scalars(select(TaskInstance).where(TaskInstance.run_id == run.run_id)).all()
        xcoms = session.scalars(select(XComModel).where(XComModel.run_id == run.run_id)).all()
        print({DONE!r} + json.dumps({{
            "run_id": run.run_id,
            "state": str(run.state),
            "tasks": {{task.task_id: [str(task.state), task.try_number] for task in tasks}},
            "xcoms": {{xcom.key: xcom.value for xcom in xcoms}},
        }}), flush=True)
"""


class DagRunHarness:
    """A project with its own Airflow that runs DAGs, and a recording spark-submit."""

    def __init__(self, root: Path) -> None:
        self.project = write_project(root / "project")
        self.home = root / "home"
        self.home.mkdir()
        self.output = root / "output"
        self.queue = self._listen()
        self.calls = root / "calls.jsonl"
        self.hooks = root / "hooks"
        self.hooks.mkdir()
        self.program = root / "bin" / "spark-submit"
        self.program.parent.mkdir()
        self.spark_submit("")
        self.airflow = self._start()

    def _listen(self) -> str:
        """Starts a server with a topic for the project's alerts and a queue that receives it."""
        self.server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.server.start()
        host, port = self.server.get_host_and_port()
        self.aws = Aws(f"http://{host}:{port}")
        topic, queue = self.aws.topic(), self.aws.queue()
        self.aws.subscribe(topic, queue)
        declared = self.project / "include" / "environments" / "local.yaml"
        messaging = (
            f"{{endpoint: 'http://{host}:{port}', access_key: env:TEST_ACCESS_KEY, secret_key: env:TEST_SECRET_KEY}}"
        )
        channels = f"alerts: {{channels: [{{kind: sns, name: people, topic: '{topic}'}}]}}\n"
        declared.write_text(declared.read_text().replace("messaging: {}", f"messaging: {messaging}") + channels)
        return queue

    def received_notifications(self) -> list[tuple[str, str, str]]:
        """Returns cause, subject and kind of the notifications since the last call."""
        return [
            (notification["cause"], notification["subject"], notification["kind"])
            for notification in self.aws.received(self.queue)
        ]

    def _bundles(self) -> list[dict[str, Any]]:
        """Returns a bundle for each DAG file: a run parses its bundle and writes it to the database once more."""
        local, bundles = "airflow.dag_processing.bundles.local.LocalDagBundle", []
        for file in sorted((REPOSITORY / "dags").glob("*.py")):
            (folder := self.home / "bundles" / file.stem).mkdir(parents=True)
            (folder / file.name).symlink_to(file)
            bundles.append({"name": file.stem, "classpath": local, "kwargs": {"path": str(folder)}})
        return bundles

    def _start(self) -> subprocess.Popen[str]:
        environment = environment_variables(self.project, self.home) | {
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(self._bundles()),
            "PATH": f"{self.program.parent}:{os.environ['PATH']}",
            "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[2]"}',
            "TEST_ACCESS_KEY": "testing",
            "TEST_SECRET_KEY": "testing",
        }
        environment["PYTHONPATH"] = f"{self.hooks}:{environment['PYTHONPATH']}"
        with self.output.open("w") as output:
            return subprocess.Popen(
                [sys.executable, "-c", RUNNER],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
            )

    def end(self) -> None:
        self.airflow.kill()
        self.airflow.communicate()
        self.server.stop()

    def spark_submit(self, body: str) -> None:
        self.calls.unlink(missing_ok=True)
        self.program.write_text(
            f"#!{sys.executable}\nimport json, os, sys\n"
            "def say(kind, text):\n"
            "    print(f\"DELTAWORKS_{kind}:{os.environ['DELTAWORKS_LINE_NONCE']} {text}\", flush=True)\n"
            f"with open({str(self.calls)!r}, 'a') as calls:\n"
            "    calls.write(json.dumps({'argv': sys.argv[1:], 'run': os.environ.get('DELTAWORKS_RUN')}) + '\\n')\n"
            f"{body}\n"
        )
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)

    def run(self, dag_id: str, conf: dict[str, Any] | None = None) -> Any:
        """Runs a DAG to its end and returns its state, tasks and XComs."""
        asked, said = self.airflow.stdin, self.airflow.stdout
        assert asked is not None
        assert said is not None
        asked.write(json.dumps([dag_id, conf or {}]) + "\n")
        asked.flush()
        for line in said:
            if line.startswith(DONE):
                return json.loads(line.removeprefix(DONE))
        raise AssertionError(f"Airflow ended: {self.output.read_text()[-4_000:]}")

    def submitted(self) -> list[Any]:
        return [json.loads(line) for line in self.calls.read_text().splitlines()] if self.calls.exists() else []

    @contextlib.contextmanager
    def job(self, name: str, body: str) -> Iterator[None]:
        """Replaces the process of an operation without Spark within the block."""
        hook = self.hooks / "sitecustomize.py"
        hook.write_text(
            "import os, sys\n"
            f"if sys.orig_argv[1:4] == ['-m', 'deltaworks.operations', {name!r}]:\n{indent(body, '    ')}\n"
        )
        yield
        hook.unlink()

    def nights(self) -> tuple[Night, ...]:
        """Returns the recorded maintenance runs of games, newest first."""
        item = present(LocalObjects(self.project / "lake").get(nights_summary("games")))
        return NightsSummary.decode(item.data, key="nights.json").nights

    def heartbeat(self, kind: str, name: str, *, age_seconds: float) -> None:
        written = (datetime.now(UTC) - timedelta(seconds=age_seconds)).isoformat()
        folder = paths.relay_control(name) if kind == "relay" else paths.pipeline_control(name)
        objects = LocalObjects(self.project / "lake")
        put_heartbeat(objects, folder, name, at=written, trigger_seconds=5, batch_id=1)


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagRunHarness]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TEST_ACCESS_KEY", "testing")
        patched.setenv("TEST_SECRET_KEY", "testing")
        harness = DagRunHarness(tmp_path_factory.mktemp("stage"))
        yield harness
        harness.end()


def test_a_gold_run_passes_its_params_and_run_id_to_the_job(harness: DagRunHarness) -> None:
    harness.spark_submit("say('UI', 'http://driver.example:4040')")

    done = harness.run("games__gold", {"tables": ["events_per_hour"], "full": True})

    (call,) = harness.submitted()
    assert done["state"] == "success"
    program, *arguments = call["argv"][-4:]
    options = '--options={"tables":["events_per_hour"],"full":true}'
    assert [Path(program).name, *arguments] == ["rebuild_gold.py", "--pipeline", "games", options]
    assert call["run"] == f"games__gold/{done['run_id']}/rebuild_gold/1"
    assert call["argv"][call["argv"].index("--name") + 1] == "games__gold.rebuild_gold"
    assert done["xcoms"]["spark_ui"] == "http://driver.example:4040"


def test_a_gold_refresh_is_a_dry_run_by_default(harness: DagRunHarness) -> None:
    harness.spark_submit("")
    harness.run("games__gold", {"action": "refresh"})
    harness.run("games__gold", {"action": "refresh", "dry_run": False})

    counted, done = (call["argv"] for call in harness.submitted())

    assert (counted[-2:], done[-3:]) == (
        ["--pipeline", "games"],
        ["--pipeline", "games", '--options={"dry_run":false}'],
    )


def test_a_deleting_operation_ends_after_the_count_by_default(harness: DagRunHarness) -> None:
    done = harness.run("games__recover", {"action": "checkpoint"})

    assert done["state"] == "success"
    skipped = ["approve", "recover_log", "recover_files", "recover_table", "repair_checkpoint"]
    assert {name: state for name, (state, _) in done["tasks"].items()} == {
        "count": "success",
        "dry_run_gate": "success",
        **dict.fromkeys(skipped, "skipped"),
    }


def test_a_run_of_some_steps_skips_the_others_and_is_no_night(harness: DagRunHarness) -> None:
    done = harness.run("games__maintenance", {"steps": ["vacuum_tables", "snapshot_health"], "dry_run": True})

    assert done["state"] == "success"
    assert {name for name, (state, _) in done["tasks"].items() if state == "success"} == {
        "vacuum_gate",
        "vacuum_tables",
        "snapshot_health",
        "record_night",
    }
    assert {task.task for task in harness.nights()[0].tasks} == {"vacuum_tables", "snapshot_health"}


def test_a_reprocess_is_a_dry_run_by_default(harness: DagRunHarness) -> None:
    harness.spark_submit("")
    counted = harness.run("games__reprocess", {"batches": "1-3"})
    done = harness.run(
        "games__reprocess", {"files": ["a*", "b"], "tables": ["purchase"], "shadow": True, "dry_run": False}
    )

    # There are no such batches, which is found without Spark.
    (work,) = harness.submitted()
    assert (counted["state"], done["state"]) == ("success", "success")
    options = '--options={"tables":["purchase"],"files":["a*","b"],"shadow":true,"dry_run":false}'
    assert work["argv"][-2:] == ["games", options]
    assert work["run"].split("/")[:2] == ["games__reprocess", done["run_id"]], "the id of the reprocess comes of it"


@pytest.mark.integration
def test_a_night_without_work_submits_nothing(harness: DagRunHarness) -> None:
    harness.spark_submit("")

    done = harness.run("games__maintenance", {"dry_run": False, "maintenance_on": "auto"})

    assert done["state"] == "success"
    assert {name for name, (state, _) in done["tasks"].items() if state != "success"} == {"count", "approve"}
    # `dag.test` starts no task in the triggerer, which would find that no table is there to compare.
    assert [job["run"].split("/")[2] for job in harness.submitted()] == ["verify_gold"]
    night = harness.nights()[0]
    assert (night.run, night.failed, night.tasks[0].task) == (done["run_id"], (), "expire_quarantine")
    asking = {"record_night", "vacuum_gate", "count", "approve"}
    assert {task.task: task.state for task in night.tasks} == dict.fromkeys(done["tasks"].keys() - asking, "success")
    vacuumed = next(task for task in night.tasks if task.task == "vacuum_tables")
    assert "it does not exist yet" in {result.reason for result in vacuumed.results}


def test_a_failed_night_is_red_and_recorded_with_its_failed_task(harness: DagRunHarness) -> None:
    line = ConfigError("SPEC_INVALID", "no such table", hint="mend it").as_record()
    harness.spark_submit(f"if 'vacuum_tables' in ' '.join(sys.argv): say('ERROR', {json.dumps(line)!r}), sys.exit(10)")

    done = harness.run("games__maintenance", {"dry_run": False})

    steps = ("optimize_tables", "vacuum_tables", "rebuild_gold", "verify_gold")
    assert done["state"] == "failed"
    assert done["tasks"]["record_night"][0] == "failed"
    night = harness.nights()[0]
    assert (night.run, night.failed) == (done["run_id"], ("vacuum_tables",))
    assert next(task.state for task in night.tasks if task.task == "snapshot_health") == "success"
    submitted = [job["run"].split("/")[2] for job in harness.submitted()]
    assert submitted == list(steps), "each once, one behind the other"
    assert ("JOB_FAILED", "games__maintenance.vacuum_tables", "raised") in harness.received_notifications()


def test_a_job_that_is_not_retryable_fails_at_its_first_try(harness: DagRunHarness) -> None:
    line = ConfigError("SPEC_INVALID", "no such table", hint="mend it").as_record()
    harness.spark_submit(f"say('ERROR', {json.dumps(line)!r})\nsys.exit(10)")

    done = harness.run("games__gold")

    assert done["state"] == "failed"
    assert done["tasks"] == {
        "rebuild_gold": ["failed", 1],
        "refresh_gold": ["skipped", 1],
        "verify_gold": ["skipped", 1],
    }
    assert len(harness.submitted()) == 1
    assert harness.received_notifications() == [("JOB_FAILED", "games__gold.rebuild_gold", "raised")]

    harness.spark_submit("")
    harness.run("games__gold")
    assert harness.received_notifications() == [("JOB_FAILED", "games__gold.rebuild_gold", "resolved")]


def pushed_verdicts(done: Any) -> Any:
    verdicts = done["xcoms"]["verdicts"]
    return json.loads(verdicts) if isinstance(verdicts, str) else verdicts


def test_health_is_green_while_starting_and_red_once_a_stream_hangs(harness: DagRunHarness) -> None:
    for kind, name in (("relay", "landing"), ("stream", "games")):
        harness.heartbeat(kind, name, age_seconds=1)
    well = harness.run("deltaworks__health")
    harness.heartbeat("stream", "games", age_seconds=500)
    hung, still = harness.run("deltaworks__health"), harness.run("deltaworks__health")

    assert [run["state"] for run in (well, hung, still)] == ["success", "failed", "failed"]
    assert pushed_verdicts(hung)["games__stream"]["cause"] == "HEARTBEAT_STALE"
    assert pushed_verdicts(still)["games__stream"]["since"] == pushed_verdicts(hung)["games__stream"]["since"]
    assert {pushed_verdicts(run)["edits__stream"]["since"] for run in (hung, still)} == {
        pushed_verdicts(well)["edits__stream"]["since"]
    }
    assert harness.received_notifications() == [("STREAM_HUNG", "stream games", "raised")], (
        "told once, by two runs that saw it"
    )
    beat = json.loads((harness.project / "lake" / "control" / "alerts" / "health.json").read_text())
    assert (beat["run"], beat["unhealthy"]) == (still["run_id"], 1)

    harness.heartbeat("stream", "games", age_seconds=1)
    harness.run("deltaworks__health")
    assert harness.received_notifications() == [("STREAM_HUNG", "stream games", "resolved")]
