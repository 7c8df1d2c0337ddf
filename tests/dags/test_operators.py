"""The operators: commands, settings, and the end of a job or its task."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from deltaworks.airflow.continuous_dags import stream_dag
from deltaworks.airflow.maintenance_dags import maintenance_dag
from deltaworks.airflow.operators import ProcessOperator, SparkJobOperator
from deltaworks.airflow.scheduled_dags import gold_dag
from deltaworks.errors import ConfigError, ContractError, DeltaworksError, TransientError
from deltaworks.operations.dag_forms import form_of
from deltaworks.operations.registry import get_operation
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.project import load_catalog
from deltaworks.specs.schedules import SCHEDULES_VARIABLE
from deltaworks.specs.share_conf import launch_settings
from deltaworks.specs.shares import MAINTENANCE_NICENESS, ClusterShares, Share
from deltaworks.specs.spark_conf import submit_conf
from tests.dags.airflow_project import environment_variables
from tests.dags.test_mutation_dags import option_arguments, options_in
from tests.waiting import eventually

CLUSTER_EXTRA = {
    "k8s://https://k8s.example:6443": {"deploy-mode": "cluster", "namespace": "lake"},
    "yarn": {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": "http://rm.example:8088"},
}


#: Prints a line that the task obeys.
SAY = """
def say(kind, text):
    print(f"DELTAWORKS_{kind}:{os.environ['DELTAWORKS_LINE_NONCE']} {text}", flush=True)
"""


class FakeTaskInstance(SimpleNamespace):
    """A task instance that records pushed XComs."""

    def xcom_push(self, *, key: str, value: Any) -> None:
        self.pushed[key] = value


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def set_connection(host: str, extra: dict[str, Any] | None = None, *, conn_type: str = "spark") -> None:
        record = {"conn_type": conn_type, "host": host, "extra": extra or {}}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(record))

    return set_connection


@pytest.fixture
def spark_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Installs a spark-submit program that records its arguments and runs the given code."""

    def install(body: str) -> Path:
        record = tmp_path / "submitted.json"
        program = tmp_path / "bin" / "spark-submit"
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            f"#!{sys.executable}\nimport json, os, sys, time\n"
            f"{SAY}"
            f"json.dump(sys.argv[1:], open({str(record)!r}, 'w'))\n" + textwrap.dedent(body)
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        return record

    return install


def job(project: Path, **options: Any) -> SparkJobOperator:
    environment = load_catalog().environment
    spark = environment.spark.model_copy(update={"protected": False})
    environment = environment.model_copy(update={"spark": spark})
    defaults = {"task_id": "t", "job": "rebuild_gold", "pipeline": "games", "environment": environment}
    share = environment.shares.of("gold")
    return SparkJobOperator(**{**defaults, "share": share, **options})


def share_of(**declared: Any) -> Share:
    return ClusterShares.model_validate({"gold": declared}).of("gold")


def command_of(operator: SparkJobOperator, params: dict[str, Any] | None = None) -> list[str]:
    """Returns the operator's command without running it."""
    seen: list[list[str]] = []

    class Stop(Exception):
        pass

    def popen(command: list[str], **options: Any) -> Any:
        seen.append(command)
        raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", popen)
        with pytest.raises(Stop):
            operator.execute({"params": params or {}, "ti": FakeTaskInstance(pushed={})})  # type: ignore[typeddict-item]
    return seen[0]


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def conf_of(command: list[str]) -> dict[str, str]:
    return dict(part.split("=", 1) for flag, part in pairwise(command) if flag == "--conf")


@pytest.mark.parametrize("master", ["local[2]", "local[*]", "spark://spark.example:7077", "yarn"])
def test_the_master_comes_from_the_connection(project: Path, connect: Any, master: str) -> None:
    connect(master)

    command = command_of(job(project, share=share_of(driver_memory="700m")))

    assert option(command, "--master") == master
    assert option(command, "--driver-memory") == "700m"
    assert "--deploy-mode" not in command
    assert command[-3:] == [str(project / "spark_jobs" / "rebuild_gold.py"), "--pipeline", "games"]


def test_a_master_given_as_a_uri_is_parsed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", "spark://spark.example:7077")

    assert option(command_of(job(project)), "--master") == "spark://spark.example:7077"


