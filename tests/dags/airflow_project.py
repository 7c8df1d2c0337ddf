"""A small declared project, and interpreters that have imported nothing but Airflow, with a separate Airflow home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from deltaworks import testing

REPOSITORY = Path(__file__).resolve().parents[2]
HOME = Path(tempfile.mkdtemp(prefix="deltaworks-airflow-"))

AIRFLOW_SETTINGS = {
    "AIRFLOW_HOME": str(HOME),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__DAGS_FOLDER": str(REPOSITORY / "dags"),
    "AIRFLOW__CORE__PLUGINS_FOLDER": str(REPOSITORY / "plugins"),
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME / 'airflow.db'}",
    "AIRFLOW__API_AUTH__JWT_SECRET": "for-tests-only-a-secret-of-sufficient-length-" + "0123456789" * 3,
    "AIRFLOW__CORE__AUTH_MANAGER": "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager",
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "ada:admin,vic:viewer",
}
RELAY = """\
relay: landing
description: Objects that land in the landing bucket
owner: platform
queue_url: env:DELTAWORKS_LANDING_QUEUE_URL
buckets: [deltaworks-landing]
clean: {mode: delete, after_days: 30}
"""

PIPELINE = """\
pipeline: {name}
description: Events of players
owner: games-data
tags: [telemetry]
source: {{kind: s3_sqs, relay: landing, bucket: deltaworks-landing, prefix: {name}/}}
event:
  name: {{path: eventName}}
  time: {{path: eventTime, unit: epoch_seconds}}
tables:
  - {{name: events, catch_all: true}}
  - name: purchase
    when: {{eventName: purchase}}
    columns: [{{name: amount, path: amount, type: "decimal(12,2)"}}]
stream: {{driver_memory: 700m, stall_seconds: 600}}
gold:
  lag: 15m
  tables:
    - {{name: events_per_hour, sql: gold/events_per_hour.sql, reads: [events], partition_by: event_date}}
maintenance: {{schedule: "30 3 * * *"}}
"""

PIPELINE_WITHOUT_GOLD = """\
pipeline: edits
description: Edits of pages
owner: platform
source: {kind: s3_sqs, relay: landing, bucket: deltaworks-landing, prefix: edits/}
event:
  name: {constant: edit}
  time: {path: time}
tables:
  - {name: edits, catch_all: true}
"""


def declare_vault(root: Path) -> None:
    """Declares a keyring and a vault in the environment of a project."""
    environment = root / "include" / "environments" / "local.yaml"
    keys = f'{{kind: keyring, folder: "{root}/keys"}}'
    declared = f'privacy: {{keys: {keys}, vault: {{root: "file://{root}/vault"}}}}\n'
    environment.write_text(environment.read_text() + declared)


def write_project(root: Path) -> Path:
    """A project with one relay and two pipelines, one with gold and one without."""
    gold = {"pipelines/games/gold/events_per_hour.sql": "select event_date, count(*) as n from events group by 1"}
    testing.write_project(root, PIPELINE.format(name="games"), PIPELINE_WITHOUT_GOLD, relays=[RELAY], files=gold)
    (root / "lake").mkdir()
    (root / "spark_jobs").symlink_to(REPOSITORY / "spark_jobs")
    return root


def environment_variables(project: Path, home: Path | None = None) -> dict[str, str]:
    """Returns the variables of a child process for `project`."""
    settings = {**os.environ, **AIRFLOW_SETTINGS, "PYTHONPATH": str(REPOSITORY / "include")}
    settings |= {"DELTAWORKS_PROJECT": str(project), "DELTAWORKS_ENVIRONMENT": "local"}
    if home is not None:
        settings |= {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        }
    return settings


#: Imports Airflow, then runs each program of its input in a fork of itself: importing takes longer than most programs.
_INTERPRETER = """
import json, os, signal, sys
import airflow.dag_processing.dagbag, airflow.models.backfill, airflow.serialization.serialized_objects

def run(code, environment, output, problems):
    os.environ.clear()
    os.environ.update(environment)
    for name, stream in ((os.devnull, 0), (output, 1), (problems, 2)):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), stream)
    signal.alarm(240)
    try:
        exec(compile(code, "program", "exec"), {"__name__": "__main__"})
        failed = 0
    except BaseException:
        import traceback
        traceback.print_exc()
        failed = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(failed)

for line in sys.stdin:
    if (child := os.fork()) == 0:
        run(*json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@cache
def _interpreter() -> subprocess.Popen[str]:
    """The interpreter of all programs, which ends with the process of the tests."""
    with (HOME / "interpreter.log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-c", _INTERPRETER],
            env=environment_variables(HOME),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )


def run_python(code: str, project: Path) -> Any:
    """Runs code in an interpreter that has imported Airflow alone; returns the JSON of its last output line."""
    asked, answered = (interpreter := _interpreter()).stdin, interpreter.stdout
    assert asked is not None
    assert answered is not None
    with tempfile.TemporaryDirectory() as folder:
        output, problems = Path(folder, "output"), Path(folder, "problems")
        asked.write(json.dumps([code, environment_variables(project), str(output), str(problems)]) + "\n")
        asked.flush()
        code_of_end = answered.readline().strip()
        assert code_of_end, (HOME / "interpreter.log").read_text()
        assert code_of_end == "0", f"{code_of_end}: {output.read_text()}{problems.read_text()}"
        return json.loads(output.read_text().strip().splitlines()[-1])


def end_interpreter() -> None:
    """Ends the interpreter of `run_python`, if a test has used it."""
    if _interpreter.cache_info().currsize:
        _interpreter().communicate()
        _interpreter.cache_clear()
