"""Decides when a query may run: at most so many at once, of one user and of all, in the order of arrival."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from deltaworks.errors import TransientError
from deltaworks.specs.sql_server import SqlLimitsSpec

#: How often a waiting query checks whether its client has gone.
_POLL_SECONDS = 0.25


class Admission:
    """The slots of running queries. Thread-safe.

    A query of a user with free slots passes waiting ones of users without.
    """

    def __init__(self, limits: SqlLimitsSpec) -> None:
        self._limits = limits
        self._changed = threading.Condition()
        self._running: Counter[str] = Counter()
        self._queue: list[tuple[str, object]] = []

    @property
    def running(self) -> int:
        """Number of running queries."""
        with self._changed:
            return self._running.total()

    def enter(self, user: str, *, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        """Waits for a slot and takes it; `leave` returns it.

        Raises:
            TransientError: SQL_SERVER_BUSY, there was no slot within the declared time, or too many queries wait.
        """
        ends, ticket = time.monotonic() + self._limits.wait_seconds, (user, object())
        with self._changed:
            if sum(name == user for name, _ in self._queue) >= self._limits.waiting_per_user + 1:
                raise self._busy(user, f"{self._limits.waiting_per_user} of your queries wait already")
            self._queue.append(ticket)
            try:
                while not self._is_next(ticket):
                    remaining = ends - time.monotonic()
                    if remaining <= 0 or is_cancelled():
                        raise self._busy(user, f"no slot was free for {self._limits.wait_seconds:g} s")
                    self._changed.wait(min(remaining, _POLL_SECONDS))
                self._running[user] += 1
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()

    def leave(self, user: str) -> None:
        """Returns a slot."""
        with self._changed:
            self._running[user] -= 1
            if not self._running[user]:
                del self._running[user]
            self._changed.notify_all()

    def _is_next(self, ticket: tuple[str, object]) -> bool:
        """Returns whether a slot is free and no earlier query may use it."""
        if self._running.total() >= self._limits.queries:
            return False
        for waiting in self._queue:
            if self._running[waiting[0]] < self._limits.queries_per_user:
                return waiting is ticket
        return False

    def _busy(self, user: str, reason: str) -> TransientError:
        limits = self._limits
        return TransientError(
            "SQL_SERVER_BUSY",
            f"{reason[:1].upper()}{reason[1:]}: {self._running[user]} of {limits.queries_per_user} queries of "
            f"{user} run, and {self._running.total()} of {limits.queries} of all users.",
        )
