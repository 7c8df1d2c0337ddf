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
_OF_AIRFLOW = ("/api/", "/execution/", "/ui/")
_READING = frozenset({"GET", "HEAD", "OPTIONS"})


class OneWriter:
    """Middleware: at most one request to Airflow itself that may write is under way; those that read pass by."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._writing = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if not _may_write(scope):
            await self._app(scope, receive, send)
            return
        # Before its turn: who is slow to send what it writes, or never does, holds up nobody else.
        sent = await _whole(receive)
        async with self._writing:
            await self._app(scope, _replayed(sent, receive), send)


async def _whole(receive: Receive) -> list[Message]:
    """The messages of a request up to the end of its body, or until its sender is gone."""
    messages = [await receive()]
    while messages[-1]["type"] == "http.request" and messages[-1].get("more_body", False):
        messages.append(await receive())
    return messages


def _replayed(messages: list[Message], receive: Receive) -> Receive:
    """What gives these messages again, and then what still comes."""
    kept = iter(messages)

    async def replay() -> Message:
        for message in kept:
            return message
        return await receive()

    return replay


def _may_write(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] in _READING:
        return False
    # A server below a prefix is asked with it, or without it by a proxy that takes it away.
    return str(scope["path"]).removeprefix(scope.get("root_path", "")).startswith(_OF_AIRFLOW)


def root_middlewares(sql_alchemy_conn: str) -> list[dict[str, Any]]:
    """What the plugin registers for an Airflow with this database."""
    if not sql_alchemy_conn.startswith("sqlite"):
        return []
    return [{"middleware": OneWriter, "name": "One writer at a time"}]
