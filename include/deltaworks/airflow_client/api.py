"""The client of Airflow's REST API: its requests and their responses as typed values."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime
from typing import Any, Self
from urllib.parse import quote

import httpx2

from deltaworks.airflow_client.login import AirflowLogin, airflow_login
from deltaworks.airflow_client.requests import API, MISSING, AirflowRequests, dag_id_in_path
from deltaworks.errors import ConfigError, DeltaworksError, TransientError
from deltaworks.specs.base import suggest_name
from deltaworks.specs.dag_ids import split_dag_id
from deltaworks.specs.environment import EnvironmentSpec

FINISHED_STATES = frozenset({"success", "failed"})
_MAX_IMPORT_ERRORS = 3
_PAGE_SIZE = 100


@dataclass(frozen=True, slots=True)
class Component:
    """A component of Airflow with its status. The heartbeat is None if it never ran."""

    status: str
    heartbeat: datetime | None

    @property
    def is_healthy(self) -> bool:
        """Whether Airflow reports the component as healthy. For 30 s after its process has died, Airflow still does."""
        return self.status == "healthy"

    @classmethod
    def from_api(cls, answer: Mapping[str, Any], name: str) -> Self:
        """Returns the component with this name from a health response."""
        part = answer.get(name) or {}
        return cls(part.get("status") or "unknown", _parse_time(part.get(f"latest_{name}_heartbeat")))


@dataclass(frozen=True, slots=True)
class Health:
    """Health of Airflow's components."""

    metadatabase: Component
    scheduler: Component
    dag_processor: Component
    triggerer: Component

    @classmethod
    def from_api(cls, answer: Mapping[str, Any]) -> Self:
        """Parses a health response."""
        return cls(**{item.name: Component.from_api(answer, item.name) for item in fields(cls)})


@dataclass(frozen=True, slots=True)
class Dag:
    """A DAG in Airflow; `file` is the path of its source below the DAG folder."""

    dag_id: str
    is_paused: bool
    tags: tuple[str, ...]
    has_import_errors: bool
    file: str = ""

    @classmethod
    def from_api(cls, item: Mapping[str, Any]) -> Self:
        """Parses a DAG of a response."""
        tags = tuple(tag["name"] for tag in item["tags"])
        return cls(
            item["dag_id"], item["is_paused"], tags, item["has_import_errors"], item.get("relative_fileloc") or ""
        )


@dataclass(frozen=True, slots=True)
class DagImportError:
    """A DAG file that cannot be imported."""

    filename: str
    stack_trace: str

    @property
    def last_line(self) -> str:
        """The error message, which is the last line of the stack trace."""
        lines = [line.strip() for line in self.stack_trace.splitlines() if line.strip()]
        return lines[-1] if lines else "no trace"


@dataclass(frozen=True, slots=True)
class DagRun:
    """A run of a DAG."""

    dag_id: str
    run_id: str
    state: str
    start: datetime | None
    end: datetime | None
    conf: Mapping[str, Any]
    note: str = ""
    triggered_by: str = ""

    @property
    def is_finished(self) -> bool:
        """Whether the run has succeeded or failed."""
        return self.state in FINISHED_STATES

    @classmethod
    def from_api(cls, item: Mapping[str, Any]) -> Self:
        """Parses a run of a response."""
        start, end = _parse_time(item["start_date"]), _parse_time(item["end_date"])
        conf, note, user = item["conf"] or {}, item.get("note") or "", item.get("triggering_user_name") or ""
        return cls(item["dag_id"], item["dag_run_id"], item["state"], start, end, conf, note, user)


@dataclass(frozen=True, slots=True)
class TaskInstance:
    """The latest try of a task in a run. Its state is None before it is scheduled."""

    task_id: str
    state: str | None
    try_number: int
    start: datetime | None
    end: datetime | None
    duration_seconds: float | None
    pool: str = ""

    @property
    def waits_for_slot(self) -> bool:
        """Whether it may run as soon as its pool and the executor have a free slot."""
        return self.state in ("scheduled", "queued")

    @classmethod
    def from_api(cls, item: Mapping[str, Any]) -> Self:
        """Parses a task instance of a response."""
        return cls(
            task_id=item["task_id"],
            state=item["state"],
            try_number=item["try_number"],
            start=_parse_time(item["start_date"]),
            end=_parse_time(item["end_date"]),
            duration_seconds=item["duration"],
            pool=str(item.get("pool") or ""),
        )


def airflow_client(environment: EnvironmentSpec) -> AirflowApi:
    """Returns a client of the Airflow that runs an environment's DAGs.

    Raises:
        ConfigError: AIRFLOW_CONNECTION_MISSING, AIRFLOW_CONNECTION_INVALID, REFERENCE_UNRESOLVED.
    """
    return AirflowApi(airflow_login(environment))


