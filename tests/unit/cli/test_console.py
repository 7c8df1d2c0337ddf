"""`deltaworks console` binds only to this machine, and names alternatives."""

from __future__ import annotations

import socket

import pytest

from deltaworks.cli.services import open_listener
from deltaworks.errors import ConfigError


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "console.example.com", ""])
def test_only_the_loopback_address_is_bound(host: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_listener(host, 8990)

    assert refused.value.condition == "CONSOLE_NOT_LOOPBACK"
    assert "ssh -L 8990:127.0.0.1:8990" in refused.value.hint


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_loopback_address_is(host: str) -> None:
    with open_listener(host, 0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_a_used_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=str(port)) as refused:
            open_listener("127.0.0.1", port)

    assert refused.value.condition == "CONSOLE_PORT_TAKEN"
