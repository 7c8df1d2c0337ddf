"""Whether a broker serves is told by an answer of it, not by an open port."""

from __future__ import annotations

import socket

from sandbox.servers.kafka_broker import broker_answers, broker_serves
from sandbox.stack.ports import HOST


def test_a_port_that_accepts_and_never_answers_is_no_broker_that_serves() -> None:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()
        bootstrap = f"{HOST}:{listener.getsockname()[1]}"

        assert broker_answers(bootstrap)
        assert not broker_serves(bootstrap)


def test_a_closed_port_is_no_broker() -> None:
    assert not broker_serves(f"{HOST}:1")