class AirflowApi(AirflowRequests):
    """A client of Airflow's REST API. Its requests raise the errors of `AirflowRequests`."""

    def health(self, *, timeout_seconds: float = 10.0) -> Health:
        """Returns the health of Airflow's components, by one request without login.

        Raises:
            TransientError: AIRFLOW_UNREACHABLE.
        """
        try:
            answer = self._client.get(f"{API}/monitor/health", timeout=timeout_seconds).raise_for_status().json()
            return Health.from_api(answer)
        except (httpx2.HTTPError, ValueError, AttributeError) as error:
            raise self._unreachable_error(error) from error

    def dags(self, *, only_paused: bool = False) -> tuple[Dag, ...]:
        """Returns all DAGs that Airflow does not consider stale, or only those that are paused, sorted by id."""
        dags: list[dict[str, Any]] = []
        selected: dict[str, Any] = {"paused": "true"} if only_paused else {}
        while True:
            page = self._get("/dags", limit=_PAGE_SIZE, offset=len(dags), order_by="dag_id", **selected)
            dags += page["dags"]
            if not page["dags"] or len(dags) >= page["total_entries"]:
                return tuple(Dag.from_api(item) for item in dags)

    def dag(self, dag_id: str) -> Dag | None:
        """Returns the DAG with this id, or None if Airflow does not have it."""
        answer = self._request("GET", _dag_path(dag_id), missing_ok=True)
        return None if answer is None else Dag.from_api(answer)

    def dag_params(self, dag_id: str) -> dict[str, Any]:
        """Returns the params of a DAG by name, each with `value`, `description` and `schema`."""
        return dict(self._get(f"{_dag_path(dag_id)}/details").get("params") or {})

    def assets(self, pattern: str) -> dict[str, int]:
        """Returns the ids of assets by name, of those whose name contains `pattern`."""
        ids: dict[str, int] = {}
        while True:
            page = self._get("/assets", name_pattern=pattern, limit=_PAGE_SIZE, offset=len(ids))
            ids |= {asset["name"]: int(asset["id"]) for asset in page["assets"]}
            if not page["assets"] or len(ids) >= page["total_entries"]:
                return ids

    def create_asset_event(self, asset_id: int, extra: Mapping[str, Any]) -> None:
        """Creates an event of an asset, after which DAGs that are scheduled on it run."""
        self._request("POST", "/assets/events", json={"asset_id": asset_id, "extra": dict(extra)})

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

    def trigger(
        self, dag_id: str, *, conf: Mapping[str, Any] | None = None, run_id: str | None = None, note: str = ""
    ) -> DagRun:
        """Triggers a run. Idempotent for the same `run_id`."""
        run_id = run_id or f"manual__{datetime.now(UTC).isoformat()}__{uuid.uuid4().hex[:6]}"
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf or {}), "note": note or None}
        answer = self._request("POST", f"{_dag_path(dag_id)}/dagRuns", json=body, conflict_ok=True)
        return self.dag_run(dag_id, run_id) if answer is None else DagRun.from_api(answer)

    def dag_run(self, dag_id: str, run_id: str) -> DagRun:
        """Returns a run with its current state."""
        return DagRun.from_api(self._get(_run_path(dag_id, run_id)))

    def find_run(self, dag_id: str, run_id: str) -> DagRun | None:
        """Returns a run with its current state; None if it does not exist."""
        answer = self._request("GET", _run_path(dag_id, run_id), missing_ok=True)
        return None if answer is None else DagRun.from_api(answer)

    def dag_runs(self, dag_id: str, *, limit: int = 10) -> tuple[DagRun, ...]:
        """Returns the latest runs, newest first."""
        answer = self._get(f"{_dag_path(dag_id)}/dagRuns", limit=limit, order_by="-run_after")
        return tuple(DagRun.from_api(item) for item in answer["dag_runs"])

    def question(self, dag_id: str, run_id: str, task_id: str) -> Mapping[str, Any] | None:
        """Returns what a task asks a person and the answer; None before it has asked."""
        answer = self._request("GET", _question_path(dag_id, run_id, task_id), missing_ok=True)
        return answer if answer is None else dict(answer)

    def answer(self, dag_id: str, run_id: str, task_id: str, option: str) -> None:
        """Chooses an option of a question. Does nothing if it was answered meanwhile."""
        body = {"chosen_options": [option], "params_input": {}}
        self._request("PATCH", _question_path(dag_id, run_id, task_id), json=body, conflict_ok=True)

    def create_backfill(self, dag_id: str, first: date, last: date) -> int:
        """Backfills a DAG for each date from the first to the last, one run at a time; returns the backfill's id."""
        body = {
            "dag_id": dag_id,
            "from_date": f"{first}T00:00:00Z",
            "to_date": f"{last}T23:59:59Z",
            "reprocess_behavior": "none",
            "max_active_runs": 1,
            "run_backwards": False,
            "dag_run_conf": {},
        }
        return int(self._request("POST", "/backfills", json=body)["id"])

    def backfill_runs(self, dag_id: str, *, limit: int = 10) -> tuple[DagRun, ...]:
        """Returns the newest runs of backfills of a DAG."""
        return tuple(run for run in self.dag_runs(dag_id, limit=limit) if run.run_id.startswith("backfill__"))

    def set_run_note(self, dag_id: str, run_id: str, text: str) -> None:
        """Sets the note of a run, at most 1,000 characters of Markdown. Does nothing if the run does not exist."""
        body, mask = {"note": text}, {"update_mask": "note"}
        self._request("PATCH", _run_path(dag_id, run_id), params=mask, json=body, missing_ok=True)

    def task_instances(self, dag_id: str, run_id: str) -> tuple[TaskInstance, ...]:
        """Returns the task instances of a run."""
        answer = self._get(f"{_run_path(dag_id, run_id)}/taskInstances", limit=_PAGE_SIZE)
        return tuple(TaskInstance.from_api(item) for item in answer["task_instances"])

    def pool_users(self, pool: str) -> tuple[str, ...]:
        """Returns the running tasks that use slots of a pool, as `DAG.task`, as far as this person may see them."""
        answer = self._get("/dags/~/dagRuns/~/taskInstances", pool=pool, state="running", limit=_PAGE_SIZE)
        return tuple(f"{item['dag_id']}.{item['task_id']}" for item in answer["task_instances"])

    def describe_wait(self, tasks: Iterable[TaskInstance]) -> str:
        """Describes which task waits for a slot, and what uses its pool; empty if none waits, nothing uses it, or
        Airflow does not say.
        """
        for task in tasks:
            users: tuple[str, ...] = ()
            with suppress(DeltaworksError):
                users = self.pool_users(task.pool) if task.waits_for_slot and task.pool else ()
            if users:
                return f"{task.task_id} waits for a slot of pool {task.pool}, which is used by {', '.join(users)}."
        return ""

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

    def _error_for(self, method: str, path: str, response: httpx2.Response) -> DeltaworksError:
        if response.status_code == MISSING and (dag_id := dag_id_in_path(path)):
            dags = self.dags()
            if dag_id not in {dag.dag_id for dag in dags}:
                problems: tuple[DagImportError, ...] = ()
                # Reading import errors requires a separate permission, which the user may lack.
                with suppress(DeltaworksError):
                    problems = self.import_errors()
                return _dag_unknown_error(self.login, dag_id, dags, problems)
        return super()._error_for(method, path, response)


