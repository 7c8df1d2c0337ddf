"""A small client of Airflow's REST API: what the stack, the command line and the health check need of it."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx
from tenacity import RetryCallState, retry, retry_if_exception_type, wait_exponential_jitter

from deltaworks.errors import ConfigError, TransientError

#: Airflow's own way to declare a connection; tasks and commands read the same one.
CONNECTION_VARIABLE = "AIRFLOW_CONN_DELTAWORKS_AIRFLOW"
_API = "/api/v2"
_RETRY_SECONDS = 30.0
#: A server that accepts requests and is too busy to answer gets more time than one that is down.
_BUSY_RETRY_SECONDS = 120.0
_HEALTH_SECONDS = 10.0
_PAGE = 100
_UNAUTHORIZED = 401
_NOT_FOUND = 404
_CONFLICT = 409
_SERVER_ERROR = 500
FINISHED = frozenset({"success", "failed"})


@dataclass(frozen=True, slots=True)
class Component:
    """One part of Airflow as it reports itself; a part that never ran has no heartbeat."""

    status: str
    heartbeat: datetime | None

    @property
    def healthy(self) -> bool:
        """Whether Airflow calls it healthy. It keeps doing so for 30 s after the process died."""
        return self.status == "healthy"


@dataclass(frozen=True, slots=True)
class Health:
    """The health Airflow reports of its parts."""

    metadatabase: Component
    scheduler: Component
    dag_processor: Component
    triggerer: Component

    @property
    def all_healthy(self) -> bool:
        """Whether every part is."""
        return all(getattr(self, item.name).healthy for item in fields(self))


@dataclass(frozen=True, slots=True)
class Dag:
    """A DAG Airflow knows."""

    dag_id: str
    is_paused: bool
    tags: tuple[str, ...]
    has_import_errors: bool


@dataclass(frozen=True, slots=True)
class ImportProblem:
    """A DAG file that does not import."""

    filename: str
    stack_trace: str


@dataclass(frozen=True, slots=True)
class DagRun:
    """One run of a DAG."""

    dag_id: str
    run_id: str
    state: str
    start: datetime | None
    end: datetime | None
    conf: Mapping[str, Any]
    note: str = ""

    @property
    def finished(self) -> bool:
        """Whether it ended, one way or the other."""
        return self.state in FINISHED


@dataclass(frozen=True, slots=True)
class TaskInstance:
    """One task of a run, as of its latest try. `state` is None before it is scheduled."""

    task_id: str
    state: str | None
    try_number: int
    start: datetime | None
    end: datetime | None
    duration_seconds: float | None


class _Unavailable(Exception):
    """No answer, or one that says the server has trouble."""


class _Busy(_Unavailable):
    """The server is there, and did not answer in time."""


def _patience_is_over(tries: RetryCallState) -> bool:
    if not tries.args[0].patient:
        return True
    busy = tries.outcome is not None and isinstance(tries.outcome.exception(), _Busy)
    return (tries.seconds_since_start or 0.0) >= (_BUSY_RETRY_SECONDS if busy else _RETRY_SECONDS)


def airflow_from_environment() -> AirflowApi:
    """A client of the Airflow that AIRFLOW_CONN_DELTAWORKS_AIRFLOW names: a connection as JSON, as Airflow takes it.

    Raises:
        ConfigError: AIRFLOW_CONNECTION_MISSING when it is not set, or names no host.
    """
    connection = json.loads(os.environ.get(CONNECTION_VARIABLE, "{}"))
    if not connection.get("host"):
        raise ConfigError(
            "AIRFLOW_CONNECTION_MISSING",
            f"{CONNECTION_VARIABLE} is not set, so it is not known where Airflow's API is.",
            hint="Start the embedded stack with `deltaworks up`, or set it to "
            '{"conn_type": "http", "host": "http://airflow:8080", "login": "...", "password": "..."}.',
        )
    return AirflowApi(str(connection["host"]), str(connection.get("login")), str(connection.get("password")))


class AirflowApi:
    """A client that logs itself in. Not thread-safe.

    Requests are tried again for half a minute, and for two minutes while the server is there but too busy to answer;
    without `patient` they are tried once, for what may be left out.
    """

    def __init__(
        self, base_url: str, user: str, password: str, *, timeout_seconds: float = 30.0, patient: bool = True
    ) -> None:
        self.patient = patient
        self._credentials = {"username": user, "password": password}
        # The server is on this machine: a proxy for outside addresses must not be used.
        self._client = httpx.Client(base_url=base_url, timeout=timeout_seconds, trust_env=False)
        self._logged_in = False

    def __enter__(self) -> AirflowApi:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def health(self) -> Health:
        """The health of Airflow's parts, by one request without login.

        Raises:
            TransientError: AIRFLOW_UNREACHABLE.
        """
        try:
            answer = self._client.get(f"{_API}/monitor/health", timeout=_HEALTH_SECONDS).raise_for_status().json()
        except (httpx.HTTPError, ValueError) as error:
            raise self._unreachable(error) from error
        return Health(**{item.name: _component(answer, item.name) for item in fields(Health)})

    def dags(self) -> tuple[Dag, ...]:
        """Every DAG that is not stale, by name."""
        dags: list[dict[str, Any]] = []
        while True:
            page = self._get("/dags", limit=_PAGE, offset=len(dags), order_by="dag_id")
            dags += page["dags"]
            if not page["dags"] or len(dags) >= page["total_entries"]:
                return tuple(_dag(item) for item in dags)

    def dag(self, dag_id: str) -> Dag | None:
        """The DAG, or None while Airflow does not know it."""
        answer = self._request("GET", f"/dags/{quote(dag_id)}", missing_ok=True)
        return None if answer is None else _dag(answer)

    def import_errors(self) -> tuple[ImportProblem, ...]:
        """The DAG files that do not import."""
        answer = self._get("/importErrors", limit=_PAGE)
        return tuple(ImportProblem(i["filename"], i["stack_trace"]) for i in answer["import_errors"])

    def pause(self, dag_id: str) -> None:
        """Let no new run start; running ones continue."""
        self._request("PATCH", f"/dags/{quote(dag_id)}", json={"is_paused": True})

    def unpause(self, dag_id: str) -> None:
        """Let runs start again."""
        self._request("PATCH", f"/dags/{quote(dag_id)}", json={"is_paused": False})

    def trigger(self, dag_id: str, *, conf: Mapping[str, Any] | None = None, run_id: str | None = None) -> DagRun:
        """Start a run. With the same `run_id` twice there is still one run."""
        run_id = run_id or f"manual__{datetime.now(UTC).isoformat()}__{uuid.uuid4().hex[:6]}"
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf or {})}
        answer = self._request("POST", f"/dags/{quote(dag_id)}/dagRuns", json=body, conflict_ok=True)
        return self.dag_run(dag_id, run_id) if answer is None else _dag_run(answer)

    def dag_run(self, dag_id: str, run_id: str) -> DagRun:
        """One run as it is now."""
        return _dag_run(self._get(f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"))

    def dag_runs(self, dag_id: str, *, limit: int = 10) -> tuple[DagRun, ...]:
        """The latest runs, newest first."""
        answer = self._get(f"/dags/{quote(dag_id)}/dagRuns", limit=limit, order_by="-run_after")
        return tuple(_dag_run(item) for item in answer["dag_runs"])

    def note_run(self, dag_id: str, run_id: str, text: str) -> None:
        """Set the note of a run, at most 1,000 characters of Markdown. Nothing happens where there is no such run."""
        path = f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"
        self._request("PATCH", path, params={"update_mask": "note"}, json={"note": text}, missing_ok=True)

    def task_instances(self, dag_id: str, run_id: str) -> tuple[TaskInstance, ...]:
        """The tasks of a run."""
        path = f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}/taskInstances"
        return tuple(_task_instance(item) for item in self._get(path, limit=_PAGE)["task_instances"])

    def clear_task(self, dag_id: str, run_id: str, task_id: str) -> None:
        """Have a task run again in its run. One that runs is killed first."""
        body = {"dry_run": False, "dag_run_id": run_id, "task_ids": [task_id], "only_failed": False}
        self._request("POST", f"/dags/{quote(dag_id)}/clearTaskInstances", json={**body, "reset_dag_runs": True})

    def wait_for_run(self, dag_id: str, run_id: str, *, timeout_seconds: float, poll_seconds: float = 2.0) -> DagRun:
        """Wait until a run has finished; the caller looks at its state.

        Raises:
            TransientError: DAG_RUN_TIMEOUT.
        """
        end = time.monotonic() + timeout_seconds
        while not (run := self.dag_run(dag_id, run_id)).finished:
            if time.monotonic() > end:
                raise TransientError(
                    "DAG_RUN_TIMEOUT",
                    f"Run {run_id} of {dag_id} is still {run.state} after {timeout_seconds:.0f} s.",
                    hint=f"Look at its log: {self._client.base_url}/dags/{dag_id}/runs/{run_id}.",
                )
            time.sleep(poll_seconds)
        return run

    def _get(self, path: str, **params: Any) -> Any:
        return self._request("GET", path, params=params)

    def _request(
        self, method: str, path: str, *, missing_ok: bool = False, conflict_ok: bool = False, **options: Any
    ) -> Any:
        try:
            response = self._send(method, path, **options)
        except _Unavailable as error:
            raise self._unreachable(error) from error
        if (missing_ok and response.status_code == _NOT_FOUND) or (conflict_ok and response.status_code == _CONFLICT):
            return None
        if response.is_error:
            raise ConfigError(
                "AIRFLOW_REFUSED",
                f"Airflow answered {response.status_code} to {method} {path}: {response.text[:300]}",
                hint="Check the name of the DAG and the login.",
            )
        return response.json()

    @retry(
        retry=retry_if_exception_type(_Unavailable),
        wait=wait_exponential_jitter(initial=0.3, max=3),
        stop=_patience_is_over,
        reraise=True,
    )
    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            if not self._logged_in:
                self._log_in()
            response = self._client.request(method, _API + path, **options)
            if response.status_code == _UNAUTHORIZED:
                self._log_in()
                response = self._client.request(method, _API + path, **options)
        except httpx.ReadTimeout as error:
            raise _Busy(f"no answer to {method} {path} within {self._client.timeout.read:.0f} s") from error
        except httpx.TransportError as error:
            raise _Unavailable(str(error)) from error
        if response.status_code >= _SERVER_ERROR:
            raise _Unavailable(f"{response.status_code} {response.text[:200]}")
        return response

    def _log_in(self) -> None:
        response = self._client.post("/auth/token", json=self._credentials)
        if response.status_code >= _SERVER_ERROR:
            raise _Unavailable(f"{response.status_code} {response.text[:200]}")
        if response.is_error:
            raise ConfigError(
                "AIRFLOW_LOGIN_REFUSED",
                f"Airflow refused the login of {self._credentials['username']}: {response.status_code}.",
                hint="The password is printed by `deltaworks status`.",
            )
        self._client.headers["Authorization"] = f"Bearer {response.json()['access_token']}"
        self._logged_in = True

    def _unreachable(self, error: Exception) -> TransientError:
        return TransientError(
            "AIRFLOW_UNREACHABLE",
            f"Airflow at {self._client.base_url} gives no usable answer: {error}.",
            hint="Look at `deltaworks status`; its API server may be restarting.",
        )


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _component(answer: Mapping[str, Any], name: str) -> Component:
    part = answer.get(name) or {}
    return Component(part.get("status") or "unknown", _time(part.get(f"latest_{name}_heartbeat")))


def _dag(item: Mapping[str, Any]) -> Dag:
    tags = tuple(tag["name"] for tag in item["tags"])
    return Dag(item["dag_id"], item["is_paused"], tags, item["has_import_errors"])


def _dag_run(item: Mapping[str, Any]) -> DagRun:
    start, end = _time(item["start_date"]), _time(item["end_date"])
    conf, note = item["conf"] or {}, item.get("note") or ""
    return DagRun(item["dag_id"], item["dag_run_id"], item["state"], start, end, conf, note)


def _task_instance(item: Mapping[str, Any]) -> TaskInstance:
    return TaskInstance(
        task_id=item["task_id"],
        state=item["state"],
        try_number=item["try_number"],
        start=_time(item["start_date"]),
        end=_time(item["end_date"]),
        duration_seconds=item["duration"],
    )
