"""Many small requests to the object store at once: each waits for the network and needs hardly any CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

#: What a client keeps open by default is ten connections; a bucket answers thousands of requests a second.
_MAX_THREADS = 16
Item = TypeVar("Item")
Result = TypeVar("Result")


def map_concurrently(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """The answers for all items, in their order. What an `ask` raises is raised once all that were begun have ended."""
    with ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="requests") as pool:
        return list(pool.map(function, items))
