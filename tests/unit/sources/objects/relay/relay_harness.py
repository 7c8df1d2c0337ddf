"""Runs a relay in a thread and inspects its results."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from deltaworks.sources.objects.file_event_log import FileEventLog
from deltaworks.sources.objects.relay.relay import Relay
from deltaworks.tables.lake import Lake
from tests.waiting import PATIENCE_SECONDS


class Killed(BaseException):
    """Stands for a process that ends without a word: nothing in the relay handles it."""


def keys(landing: Any) -> list[str]:
    found: list[str] = FileEventLog(Lake(landing.lake), "landing").read(0).column("key").to_pylist()
    return found


def drain(landing: Any) -> bool:
    return bool(landing.waiting() == (0, 0))


@contextlib.contextmanager
def running(relay: Relay) -> Iterator[Relay]:
    """The relay in a thread, ended gracefully; its failure is raised here."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            relay.run()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield relay
    finally:
        relay.stop()
        thread.join(timeout=PATIENCE_SECONDS)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def relay_of(landing: Any, **options: Any) -> Relay:
    queue = options.pop("queue", None) or landing.queue()
    opened = {"open_log": options.pop("open_log")} if "open_log" in options else {}
    wait = options.pop("lease_wait_seconds", PATIENCE_SECONDS)
    return Relay(landing.spec(**options), lake=landing.lake, queue=queue, lease_wait_seconds=wait, **opened)
