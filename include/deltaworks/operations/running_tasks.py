"""The task that runs now of a DAG whose one task runs without end, and its end by force where its process hangs.

Clearing a task kills its process, which is safe at any moment: the next try continues where it was.
"""

from __future__ import annotations

from typing import Protocol

from deltaworks.operations.airflow_resources import DagRun, TaskInstance

_RECENT_RUNS = 5


class RunsApi(Protocol):
    """The requests to Airflow that this needs."""

    def dag_runs(self, dag_id: str, *, limit: int = 10) -> tuple[DagRun, ...]: ...

    def task_instances(self, dag_id: str, run_id: str) -> tuple[TaskInstance, ...]: ...

    def clear_task(self, dag_id: str, run_id: str, task_id: str) -> None: ...


def running_task(api: RunsApi, dag_id: str, *, state: str = "running") -> tuple[DagRun, TaskInstance] | None:
    """The newest run of a DAG that has a running task, or one in another state, and that task; None where none has.

    Raises:
        DeltaworksError: what Airflow said, or that it did not answer.
    """
    for run in api.dag_runs(dag_id, limit=_RECENT_RUNS):
        if run.is_finished:
            continue
        for task in api.task_instances(dag_id, run.run_id):
            if task.state == state:
                return run, task
    return None
