"""An OpenLineage backend over HTTP that stores posted events, or never responds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.http_server import HttpAnswer, HttpRequest, http_server


class Backend:
    """What was posted, with the headers it came with."""

    def __init__(self) -> None:
        self.address = ""
        self.events: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answers = threading.Event()
        self.answers.set()

    def of(self, state: str) -> list[dict[str, Any]]:
        """The events of a state."""
        return [event for event in self.events if event["eventType"] == state]


@contextmanager
def running_backend(*, hangs: bool = False) -> Iterator[Backend]:
    """A backend on a free port of this machine."""

    backend = Backend()

    def answer(request: HttpRequest) -> HttpAnswer:
        backend.answers.wait()
        backend.headers.append(dict(request.headers))
        backend.events.append(request.json())
        return 201, b""

    if hangs:
        backend.answers.clear()
    with http_server(answer) as backend.address:
        try:
            yield backend
        finally:
            backend.answers.set()
