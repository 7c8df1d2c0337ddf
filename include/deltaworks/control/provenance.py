"""Who made a Delta commit: the JSON every commit carries in `commitInfo.userMetadata`."""

from __future__ import annotations

import getpass
import json
import os
from typing import Any

RUN_VARIABLE = "DELTAWORKS_RUN"
#: Who triggered that run; of one that nobody triggered, `NOBODY`.
PERSON_VARIABLE = "DELTAWORKS_PERSON"
SCHEDULER = "airflow"
REQUIRED_FIELDS = ("pipeline", "batch", "run", "operation")
#: Operations that rearrange or change rows which are there: a commit of one of them brings none.
MUTATE, PURGE_DELETED, OPTIMIZE = "mutate", "purge_deleted", "optimize"
#: Takes rows of erased people out of a table, and changes no others.
ERASE = "erase"
OPERATIONS_WITHOUT_NEW_ROWS = (MUTATE, PURGE_DELETED, OPTIMIZE)


def current_run() -> str:
    """The Airflow run this process works for (`dag/run/task/try`), or `manual`."""
    return os.environ.get(RUN_VARIABLE, "manual")


def current_person() -> str:
    """Who asks for what this process does: whoever triggered its Airflow run, or the user of the command."""
    return os.environ.get(PERSON_VARIABLE) or getpass.getuser()


def airflow_run_id() -> str:
    """The id of the Airflow run this process works for, the same at every try of its task; empty outside of Airflow."""
    return airflow_run_of(current_run())[1]


def airflow_run_of(run: str) -> tuple[str, str]:
    """The DAG and the id of its run in what `current_run` said; empty outside of Airflow."""
    dag_id, *rest = run.split("/")
    return (dag_id, "/".join(rest[:-2])) if len(rest) > 2 else ("", "")


def is_maintenance_run(pipeline: str) -> bool:
    """Whether this process is a task of the pipeline's maintenance DAG, which runs with nobody watching."""
    dag_id, slash, _ = current_run().partition("/")
    return bool(slash) and dag_id == maintenance_dag_id(pipeline)


def maintenance_dag_id(pipeline: str) -> str:
    """The DAG of a pipeline's upkeep."""
    return f"maintenance__{pipeline}"


def user_metadata(*, pipeline: str, batch: str | int, operation: str, **extra: Any) -> str:
    """The text of `userMetadata` for a commit made now by this process."""
    record = {"pipeline": pipeline, "batch": str(batch), "run": current_run(), "operation": operation, **extra}
    return json.dumps(record, separators=(",", ":"), default=str)


def parse_user_metadata(text: str | None) -> dict[str, Any]:
    """What `user_metadata` wrote; empty where a commit has none of ours."""
    if not text:
        return {}
    try:
        record = json.loads(text)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