@pytest.mark.parametrize(
    "connection",
    [
        '{"conn_type": "spark", "host": "spark://spark.example:7077"}',
        '{"conn_type": "spark", "host": "spark://spark.example", "port": 7077}',
        "spark://spark.example:7077",
    ],
)
def test_a_standalone_master_without_declared_protection_is_rejected(
    project: Path, monkeypatch: pytest.MonkeyPatch, connection: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", connection)

    with pytest.raises(ConfigError) as caught:
        command_of(job(project, environment=load_catalog().environment))

    assert caught.value.condition == "SPARK_UNPROTECTED"


def test_settings_that_the_jvm_needs_at_start_are_on_the_command_line_and_no_secret_is(
    project: Path, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELTAWORKS_LAKE_SECRET_KEY", "the-secret-of-the-lake")
    connect("local[2]")

    command = command_of(job(project))

    expected = submit_conf(load_catalog().environment, project)
    given = conf_of(command)
    expected.pop("spark.driver.memory")
    assert given == expected
    assert "log4j2.configurationFile=file:" in given["spark.driver.extraJavaOptions"]
    assert not any("the-secret-of-the-lake" in part for part in command)


@pytest.mark.parametrize("master", ["spark://spark.example:7077", "yarn"])
def test_a_job_is_submitted_with_its_share_of_the_cluster(project: Path, connect: Any, master: str) -> None:
    connect(master)
    share = share_of(executors=2, executor_cores=3, executor_memory="5g")

    command = command_of(job(project, share=share))

    launch = launch_settings(share, master, load_catalog().environment)
    assert launch.conf.items() <= conf_of(command).items()
    assert conf_of(command)["spark.executor.memory"] == "5g"


def test_a_local_master_has_the_cores_of_the_share(project: Path, connect: Any) -> None:
    connect("local[8]")

    assert option(command_of(job(project, share=share_of(executor_cores=3))), "--master") == "local[3]"
    assert option(command_of(job(project)), "--master") == "local[8]"


def test_the_queue_of_a_class_overrides_the_connections(project: Path, connect: Any) -> None:
    connect("yarn", {"queue": "everybody"})

    assert option(command_of(job(project, share=share_of(queue="night"))), "--queue") == "night"
    assert option(command_of(job(project)), "--queue") == "everybody"


@pytest.mark.parametrize("master", sorted(CLUSTER_EXTRA))
def test_cluster_mode_is_tracked_by_the_cluster_with_the_connection_alone(
    project: Path, connect: Any, monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    connect(master, CLUSTER_EXTRA[master])
    operator = job(project)
    seen: list[Any] = []
    monkeypatch.setattr(SparkJobOperator, "execute_resumable", lambda self, context: seen.append(self._get_hook()))
    monkeypatch.setattr("airflow.providers.apache.spark.hooks.spark_submit.kube_client", object(), raising=False)

    operator.execute({"params": {}, "ti": FakeTaskInstance(pushed={})})  # type: ignore[typeddict-item]

    command = seen[0]._build_spark_submit_command(operator.application)
    assert option(command, "--deploy-mode") == "cluster"
    assert "waitAppCompletion=false" in " ".join(command)
    assert "DELTAWORKS_RUN=" in " ".join(command)


@pytest.mark.parametrize(
    ("host", "extra", "condition"),
    [
        ("", {}, "SPARK_CONNECTION_INCOMPLETE"),
        ("spark://spark.example:7077", {"deploy-mode": "cluster"}, "DEPLOY_MODE_UNSUPPORTED"),
        ("k8s://https://k8s.example:6443", {"deploy-mode": "cluster"}, "SPARK_CONNECTION_INCOMPLETE"),
        ("yarn", {"deploy-mode": "cluster"}, "SPARK_CONNECTION_INCOMPLETE"),
    ],
)
def test_an_unusable_connection_is_rejected_with_a_hint(
    project: Path, connect: Any, host: str, extra: dict[str, str], condition: str
) -> None:
    connect(host, extra)

    with pytest.raises(ConfigError) as caught:
        job(project).execute({"params": {}, "ti": FakeTaskInstance(pushed={})})  # type: ignore[typeddict-item]

    assert caught.value.condition == condition
    assert caught.value.hint


def test_a_missing_connection_is_an_error_and_never_yarn(
    project: Path, airflow_database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_NOWHERE", raising=False)

    with pytest.raises(ConfigError) as caught:
        job(project, conn_id="spark_nowhere").execute(
            {"params": {}, "ti": FakeTaskInstance(pushed={})}  # type: ignore[typeddict-item]
        )

    assert caught.value.condition == "SPARK_CONNECTION_MISSING"
    assert "AIRFLOW_CONN_SPARK_NOWHERE" in caught.value.hint


def test_only_params_with_a_value_become_arguments(project: Path, connect: Any) -> None:
    connect("local[2]")

    def submitted(params: dict[str, Any], **fixed: Any) -> list[str]:
        task = job(
            project, operation=get_operation("rebuild_gold"), form=form_of(get_operation("rebuild_gold")), values=fixed
        )
        command = command_of(task, params)
        return command[command.index("--pipeline") + 2 :]

    assert submitted({"tables": [], "full": False, "dates": None}) == []
    assert submitted({"tables": None, "full": None, "dates": ""}) == []
    assert submitted({"tables": ["a", "b"], "full": True}) == ['--options={"tables":["a","b"],"full":true}']
    assert submitted({"full": True, "dates": "2026-01-01"}, dates="", full=False) == [], "what the DAG fixes wins"


def test_an_invalid_option_fails_before_the_job_is_submitted(project: Path, connect: Any) -> None:
    connect("local[2]")
    task = job(
        project, job="optimize_tables", operation=get_operation("optimize_tables"), values={"minutes": "{{ x }}"}
    )

    with pytest.raises(ConfigError, match="OPTION_INVALID"):
        task.execute({"params": {}, "ti": FakeTaskInstance(pushed={})})  # type: ignore[typeddict-item]


def looking_job(project: Path, submitted: Path, program: str, *, operation: str, **settings: Any) -> Any:
    """A job whose entry point is a program that records its arguments."""
    task = job(project, operation=get_operation(operation), **settings)
    task.application = str(submitted.with_name("look.py"))
    record = f"import json, os, sys\njson.dump(sys.argv[1:], open({str(submitted.with_name('asked.json'))!r}, 'w'))\n"
    Path(task.application).write_text(f"{record}{SAY}{program}\n")
    return task


@pytest.fixture
def local_spark(connect: Any) -> None:
    connect("local[2]")


@pytest.mark.usefixtures("local_spark")
@pytest.mark.parametrize("engine", ["auto", "process"])
@pytest.mark.parametrize(
    ("look", "needed"),
    [
        ('say(\'RESULTS\', \'[{"table": "a", "spark_work_count": 0}]\')', False),
        ('say(\'RESULTS\', \'[{"table": "a", "spark_work_count": 0}, {"table": "b", "spark_work_count": 1}]\')', True),
        ('say(\'RESULTS\', \'[{"table": "a", "spark_work_count": 0}, {"omitted": 40}]\')', True),
        ('say(\'RESULTS\', \'[{"table": "a", "spark_work_count": 0}]\')\nraise SystemExit(3)', True),
        ("print('nothing is known')", True),
    ],
)
def test_a_job_is_submitted_if_the_process_before_it_leaves_work_or_fails(
    project: Path, spark_submit: Any, look: str, needed: bool, engine: str
) -> None:
    submitted, instance = spark_submit(""), FakeTaskInstance(pushed={})
    task = looking_job(project, submitted, look, operation="rebuild_gold", engine=engine)

    task.execute({"params": {}, "ti": instance})

    assert submitted.exists() == needed
    assert json.loads(submitted.with_name("asked.json").read_text()) == [
        "--pipeline",
        "games",
        '--options={"spark":false}',
    ]
    done_by = instance.pushed["engine"]
    assert done_by.startswith("spark-submit on local[2]" if needed else "a process without Spark")
    assert needed or instance.pushed["results"] == [{"table": "a", "spark_work_count": 0}]


@pytest.mark.usefixtures("local_spark")
@pytest.mark.parametrize(
    ("engine", "dry_run", "asked"),
    [
        ("spark", False, None),
        # Defaults are not passed: the dry run, and no Spark.
        ("auto", False, {}),
        ("process", False, {"dry_run": False}),
        ("spark", True, {}),
    ],
)
def test_auto_looks_without_changes_process_does_its_part_and_a_dry_run_needs_no_job(
    project: Path, spark_submit: Any, engine: str, dry_run: bool, asked: dict[str, Any] | None
) -> None:
    submitted, instance = spark_submit(""), FakeTaskInstance(pushed={})
    left = 'say(\'RESULTS\', \'[{"table": "a", "spark_work_count": 2}]\')'
    task = looking_job(project, submitted, left, operation="vacuum_tables", engine=engine, values={"dry_run": dry_run})

    task.execute({"params": {}, "ti": instance})

    record = submitted.with_name("asked.json")
    assert (options_in(json.loads(record.read_text())) if record.exists() else None) == asked
    assert submitted.exists() == (not dry_run)


@pytest.mark.usefixtures("local_spark")
@pytest.mark.parametrize(("work", "looks_again"), [(3, False), (None, True)])
def test_a_task_that_continues_after_a_look_submits_its_job_without_another(
    project: Path, spark_submit: Any, work: int | None, looks_again: bool
) -> None:
    submitted, instance = spark_submit(""), FakeTaskInstance(pushed={})
    task = looking_job(project, submitted, "print('nothing is known')", operation="rebuild_gold", engine="auto")

    task.execute_after_look({"params": {}, "ti": instance}, {"work": work, "reason": "daily to build"})

    assert submitted.exists()
    assert submitted.with_name("asked.json").exists() == looks_again
    assert looks_again or "3 units of work remain for Spark" in instance.pushed["engine"]


@pytest.mark.usefixtures("local_spark")
@pytest.mark.parametrize(("left", "submits"), [(0, False), (1, True)])
def test_a_process_does_its_part_of_the_work_that_a_look_found(
    project: Path, spark_submit: Any, left: int, submits: bool
) -> None:
    submitted, instance = spark_submit(""), FakeTaskInstance(pushed={})
    done = f"say('RESULTS', '[{{\"batch\": 1, \"spark_work_count\": {left}}}]')"
    task = looking_job(project, submitted, done, operation="mutate_tables", engine="process", values={"dry_run": False})

    task.execute_after_look({"params": {}, "ti": instance}, {"work": 1, "reason": "requests wait"})

    asked = options_in(json.loads(submitted.with_name("asked.json").read_text()))
    assert asked == {"dry_run": False, "spark": False}
    assert submitted.exists() == submits


def test_gold_looks_first_on_schedule_and_the_night_does_its_work_where_it_is_declared(project: Path) -> None:
    from jinja2 import Environment

    spec, environment = load_catalog().pipelines["games"], load_catalog().environment
    by_day = gold_dag(spec, environment).get_task("rebuild_gold").engine

    def rendered(template: str, **values: Any) -> str:
        return Environment().from_string(template).render(**values)

    def night(declared: str, **params: Any) -> set[str]:
        chosen = spec.model_copy(update={"maintenance_on": declared})
        dag = maintenance_dag(chosen, environment)
        values = {"maintenance_on": None, "steps": None} | params
        return {
            rendered(dag.get_task(name).engine, params=values)
            for name in ("optimize_tables", "vacuum_tables", "rebuild_gold")
        }

    run_types = ("scheduled", "manual", "backfill")
    looks = [rendered(by_day, dag_run=SimpleNamespace(run_type=run_type)) for run_type in run_types]
    assert looks == ["auto", "spark", "spark"]
    assert [night(declared) for declared in ("spark", "auto", "process")] == [{"spark"}, {"auto"}, {"process"}]
    assert night("spark", steps=["vacuum_tables"]) == {"auto"}
    assert night("process", maintenance_on="spark") == {"spark"}


def test_schedules_can_be_disabled_in_all_dags_and_gold_can_still_be_backfilled(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.timetables.base import TimeRestriction
    from pendulum import datetime as instant

    spec, environment = load_catalog().pipelines["games"], load_catalog().environment
    timetable = gold_dag(spec, environment).schedule
    by_schedule = TimeRestriction(earliest=None, latest=None, catchup=False)
    by_backfill = TimeRestriction(earliest=instant(2026, 3, 1), latest=instant(2026, 3, 1), catchup=True)

    def next_run(restriction: TimeRestriction) -> Any:
        return timetable.next_dagrun_info(last_automated_data_interval=None, restriction=restriction)

    assert next_run(by_schedule) is not None
    monkeypatch.setenv(SCHEDULES_VARIABLE, "off")

    assert maintenance_dag(spec, environment).schedule is None
    assert next_run(by_schedule) is None
    assert next_run(by_backfill).data_interval.start.date().isoformat() == "2026-03-01"


def test_vacuum_deletes_only_when_the_form_says_so(project: Path) -> None:
    vacuum = maintenance_dag(load_catalog().pipelines["games"], load_catalog().environment).get_task("vacuum_tables")

    assert option_arguments(vacuum, {"tables": None, "dry_run": True}) == {"spark": True}
    assert option_arguments(vacuum, {"tables": ["events"], "dry_run": False}) == {
        "tables": ["events"],
        "spark": True,
        "dry_run": False,
    }


def test_the_jobs_error_is_raised_whatever_output_follows(project: Path, connect: Any, spark_submit: Any) -> None:
    connect("local[2]")
    line = ContractError("SCHEMA_CHANGED", "column secret_of x is gone", hint="declare it").as_record()
    spark_submit(f"say('ERROR', {json.dumps(line)!r})\nfor n in range(600): print('WARN noise', n)\nsys.exit(11)")

    with pytest.raises(DeltaworksError) as caught:
        job(project).execute({"params": {}, "ti": FakeTaskInstance(pushed={})})  # type: ignore[typeddict-item]

    assert (caught.value.condition, caught.value.retryable) == ("SCHEMA_CHANGED", False)
    assert caught.value.hint == "declare it"


def test_a_job_without_an_error_line_keeps_the_launchers_message(
    project: Path, connect: Any, spark_submit: Any
) -> None:
    from airflow.sdk.exceptions import AirflowException

    connect("local[2]")
    spark_submit("print('the last words')\nsys.exit(1)")

    with pytest.raises(AirflowException, match=r"(?s)Error code is: 1\..*the last words"):
        job(project).execute({"params": {}, "ti": FakeTaskInstance(pushed={})})  # type: ignore[typeddict-item]


def test_only_web_addresses_of_the_spark_ui_are_stored(project: Path, connect: Any, spark_submit: Any) -> None:
    connect("local[2]")
    instance = FakeTaskInstance(pushed={})
    spark_submit("say('UI', 'http://driver.example:4040')\nsay('UI', 'javascript:alert(1)')")

    job(project).execute({"params": {}, "ti": instance})  # type: ignore[typeddict-item]

    assert instance.pushed["spark_ui"] == "http://driver.example:4040"


def test_data_in_the_output_of_a_job_are_not_obeyed(project: Path, connect: Any, spark_submit: Any) -> None:
    """Lines as an object's key with line breaks writes them, without the nonce of this run."""
    connect("local[2]")
    final = json.dumps(ContractError("FAKE", "no retry").as_record())
    lines = [
        "DELTAWORKS_UI https://evil.example",
        "DELTAWORKS_UI: https://evil.example",
        f"DELTAWORKS_UI:{'0' * 32} https://evil.example",
        f"DELTAWORKS_ERROR {final}",
        f"  DELTAWORKS_ERROR:{'f' * 32} {final}",
        'DELTAWORKS_RESULTS [{"files": 0}]',
        '[{"files": 0}]',
        "deltaworks.errors.ContractError: [FAKE] no retry",
        "exit code: 10",
        "Error code is: 10",
    ]
    spark_submit(
        f"print({chr(10).join(lines)!r}, flush=True)\nsay('ERROR', {json.dumps(PASSING.as_record())!r})\nsys.exit(21)"
    )
    instance = FakeTaskInstance(pushed={})

    with pytest.raises(DeltaworksError) as caught:
        job(project).execute({"params": {}, "ti": instance})  # type: ignore[typeddict-item]

    assert (caught.value.condition, caught.value.retryable) == ("STORAGE_UNREACHABLE", True)
    assert instance.pushed["error_record"] == PASSING.as_record()
    assert not instance.pushed.keys() & {"spark_ui", "results"}

    spark_submit(f"print({chr(10).join(lines)!r}, flush=True)\nsys.exit(1)")
    from airflow.sdk.exceptions import AirflowException

    from deltaworks.airflow.child_process import error_of

    with pytest.raises(AirflowException) as foreign:
        job(project).execute({"params": {}, "ti": instance})  # type: ignore[typeddict-item]
    assert error_of(foreign.value) is None, "Airflow's own rules decide"


PASSING = TransientError("STORAGE_UNREACHABLE", "away", hint="wait")


def test_maintenance_has_a_higher_niceness_than_streams(
    project: Path, connect: Any, spark_submit: Any, tmp_path: Path
) -> None:
    connect("local[2]")
    spark_submit(f"open({str(tmp_path / 'niceness')!r}, 'w').write(str(os.nice(0)))")
    spec, environment = load_catalog().pipelines["games"], load_catalog().environment
    night = maintenance_dag(spec, environment)

    def niceness(task: Any) -> int:
        task.engine = "spark"
        task.execute({"params": {}, "ti": FakeTaskInstance(pushed={})})
        return int((tmp_path / "niceness").read_text())

    here = os.nice(0)
    assert niceness(stream_dag(spec, environment).get_task("ingest")) == here
    night.get_task("optimize_tables").values = {"dry_run": False}  # templates of a run
    assert niceness(night.get_task("optimize_tables")) == min(19, here + MAINTENANCE_NICENESS)
    assert night.get_task("remove_orphans")._niceness == MAINTENANCE_NICENESS


def instance_context() -> Any:
    return {"params": {}, "ti": FakeTaskInstance(pushed={})}


def test_a_process_gets_its_run_and_its_error_is_the_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "some_relay.py"
    module.write_text(
        "import os, sys\nprint('run', os.environ['DELTAWORKS_RUN'])\n"
        "from deltaworks.errors import ConcurrencyError\n"
        "print(ConcurrencyError('LEASE_HELD', 'm').as_line())\nsys.exit(20)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{PROJECT_ROOT / 'include'}")

    with pytest.raises(DeltaworksError) as caught:
        ProcessOperator(task_id="relay", module="some_relay").execute(instance_context())

    assert (caught.value.condition, caught.value.retryable) == ("LEASE_HELD", True)


def test_a_process_without_an_error_line_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "silent.py").write_text("raise SystemExit(3)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    with pytest.raises(TransientError, match="exit code 3"):
        ProcessOperator(task_id="relay", module="silent").execute(instance_context())


RUNNER = """
import sys
from deltaworks.airflow.maintenance_dags import maintenance_dag
from deltaworks.airflow.operators import ProcessOperator, SparkJobOperator
from deltaworks.operations.dag_forms import form_of
from deltaworks.operations.registry import get_operation
from deltaworks.specs.project import load_catalog
if sys.argv[1] == "process":
    operator = ProcessOperator(task_id="relay", module="sleeper")
else:
    environment = load_catalog().environment
    share = environment.shares.of("gold")
    operator = SparkJobOperator(
        task_id="t", job="rebuild_gold", pipeline="games", environment=environment, share=share
    )
class Instance:
    def xcom_push(self, **_):
        pass

operator.execute({"params": {}, "ti": Instance()})
"""

SLEEPER = "import os, time\nopen(os.environ['PID_FILE'], 'w').write(str(os.getpid()))\ntime.sleep(3600)\n"


@pytest.mark.parametrize("kind", ["process", "spark"])
def test_the_child_dies_with_its_task_runner(
    project: Path, tmp_path: Path, spark_submit: Any, connect: Any, kind: str
) -> None:
    connect("local[2]")
    spark_submit(SLEEPER)
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    pid_file = tmp_path / "pid"
    environment = environment_variables(project) | {"PID_FILE": str(pid_file)}
    environment["PYTHONPATH"] += f":{tmp_path}"
    runner = subprocess.Popen([sys.executable, "-c", RUNNER, kind], env=environment, stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: pid_file.exists() and pid_file.read_text() != "", "the child runs")
        child = psutil.Process(int(pid_file.read_text()))
        open_sockets = child.net_connections(kind="unix")

        runner.send_signal(signal.SIGKILL)
        runner.wait()

        assert open_sockets == []
        eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the child ends")
    finally:
        runner.kill()
        if pid_file.exists() and psutil.pid_exists(int(pid_file.read_text())):
            psutil.Process(int(pid_file.read_text())).kill()
