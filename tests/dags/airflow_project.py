"""A small declared project, and fresh interpreters with a separate Airflow home."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from deltaworks import testing
from tests.processes import run_process

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
  schedule: "*/15 * * * *"
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


def run_python(code: str, project: Path) -> Any:
    """Runs code in a fresh interpreter and returns the JSON of its last output line."""
    done = run_process([sys.executable, "-c", code], env=environment_variables(project), timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])
