"""The stack's ports: kept, configured, or a clear message."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from deltaworks.errors import ConfigError
from sandbox.stack.ports import COMPONENTS, HOST, choose_ports


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_every_component_gets_a_port_of_its_own() -> None:
    ports = choose_ports({}, environ={})

    assert set(ports) == set(COMPONENTS)
    assert len(set(ports.values())) == len(COMPONENTS)


def test_ports_of_the_last_run_are_kept() -> None:
    first = choose_ports({}, environ={})

    assert choose_ports(first, environ={}) == first


def test_a_configured_port_outranks_the_kept_one() -> None:
    kept = choose_ports({}, environ={})
    wanted = choose_ports({}, environ={})["airflow"]

    ports = choose_ports(kept, environ={"DELTAWORKS_PORT_AIRFLOW": str(wanted)})

    assert ports == kept | {"airflow": wanted}


def test_a_kept_port_taken_by_somebody_else_is_refused_by_name(taken_port: int) -> None:
    kept = choose_ports({}, environ={}) | {"s3proxy": taken_port}

    with pytest.raises(ConfigError) as caught:
        choose_ports(kept, environ={})

    assert caught.value.condition == "PORT_IN_USE"
    assert str(taken_port) in caught.value.message
    assert "s3proxy" in caught.value.message
    assert "DELTAWORKS_PORT_S3PROXY" in caught.value.hint


def test_a_configured_port_taken_by_somebody_else_is_refused(taken_port: int) -> None:
    with pytest.raises(ConfigError, match="PORT_IN_USE"):
        choose_ports({}, environ={"DELTAWORKS_PORT_MOTO": str(taken_port)})


def test_a_port_whose_connections_only_wait_for_their_end_is_free() -> None:
    with socket.socket() as listener:
        # As every server sets it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, 0))
        listener.listen()
        port = listener.getsockname()[1]
        client = socket.create_connection((HOST, port))
        served, _ = listener.accept()
        # The side that closes first is the one that waits.
        served.close()
        client.close()

    assert choose_ports({"moto": port}, environ={})["moto"] == port


@pytest.mark.parametrize("text", ["http", "0", "65536", "-1"])
def test_what_is_not_a_port_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        choose_ports({}, environ={"DELTAWORKS_PORT_MOTO": text})

    assert caught.value.condition == "PORT_INVALID"
    assert "DELTAWORKS_PORT_MOTO" in caught.value.message


def test_two_components_cannot_share_a_configured_port() -> None:
    port = str(choose_ports({}, environ={})["moto"])

    with pytest.raises(ConfigError, match="PORT_INVALID"):
        choose_ports({}, environ={"DELTAWORKS_PORT_MOTO": port, "DELTAWORKS_PORT_AIRFLOW": port})
