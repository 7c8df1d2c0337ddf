"""An API server of Airflow on SQLite takes requests that write one after the other.

Airflow notes who did what by a commit on the event loop's own thread. SQLite has one writer: where a heartbeat of a
task has written and waits for that loop to commit, the loop waits for the heartbeat, and the server answers nobody
until the lock times out, a minute later. Pausing DAGs while tasks began took minutes so. Requests that write would wait
for each other in the database anyway, and databases that lock rows need none of this.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Where Airflow's own requests go. What plugins serve may ask Airflow in turn, and would wait for itself.
_AIRFLOW_PATHS = ("/api/", "/execution/", "/ui/")
_READ_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class SerializedWrites:
    """Middleware: at most one request to Airflow itself that may write is under way; those that read pass by."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._write_lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if not _may_write(scope):
            await self._app(scope, receive, send)
            return
        # Before its turn: who is slow to send what it writes, or never does, holds up nobody else.
        sent = await _read_request(receive)
        async with self._write_lock:
            await self._app(scope, _replay_messages(sent, receive), send)


async def _read_request(receive: Receive) -> list[Message]:
    """The messages of a request up to the end of its body, or until its sender is gone."""
    messages = [await receive()]
    while messages[-1]["type"] == "http.request" and messages[-1].get("more_body", False):
        messages.append(await receive())
    return messages


def _replay_messages(messages: list[Message], receive: Receive) -> Receive:
    """What gives these messages again, and then what still comes."""
    buffered = iter(messages)

    async def replay() -> Message:
        for message in buffered:
            return message
        return await receive()

    return replay


def _may_write(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] in _READ_METHODS:
        return False
    # A server below a prefix is asked with it, or without it by a proxy that takes it away.
    return str(scope["path"]).removeprefix(scope.get("root_path", "")).startswith(_AIRFLOW_PATHS)


def middlewares_for_database(sql_alchemy_conn: str) -> list[dict[str, Any]]:
    """What the plugin registers for an Airflow with this database."""
    if not sql_alchemy_conn.startswith("sqlite"):
        return []
    return [{"middleware": SerializedWrites, "name": "One writer at a time"}]
