"""Provenance of Delta commits: the JSON in `commitInfo.userMetadata`."""

from __future__ import annotations

import json
import os
import pwd
from typing import Any

from deltaworks.specs.dag_ids import dag_id

RUN_VARIABLE = "DELTAWORKS_RUN"
#: The user who triggered that run; `SCHEDULER` for scheduled runs.
PERSON_VARIABLE = "DELTAWORKS_PERSON"
SCHEDULER = "airflow"
#: `True` in complete runs of maintenance, `False` in runs whose form selects steps.
UNATTENDED_VARIABLE = "DELTAWORKS_UNATTENDED"
REQUIRED_FIELDS = ("pipeline", "batch", "run", "operation")
#: Operations that rewrite or change existing rows. Their commits add no new rows.
MUTATE, PURGE_DELETED, OPTIMIZE = "mutate", "purge_deleted", "optimize"
#: The operation that deletes rows of erased people. It changes no other rows.
ERASE = "erase"
OPERATIONS_WITHOUT_NEW_ROWS = (MUTATE, PURGE_DELETED, OPTIMIZE)


def current_run() -> str:
    """Returns the Airflow run this process works for (`dag/run/task/try`), or `manual` outside Airflow."""
    return os.environ.get(RUN_VARIABLE, "manual")


def current_person() -> str:
    """Returns the user who triggered this process's Airflow run; outside Airflow the user of the operating system."""
    return (os.environ.get(PERSON_VARIABLE) if airflow_run_id() else "") or system_user()


def system_user() -> str:
    """Returns the name of the process's user in the operating system.

    Unlike `getpass.getuser` it ignores $LOGNAME and $USER, which everyone sets at will.
    """
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def airflow_run_id() -> str:
    """Returns the id of this process's Airflow run, the same for every try of its task; empty outside Airflow."""
    return airflow_run_of(current_run())[1]


def airflow_run_of(run: str) -> tuple[str, str]:
    """Extracts DAG id and run id from a value of `current_run`; both are empty outside Airflow."""
    dag_id, *parts = run.split("/")
    return (dag_id, "/".join(parts[:-2])) if len(parts) > 2 else ("", "")


def is_unattended_run(pipeline: str) -> bool:
    """Whether this process is a task of a complete run of the pipeline's maintenance DAG."""
    dag_id, _ = airflow_run_of(current_run())
    return dag_id == maintenance_dag_id(pipeline) and os.environ.get(UNATTENDED_VARIABLE) == "True"


def maintenance_dag_id(pipeline: str) -> str:
    """Returns the id of a pipeline's maintenance DAG."""
    return dag_id(pipeline, "maintenance")


def user_metadata(*, pipeline: str, batch: str | int, operation: str, **extra: Any) -> str:
    """Builds the `userMetadata` of a commit by this process."""
    record = {"pipeline": pipeline, "batch": str(batch), "run": current_run(), "operation": operation, **extra}
    return json.dumps(record, separators=(",", ":"), default=str)


def parse_user_metadata(text: str | None) -> dict[str, Any]:
    """Parses `userMetadata`; returns an empty dict for commits of other writers."""
    if not text:
        return {}
    try:
        record = json.loads(text)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
