"""Adapts Airflow to continuous tasks: an executor that does not wait for them, has no idle workers and shares imported
modules with tasks, and serialized writes with SQLite.

When a scheduler fails (for example because its database is unreachable) or is stopped, Airflow's LocalExecutor waits
for all running tasks, and streams run for hours. Until then nothing would be scheduled, and a process supervisor would
not restart the scheduler because it has not ended.

With SQLite, which has one writer, the API server handles one writing request at a time. Airflow commits its audit log
on the event loop's thread. Assume that a task's heartbeat has written and needs the loop to commit. A second request
that writes its audit log then blocks the loop, and the server stops answering until the lock times out after a minute.
Databases with row locks do not need this.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any, Final

from airflow.executors.local_executor import LocalExecutor as AirflowsExecutor

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Seconds that tasks get to end after a stop. In a stopped container every process gets the signal.
GRACE_VARIABLE: Final = "DELTAWORKS_EXECUTOR_GRACE_SECONDS"
_GRACE_SECONDS = 90.0


class LocalExecutor(AirflowsExecutor):
    """Airflow's LocalExecutor, but it ends with its scheduler: it ends running tasks after a grace period. It starts
    workers when tasks wait for one, where Airflow's starts as many as may run at a time. It imports what tasks use
    before it forks any: a second of processor time and 28 MB that no task needs again.

    The next scheduler restarts those tasks. The class has Airflow's class name, since Airflow warns for any other one
    that its simple login is not meant for executors on several machines.
    """

    #: Tasks that waited at the last check, and those of them that still wait.
    _waited = _still_waiting = 0

    def start(self) -> None:
        """Starts the executor. Forked tasks have the modules that are imported here."""
        import_task_modules()
        super().start()

    def _check_workers(self) -> None:
        """Ends the records of dead workers, and starts workers for tasks that waited at the last check too: an idle
        worker takes a task within milliseconds.
        """
        waiting = int(self._unread_messages.value)
        self._still_waiting, self._waited = min(waiting, self._waited), waiting
        super()._check_workers()  # type: ignore[no-untyped-call]

    def _spawn_workers_with_gc_freeze(self, spawn_number: int) -> None:
        super()._spawn_workers_with_gc_freeze(min(spawn_number, self._still_waiting))  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Ends idle workers immediately, and the others with their task or when the grace period is over."""
        until = time.monotonic() + float(os.environ.get(GRACE_VARIABLE, _GRACE_SECONDS))
        for _ in self.workers:
            self.activity_queue.put(None)
        for worker in self.workers.values():
            worker.join(max(0.0, until - time.monotonic()))
            if worker.is_alive():
                worker.kill()
        super().end()


def import_task_modules() -> None:
    """Imports what most tasks import: the DAG files' modules, the health check's and the client of the object store.

    Only modules that start no thread and open nothing, so that a fork may have them.
    """
    import boto3  # noqa: F401

    import deltaworks.airflow.alert_sending
    import deltaworks.airflow.continuous_dags
    import deltaworks.airflow.health_alerts
    import deltaworks.airflow.health_dags
    import deltaworks.airflow.maintenance_dags
    import deltaworks.airflow.operation_dags
    import deltaworks.airflow.privacy_dags
    import deltaworks.airflow.restarts
    import deltaworks.airflow.scheduled_dags
    import deltaworks.alerts.deadman
    import deltaworks.alerts.erasures
    import deltaworks.control.health.processes
    import deltaworks.control.health.report  # noqa: F401


#: Paths of Airflow itself. Plugin paths are excluded: their requests may call Airflow in turn, which would deadlock.
_AIRFLOW_PATHS = ("/api/", "/execution/", "/ui/")
_READ_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class SerializedWrites:
    """Middleware that allows one writing request to Airflow at a time; reading requests pass."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._write_lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request, after earlier writing requests if it writes."""
        if not _may_write(scope):
            await self._app(scope, receive, send)
            return
        # Read before acquiring the lock, so that a slow sender blocks no other request.
        sent = await _read_request(receive)
        async with self._write_lock:
            await self._app(scope, _replay_messages(sent, receive), send)


async def _read_request(receive: Receive) -> list[Message]:
    """Returns the messages of a request up to the end of its body or a disconnect."""
    messages = [await receive()]
    while messages[-1]["type"] == "http.request" and messages[-1].get("more_body", False):
        messages.append(await receive())
    return messages


def _replay_messages(messages: list[Message], receive: Receive) -> Receive:
    """Returns a receive function that first yields the buffered messages and then new ones."""
    buffered = iter(messages)

    async def replay() -> Message:
        for message in buffered:
            return message
        return await receive()

    return replay


def _may_write(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] in _READ_METHODS:
        return False
    # If the server has a path prefix, the path starts with it, unless a proxy removed it.
    return str(scope["path"]).removeprefix(scope.get("root_path", "")).startswith(_AIRFLOW_PATHS)


def middlewares_for_database(sql_alchemy_conn: str) -> list[dict[str, Any]]:
    """Returns the middlewares that the plugin registers for Airflow's database."""
    if not sql_alchemy_conn.startswith("sqlite"):
        return []
    return [{"middleware": SerializedWrites, "name": "Serialized writes"}]
