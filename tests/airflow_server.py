"""A test server that implements the used part of Airflow's API (v2) and records requests."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from deltaworks.operations.base import ERROR_RECORD_KEY, RESULTS_KEY

_RUN = r"/dags/(?P<dag>[^/]+)/dagRuns/(?P<run>[^/]+)"


@dataclass
class RunScript:
    """The states of a run and its tasks in consecutive polls; the last one repeats."""

    steps: list[tuple[str, Mapping[str, str | None]]] = field(default_factory=lambda: [("success", {})])
    results: Mapping[str, Any] = field(default_factory=dict)
    errors: Mapping[str, Any] = field(default_factory=dict)


class AirflowServer(ThreadingHTTPServer):
    """A fake Airflow with DAGs, one login and configurable errors.

    `slow` requests are not answered, `broken` ones get status 503. `forbidden` lists prefixes of `METHOD /path` that
        the
    login may not send. `page` is the largest number of DAGs per page.
    """

    daemon_threads = True

    def __init__(self, *dag_ids: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.paused = dict.fromkeys(dag_ids, False)
        self.files: dict[str, str] = {}
        self.import_errors: list[dict[str, str]] = []
        self.login = ("ada", "s3cret-of-ada")
        self.tokens: set[str] = set()
        self.issued = 0
        self.token_refusal: tuple[int, Any] = (401, {"detail": "Token Expired"})
        self.forbidden: tuple[str, ...] = ()
        self.slow = self.broken = 0
        self.page = 100
        self.scripts: dict[str, RunScript] = {}
        self.runs: dict[tuple[str, str], tuple[dict[str, Any], int]] = {}
        #: The running tasks of all DAGs, as DAG and task, in the pool `spark_jobs`.
        self.pool_users: list[tuple[str, str]] = []
        self.requests: list[tuple[str, str, Any]] = []
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def connection(self, **fields: Any) -> str:
        """Returns the connection variable for this server."""
        name, password = self.login
        return json.dumps({"conn_type": "http", "host": self.url, "login": name, "password": password} | fields)

    def changes(self) -> list[tuple[str, str, Any]]:
        """Returns the requests that change state, without logins."""
        return [request for request in self.requests if request[0] != "GET" and request[1] != "/auth/token"]

    def invalidate_tokens(self) -> None:
        """Rejects all issued tokens, as after a restart with another secret."""
        self.tokens.clear()


@contextmanager
def airflow_server(*dag_ids: str) -> Iterator[AirflowServer]:
    """Runs a server with these DAGs within the block."""
    with AirflowServer(*dag_ids) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            yield server
        finally:
            server.closing.set()
            server.shutdown()
            serving.join()


class _Handler(BaseHTTPRequestHandler):
    server: AirflowServer

    def do_GET(self) -> None:
        self._handle("GET")

    def do_POST(self) -> None:
        self._handle("POST")

    def do_PATCH(self) -> None:
        self._handle("PATCH")

    def log_message(self, *_: object) -> None:
        pass

    def _handle(self, method: str) -> None:
        airflow, parts = self.server, urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        airflow.requests.append((method, self.path, body))
        if parts.path != "/auth/token":
            if airflow.slow > 0:
                airflow.slow -= 1
                airflow.closing.wait(10)
                return
            if airflow.broken > 0:
                airflow.broken -= 1
                self._answer(503, {"detail": "starting"})
                return
        self._answer(*self._respond(method, parts.path, parse_qs(parts.query), body))

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _respond(self, method: str, path: str, query: Mapping[str, list[str]], body: Any) -> tuple[int, Any]:
        airflow = self.server
        if path == "/auth/token":
            return self._token(body)
        if self.headers.get("Authorization", "").removeprefix("Bearer ") not in airflow.tokens:
            return airflow.token_refusal
        path = path.removeprefix("/api/v2")
        if f"{method} {path}".startswith(airflow.forbidden):
            return 403, {"detail": "Forbidden"}
        if (method, path, query.get("dag_id_pattern")) == ("PATCH", "/dags", ["%"]):
            airflow.paused = dict.fromkeys(airflow.paused, body["is_paused"])
            return 200, {"dags": [], "total_entries": len(airflow.paused)}
        if path == "/dags/~/dagRuns/~/taskInstances":
            users = airflow.pool_users if (query["pool"], query["state"]) == (["spark_jobs"], ["running"]) else []
            return 200, {"task_instances": [{"dag_id": dag, "task_id": task} for dag, task in users]}
        return self._handle_dag(method, path, body) if path.startswith("/dags/") else self._list(path, query)

    def _token(self, body: Any) -> tuple[int, Any]:
        airflow = self.server
        if (body["username"], body["password"]) != airflow.login:
            return 401, {"detail": "Invalid credentials"}
        airflow.issued += 1
        token = f"token-{airflow.issued}"
        airflow.tokens.add(token)
        return 201, {"access_token": token}

    def _list(self, path: str, query: Mapping[str, list[str]]) -> tuple[int, Any]:
        airflow = self.server
        if path == "/dags":
            first = int(query["offset"][0])
            names = sorted(airflow.paused)
            page = [self._dag(name) for name in names[first : first + airflow.page]]
            return 200, {"dags": page, "total_entries": len(names)}
        if path == "/importErrors":
            return 200, {"import_errors": airflow.import_errors, "total_entries": len(airflow.import_errors)}
        return 404, {"detail": f"no such path: {path}"}

    def _handle_dag(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        airflow, dag_id = self.server, unquote(path.split("/")[2])
        if dag_id not in airflow.paused:
            return 404, {"detail": f"Dag with id: {dag_id} was not found"}
        if re.fullmatch(r"/dags/[^/]+", path):
            if method == "PATCH":
                airflow.paused[dag_id] = body["is_paused"]
            return 200, self._dag(dag_id)
        if path.endswith("/dagRuns"):
            if method == "POST":
                return self._trigger(dag_id, body)
            runs = [self._run(*key, self._state(key)) for key in reversed(airflow.runs) if key[0] == dag_id]
            return 200, {"dag_runs": runs, "total_entries": len(runs)}
        match = re.fullmatch(_RUN + r"(?P<rest>/.*)?", path)
        if match is None:
            cleared = path.endswith("/clearTaskInstances")
            return (200, {"task_instances": []}) if cleared else (404, {"detail": f"no such path: {path}"})
        return self._handle_run((dag_id, unquote(match["run"])), match["rest"] or "")

    def _trigger(self, dag_id: str, body: Any) -> tuple[int, Any]:
        airflow = self.server
        key = (dag_id, body["dag_run_id"])
        if key in airflow.runs:
            return 409, {"detail": "DagRun already exists"}
        if not isinstance(body["conf"].get("dry_run", True), bool):
            return 400, {"detail": "Invalid input for param dry_run"}
        airflow.runs[key] = (body["conf"], 0)
        return 200, self._run(*key, "queued")

    def _state(self, key: tuple[str, str]) -> str:
        steps, looks = self.server.scripts.get(key[0], RunScript()).steps, self.server.runs[key][1]
        return steps[min(looks, len(steps) - 1)][0]

    def _handle_run(self, key: tuple[str, str], rest: str) -> tuple[int, Any]:
        airflow = self.server
        if key not in airflow.runs:
            return 404, {"detail": f"The DagRun with run_id: `{key[1]}` was not found"}
        script = airflow.scripts.get(key[0], RunScript())
        conf, looks = airflow.runs[key]
        state, tasks = script.steps[min(looks, len(script.steps) - 1)]
        if not rest:
            return 200, self._run(*key, state)
        if rest == "/taskInstances":
            airflow.runs[key] = (conf, looks + 1)
            return 200, {"task_instances": [_task(name, tasks[name]) for name in tasks]}
        _, _, task_id, _, name = rest.split("/")
        values = {RESULTS_KEY: script.results, ERROR_RECORD_KEY: script.errors}[name]
        if task_id not in values:
            return 404, {"detail": "not found"}
        return 200, {"key": name, "value": values[task_id]}

    def _dag(self, dag_id: str) -> dict[str, Any]:
        airflow = self.server
        return {
            "dag_id": dag_id,
            "is_paused": airflow.paused[dag_id],
            "tags": [{"name": "tests"}],
            "has_import_errors": False,
            "relative_fileloc": airflow.files.get(dag_id, "streams.py"),
        }

    def _run(self, dag_id: str, run_id: str, state: str) -> dict[str, Any]:
        conf = self.server.runs[dag_id, run_id][0]
        times = {"start_date": None, "end_date": None}
        return {"dag_id": dag_id, "dag_run_id": run_id, "state": state, "conf": conf, **times}


def _task(task_id: str, state: str | None) -> dict[str, Any]:
    at = "2026-01-01T00:00:00+00:00"
    times = {"start_date": at, "end_date": at, "duration": 3.0}
    return {"task_id": task_id, "state": state, "try_number": 1, "pool": "spark_jobs", **times}
