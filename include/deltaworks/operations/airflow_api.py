"""A client of Airflow's REST API for the stack, the command line and the health check."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import httpx

from deltaworks.errors import DeltaworksError, TransientError
from deltaworks.operations.airflow_errors import NOT_FOUND, dag_id_in_path, dag_unknown_error
from deltaworks.operations.airflow_login import airflow_login
from deltaworks.operations.airflow_requests import AirflowRequests
from deltaworks.operations.airflow_resources import Dag, DagImportError, DagRun, TaskInstance
from deltaworks.specs.environment import EnvironmentSpec

_PAGE_SIZE = 100


def airflow_client(environment: EnvironmentSpec) -> AirflowApi:
    """Returns a client of the Airflow that runs an environment's DAGs.

    Raises:
        ConfigError: AIRFLOW_CONNECTION_MISSING, AIRFLOW_CONNECTION_INVALID, REFERENCE_UNRESOLVED.
    """
    return AirflowApi(airflow_login(environment))


class AirflowApi(AirflowRequests):
    """A client of Airflow's REST API. Its requests raise the errors of `AirflowRequests`."""

    def dags(self) -> tuple[Dag, ...]:
        """Returns all DAGs that Airflow does not consider stale, sorted by id."""
        dags: list[dict[str, Any]] = []
        while True:
            page = self._get("/dags", limit=_PAGE_SIZE, offset=len(dags), order_by="dag_id")
            dags += page["dags"]
            if not page["dags"] or len(dags) >= page["total_entries"]:
                return tuple(Dag.from_api(item) for item in dags)

    def dag(self, dag_id: str) -> Dag | None:
        """Returns the DAG with this id, or None if Airflow does not have it."""
        answer = self._request("GET", _dag_path(dag_id), missing_ok=True)
        return None if answer is None else Dag.from_api(answer)

    def import_errors(self) -> tuple[DagImportError, ...]:
        """Returns the DAG files that cannot be imported."""
        answer = self._get("/importErrors", limit=_PAGE_SIZE)
        return tuple(DagImportError(i["filename"], i["stack_trace"]) for i in answer["import_errors"])

    def pause(self, dag_id: str) -> None:
        """Pauses a DAG: no new run starts, but running ones continue."""
        self._request("PATCH", _dag_path(dag_id), json={"is_paused": True})

    def unpause(self, dag_id: str) -> None:
        """Unpauses a DAG."""
        self._request("PATCH", _dag_path(dag_id), json={"is_paused": False})

    def pause_all(self, *, paused: bool = True) -> None:
        """Pauses or unpauses all DAGs that are not stale, in one request."""
        self._request("PATCH", "/dags", params={"dag_id_pattern": "%"}, json={"is_paused": paused})

    def trigger(self, dag_id: str, *, conf: Mapping[str, Any] | None = None, run_id: str | None = None) -> DagRun:
        """Triggers a run. Idempotent for the same `run_id`."""
        run_id = run_id or f"manual__{datetime.now(UTC).isoformat()}__{uuid.uuid4().hex[:6]}"
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf or {})}
        answer = self._request("POST", f"{_dag_path(dag_id)}/dagRuns", json=body, conflict_ok=True)
        return self.dag_run(dag_id, run_id) if answer is None else DagRun.from_api(answer)

    def dag_run(self, dag_id: str, run_id: str) -> DagRun:
        """Returns a run with its current state."""
        return DagRun.from_api(self._get(_run_path(dag_id, run_id)))

    def dag_runs(self, dag_id: str, *, limit: int = 10) -> tuple[DagRun, ...]:
        """Returns the latest runs, newest first."""
        answer = self._get(f"{_dag_path(dag_id)}/dagRuns", limit=limit, order_by="-run_after")
        return tuple(DagRun.from_api(item) for item in answer["dag_runs"])

    def set_run_note(self, dag_id: str, run_id: str, text: str) -> None:
        """Sets the note of a run, at most 1,000 characters of Markdown. Does nothing if the run does not exist."""
        body, mask = {"note": text}, {"update_mask": "note"}
        self._request("PATCH", _run_path(dag_id, run_id), params=mask, json=body, missing_ok=True)

    def task_instances(self, dag_id: str, run_id: str) -> tuple[TaskInstance, ...]:
        """Returns the task instances of a run."""
        answer = self._get(f"{_run_path(dag_id, run_id)}/taskInstances", limit=_PAGE_SIZE)
        return tuple(TaskInstance.from_api(item) for item in answer["task_instances"])

    def clear_task(self, dag_id: str, run_id: str, task_id: str) -> None:
        """Clears a task so that it runs again in its run. A running task is killed first."""
        body = {"dry_run": False, "dag_run_id": run_id, "task_ids": [task_id], "only_failed": False}
        self._request("POST", f"{_dag_path(dag_id)}/clearTaskInstances", json={**body, "reset_dag_runs": True})

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str) -> Any:
        """Returns the XCom value that a task pushed under a key, or None."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/xcomEntries/{quote(key)}"
        answer = self._request("GET", path, missing_ok=True)
        value = None if answer is None else answer["value"]
        if isinstance(value, str):
            # Airflow's database stores JSON, which the API may return as text.
            with suppress(ValueError):
                return json.loads(value)
        return value

    def task_log(self, dag_id: str, run_id: str, task_id: str, try_number: int) -> tuple[str, ...]:
        """Returns the lines of a task's log; empty if there is no readable log."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/logs/{try_number}"
        answer = self._request("GET", path, params={"full_content": True}, missing_ok=True) or {"content": []}
        return tuple(str(line["event"] if isinstance(line, dict) else line) for line in answer["content"])

    def wait_for_run(self, dag_id: str, run_id: str, *, timeout_seconds: float, poll_seconds: float = 2.0) -> DagRun:
        """Waits until a run has ended and returns it. A failed run raises no error.

        Raises:
            TransientError: DAG_RUN_TIMEOUT.
        """
        end = time.monotonic() + timeout_seconds
        while not (run := self.dag_run(dag_id, run_id)).is_finished:
            if time.monotonic() > end:
                raise TransientError(
                    "DAG_RUN_TIMEOUT",
                    f"Run {run_id} of {dag_id} is still {run.state} after {timeout_seconds:.0f} s.",
                    hint=f"Check its log: {self.run_link(dag_id, run_id)}.",
                )
            time.sleep(poll_seconds)
        return run

    def dag_link(self, dag_id: str) -> str:
        """Returns the address of a DAG's page."""
        return f"{self.login.link_base}/dags/{quote(dag_id)}"

    def run_link(self, dag_id: str, run_id: str) -> str:
        """Returns the address of a run's page."""
        return f"{self.dag_link(dag_id)}/runs/{quote(run_id, safe='')}"

    def approval_link(self, dag_id: str, run_id: str, task_id: str) -> str:
        """Returns the address of the page on which a person answers a task's question."""
        return f"{self.run_link(dag_id, run_id)}/tasks/{quote(task_id)}/required_actions"

    def _error_for(self, method: str, path: str, response: httpx.Response) -> DeltaworksError:
        if response.status_code == NOT_FOUND and (dag_id := dag_id_in_path(path)):
            dags = self.dags()
            if dag_id not in {dag.dag_id for dag in dags}:
                problems: tuple[DagImportError, ...] = ()
                # Reading import errors requires a separate permission, which the user may lack.
                with suppress(DeltaworksError):
                    problems = self.import_errors()
                return dag_unknown_error(self.login, dag_id, dags, problems)
        return super()._error_for(method, path, response)


def _dag_path(dag_id: str) -> str:
    return f"/dags/{quote(dag_id)}"


def _run_path(dag_id: str, run_id: str) -> str:
    return f"{_dag_path(dag_id)}/dagRuns/{quote(run_id, safe='')}"