def _dag_path(dag_id: str) -> str:
    return f"/dags/{quote(dag_id)}"


def _question_path(dag_id: str, run_id: str, task_id: str) -> str:
    return f"{_run_path(dag_id, run_id)}/taskInstances/{task_id}/-1/hitlDetails"


def _run_path(dag_id: str, run_id: str) -> str:
    return f"{_dag_path(dag_id)}/dagRuns/{quote(run_id, safe='')}"


def _dag_unknown_error(
    login: AirflowLogin, dag_id: str, dags: Sequence[Dag], problems: Sequence[DagImportError]
) -> ConfigError:
    """Returns the error for a DAG that Airflow does not have. It includes import errors that may be the cause.

    Args:
        problems: all import errors. The message shows those of the file with DAGs of the same kind, or else the first.
    """
    kind = split_dag_id(dag_id)[1]
    files = {dag.file for dag in dags if dag.file and split_dag_id(dag.dag_id)[1] == kind}
    relevant = [problem for problem in problems if any(problem.filename.endswith(file) for file in files)] or list(
        problems
    )
    message = f"Airflow at {login.url} has no DAG {dag_id}; {suggest_name(dag_id, [dag.dag_id for dag in dags])}."
    if relevant:
        listed = "; ".join(f"{problem.filename}: {problem.last_line}" for problem in relevant[:_MAX_IMPORT_ERRORS])
        return ConfigError(
            "AIRFLOW_DAG_UNKNOWN",
            f"{message} It cannot import {listed}.",
            hint="Correct the import error: Airflow shows the full trace above its list of DAGs.",
        )
    return ConfigError(
        "AIRFLOW_DAG_UNKNOWN",
        message,
        hint="Airflow reads new declarations within about a minute. If it is still missing, compare the checkout and "
        "DELTAWORKS_PIPELINES of that Airflow with the local ones, and check its address.",
    )


def _parse_time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
