"""Runs many small object-store requests concurrently; they wait for the network and use little CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

#: A boto3 client keeps ten connections open by default; S3 answers thousands of requests per second.
_MAX_THREADS = 16
Item = TypeVar("Item")
Result = TypeVar("Result")


def map_concurrently(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Applies a function to all items in threads and returns the results in order.

    If calls fail, an exception is raised after all calls have ended.
    """
    with ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="requests") as pool:
        return list(pool.map(function, items))
