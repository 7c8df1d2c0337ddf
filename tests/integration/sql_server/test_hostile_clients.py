"""An honest client of the SQL server during hostile connections."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from pyarrow import flight

from tests.unit.sql_server.sql_harness import query, serving, sql_project

pytestmark = pytest.mark.integration
CONNECTIONS = 1_000


def test_an_honest_client_is_served_during_a_thousand_connections(tmp_path: Path) -> None:
    with serving(sql_project(tmp_path)) as server:
        idle = [socket.create_connection(("127.0.0.1", server.server.port), timeout=60) for _ in range(CONNECTIONS)]
        for number, connection in enumerate(idle):
            # A third each: silent, no HTTP/2, a preface without anything after it.
            connection.sendall((b"", b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")[number % 3])
        stopping, refused = threading.Event(), list[str]()

        def guess() -> None:
            while not stopping.is_set():
                client = flight.connect(server.url)
                try:
                    client.authenticate_basic_token("sam", "guess")
                except flight.FlightError as error:
                    refused.append(type(error).__name__)
                finally:
                    client.close()

        threads = [threading.Thread(target=guess) for _ in range(8)]
        # Logged in before the guesses begin: its name is slowed down then, its login is not.
        assert query(server, "SELECT count(*) AS n FROM shop.orders").to_pylist() == [{"n": 100}]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20):
                assert query(server, "SELECT count(*) AS n FROM shop.orders").to_pylist() == [{"n": 100}]
        finally:
            stopping.set()
            for thread in threads:
                thread.join(60)
            for connection in idle:
                connection.close()
        assert set(refused) == {"FlightUnauthenticatedError", "FlightUnavailableError"}
