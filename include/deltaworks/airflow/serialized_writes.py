"""Serializes writing requests on an API server with SQLite.

Airflow commits its audit log on the event loop's thread, and SQLite has one writer. Assume that a task's heartbeat has
written and needs the loop to commit. A second request that writes its audit log then blocks the loop, and the server
stops answering until the lock times out after a minute. Pausing DAGs while tasks started took minutes. SQLite would
serialize the writes anyway; databases with row locks do not need this.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
