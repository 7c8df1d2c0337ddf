"""An HTTP server with traffic weights and injectable faults."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.http_server import HttpAnswer, HttpRequest, http_server


@dataclass
class Director:
    """The weights, all calls that set them, and injected faults."""

    weights: dict[str, float]
    url: str = ""
    moves: list[dict[str, Any]] = field(default_factory=list)
    #: POSTs whose reply is lost; POSTs that fail with a status; GETs without a reply.
    lost_replies: int = 0
    refusals: list[int] = field(default_factory=list)
    silent_reads: int = 0
    #: Delay of a lost reply, longer than the client's timeout.
    reply_seconds: float = 1.0


@contextmanager
def running_director(**weights: float) -> Iterator[Director]:
    """Runs a server on a free local port."""
    director = Director(weights)

    def answer(request: HttpRequest) -> HttpAnswer:
        if request.method == "GET":
            if director.silent_reads > 0:
                director.silent_reads -= 1
                return 503, {}
            return 200, {"weights": director.weights}
        if director.refusals:
            return director.refusals.pop(0), {}
        director.weights = request.json()["weights"]
        director.moves.append({**request.json(), "key": request.headers["Idempotency-Key"]})
        if director.lost_replies > 0:
            director.lost_replies -= 1
            time.sleep(director.reply_seconds)
        return 200, {}

    with http_server(answer) as address:
        director.url = f"{address}/weights"
        yield director
