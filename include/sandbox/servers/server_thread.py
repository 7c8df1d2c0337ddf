"""Runs a TCP server of any protocol in a thread during a block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from sandbox.stack.ports import HOST

ServeConnection = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
_END_SECONDS = 10


@contextmanager
def run_server(serve: ServeConnection, *, name: str, max_line_bytes: int = 1 << 16) -> Iterator[int]:
    """Handles each connection with `serve` during the block; yields the port, a free one.

    One thread with this name serves all connections. Leaving the block closes open connections.

    Args:
        max_line_bytes: maximum number of bytes that `serve` can read up to a separator.
    """
    loop = asyncio.new_event_loop()
    listener = loop.run_until_complete(asyncio.start_server(serve, HOST, 0, limit=max_line_bytes))
    thread = threading.Thread(target=loop.run_forever, name=name, daemon=True)
    thread.start()
    try:
        yield int(listener.sockets[0].getsockname()[1])
    finally:
        loop.call_soon_threadsafe(listener.close)
        asyncio.run_coroutine_threadsafe(_end_tasks(), loop).result(_END_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end_tasks() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
