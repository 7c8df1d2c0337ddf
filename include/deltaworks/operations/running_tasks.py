"""Finds the running task of a continuous DAG, so that a hung process can be ended by clearing it.

Clearing a task kills its process, which is safe at any time: the next try resumes.
"""

from __future__ import annotations

from typing import Protocol

from deltaworks.airflow_client.api import DagRun, TaskInstance

_RECENT_RUNS = 5


class RunsApi(Protocol):
    """The requests to Airflow that this module needs."""

    def dag_runs(self, dag_id: str, *, limit: int = 10) -> tuple[DagRun, ...]: ...

    def task_instances(self, dag_id: str, run_id: str) -> tuple[TaskInstance, ...]: ...

    def clear_task(self, dag_id: str, run_id: str, task_id: str) -> None: ...


def running_task(api: RunsApi, dag_id: str, *, state: str = "running") -> tuple[DagRun, TaskInstance] | None:
    """Returns the newest run that has a task in the given state, and that task; None if there is none.

    Raises:
        DeltaworksError: Airflow refuses or does not answer.
    """
    for run in api.dag_runs(dag_id, limit=_RECENT_RUNS):
        if run.is_finished:
            continue
        for task in api.task_instances(dag_id, run.run_id):
            if task.state == state:
                return run, task
    return None
