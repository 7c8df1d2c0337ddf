"""A broker is healthy once it answers a request, not when its port is open."""

from __future__ import annotations

import socket

from sandbox.servers.kafka_broker import is_reachable, is_serving
from sandbox.stack.ports import HOST


def test_a_port_that_accepts_and_never_answers_is_no_broker_that_serves() -> None:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()
        bootstrap = f"{HOST}:{listener.getsockname()[1]}"

        assert is_reachable(bootstrap)
        assert not is_serving(bootstrap)


def test_a_closed_port_is_no_broker() -> None:
    assert not is_serving(f"{HOST}:1")
