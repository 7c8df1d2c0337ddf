"""Starts and reads DAG runs by Airflow's REST API with the user's token, from Airflow's process or another one.

It has no permissions of its own. If Airflow denies the user something, the console denies it too, and Airflow's audit
log records the user.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote

import anyio.from_thread
import httpx
from fastapi import Request

from deltaworks.console.host import PendingApproval, RunStatus, StartedRun
from deltaworks.errors import ConfigError, TransientError
from deltaworks.operations.base import RESULTS_KEY

_API: Final = "/api/v2"
_CONFLICT, _FORBIDDEN, _UNAUTHORIZED, _MISSING, _SERVER_ERROR = 409, 403, 401, 404, 500
_HEALTH_SECONDS = 10.0
_TIMEOUT_SECONDS = 15.0
_AWAITING_INPUT: Final = "awaiting_input"
#: Opens a client of Airflow's API with the token of the request, or without login if the request is None.
Connect = Callable[[Request | None], httpx.AsyncClient]


class RestActions:
    """Starts and reads DAG runs through the REST API. Serves one event loop and the threads that the loop started.

    Args:
        connect: opens a client whose base address is Airflow's.
        address: returns the prefix of Airflow's pages, for links.
    """

    def __init__(self, connect: Connect, *, address: Callable[[Request], str | None]) -> None:
        self._connect = connect
        self._address = address
        self._unavailable = ""
        self._checked_at = float("-inf")

    async def start(
        self, request: Request, *, dag_id: str, run_id: str, conf: Mapping[str, Any], note: str = ""
    ) -> StartedRun:
        """Starts a run. Idempotent per `run_id`.

        Raises:
            ConfigError: AIRFLOW_FORBIDDEN, AIRFLOW_DAG_UNKNOWN, AIRFLOW_REFUSED; TransientError: AIRFLOW_UNREACHABLE.
        """
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf), "note": note or None}
        answer = await self._request(request, "POST", f"{_dag_path(dag_id)}/dagRuns", json=body, conflict_ok=True)
        state = "queued" if answer is None else str(answer["state"])
        return StartedRun(dag_id=dag_id, run_id=run_id, state=state, address=self._run_page(request, dag_id, run_id))

    async def dag_params(self, request: Request, *, dag_id: str) -> Mapping[str, Any]:
        """Returns the params of a DAG by name. Raises as `start`."""
        answer = await self._request(request, "GET", f"{_dag_path(dag_id)}/details")
        return dict(answer.get("params") or {})

    async def run_status(self, request: Request, *, dag_id: str, run_id: str, task_ids: Iterable[str]) -> RunStatus:
        """Returns a run with its tasks and the results of the last of `task_ids` that has any. Raises as `start`."""
        run = await self._request(request, "GET", _run_path(dag_id, run_id))
        tasks = await self._request(request, "GET", f"{_run_path(dag_id, run_id)}/taskInstances")
        states = {task["task_id"]: str(task["state"] or "") for task in tasks["task_instances"]}
        page = self._run_page(request, dag_id, run_id)
        waiting_task = next((name for name, state in states.items() if state == _AWAITING_INPUT), "")
        return RunStatus(
            dag_id=dag_id,
            run_id=run_id,
            state=str(run["state"]),
            conf=dict(run["conf"] or {}),
            triggered_by=str(run.get("triggering_user_name") or ""),
            tasks=tuple(states.items()),
            results=await self._results(request, dag_id, run_id, [name for name in task_ids if name in states]),
            address=page,
            approval_address=f"{page}/tasks/{quote(waiting_task)}/required_actions" if waiting_task else "",
        )

    def unavailable_reason(self) -> str:
        """Returns why no run can start: the scheduler is dead, or Airflow does not answer. Checked every 10 s."""
        if time.monotonic() - self._checked_at >= _HEALTH_SECONDS:
            self._checked_at = time.monotonic()
            try:
                self._unavailable = anyio.from_thread.run(self._check_health)
            except RuntimeError:  # called outside a thread of the event loop
                self._checked_at = float("-inf")
        return self._unavailable

    def paused_dags(self) -> frozenset[str] | None:
        """Returns None (unknown), since reading them would take a request per page."""
        return None

    def pending_approvals(self, airflow: str | None) -> tuple[PendingApproval, ...]:
        """Returns an empty list, since reading them would take a request per page."""
        return ()

    def airflow_address(self, request: Request) -> str | None:
        """Returns the prefix of Airflow's pages."""
        return self._address(request)

    async def _check_health(self) -> str:
        try:
            async with self._connect(None) as client:
                answer = await client.get(f"{_API}/monitor/health", timeout=2.0)
                scheduler = answer.raise_for_status().json()["scheduler"]["status"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            return f"Airflow does not answer ({type(error).__name__})."
        return (
            ""
            if scheduler == "healthy"
            else (f"Airflow's scheduler is {scheduler or 'not running'}: nothing would run.")
        )

    async def _results(
        self, request: Request, dag_id: str, run_id: str, task_ids: list[str]
    ) -> tuple[Mapping[str, Any], ...]:
        for task_id in reversed(task_ids):
            path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/xcomEntries/{RESULTS_KEY}"
            answer = await self._request(request, "GET", path, params={"stringify": False}, missing_ok=True)
            value = None if answer is None else _decode_json(answer["value"])
            if isinstance(value, list):
                return tuple(record for record in value if isinstance(record, dict))
        return ()

    async def _request(
        self,
        request: Request,
        method: str,
        path: str,
        *,
        conflict_ok: bool = False,
        missing_ok: bool = False,
        **options: Any,
    ) -> Any:
        try:
            async with self._connect(request) as client:
                response = await client.request(method, _API + path, timeout=_TIMEOUT_SECONDS, **options)
        except httpx.HTTPError as error:
            raise _unreachable_error(f"{type(error).__name__}: {error}") from error
        if (conflict_ok and response.status_code == _CONFLICT) or (missing_ok and response.status_code == _MISSING):
            return None
        if response.is_success:
            return response.json()
        raise _error_for(method, path, response)

    def _run_page(self, request: Request, dag_id: str, run_id: str) -> str:
        return f"{self._address(request) or ''}/dags/{quote(dag_id)}/runs/{quote(run_id, safe='')}"


def _decode_json(value: Any) -> Any:
    """Decodes a result; some Airflow releases return the stored JSON as text."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return json.loads(value)
    return value


def _error_for(method: str, path: str, response: httpx.Response) -> ConfigError | TransientError:
    try:
        detail = str(response.json()["detail"])[:300]
    except (ValueError, KeyError, TypeError):
        detail = response.text[:300]
    message = f"Airflow answered {response.status_code} to {method} {path}: {detail}."
    if response.status_code >= _SERVER_ERROR:
        return _unreachable_error(message)
    if response.status_code in (_UNAUTHORIZED, _FORBIDDEN):
        hint = "Log in again, or ask an administrator of that Airflow for the right to trigger this DAG."
        return ConfigError("AIRFLOW_FORBIDDEN", message, hint=hint)
    if response.status_code == _MISSING:
        hint = "Airflow reads new declarations within about a minute; its list of DAGs shows import errors."
        return ConfigError("AIRFLOW_DAG_UNKNOWN", message, hint=hint)
    return ConfigError("AIRFLOW_REFUSED", message, hint="Correct the value it names, and send the form again.")


def _unreachable_error(message: str) -> TransientError:
    hint = "`deltaworks status` shows the embedded stack; commands work without Airflow."
    return TransientError("AIRFLOW_UNREACHABLE", message, hint=hint)


def _dag_path(dag_id: str) -> str:
    return f"/dags/{quote(dag_id, safe='')}"


def _run_path(dag_id: str, run_id: str) -> str:
    return f"{_dag_path(dag_id)}/dagRuns/{quote(run_id, safe='')}"
