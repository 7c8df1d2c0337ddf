"""Chooses the ports of the embedded stack: configured ones, or free ones that are kept for later starts."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Mapping

import psutil

from deltaworks.errors import ConfigError

COMPONENTS = ("moto", "s3proxy", "airflow", "kafka", "kafka_controller", "collector", "collector_metrics")
HOST = "127.0.0.1"
# Below the range of outgoing connections, which could use a port while the stack is stopped.
_CHOICE = range(20000, 30000)
_PORT_LIMIT = 65536


def port_variable(component: str) -> str:
    """Returns the name of the environment variable that configures a component's port."""
    return f"DELTAWORKS_PORT_{component.upper()}"


def choose_ports(previous: Mapping[str, int], *, environ: Mapping[str, str] | None = None) -> dict[str, int]:
    """Returns a port for each component: the configured one, else the previous one, else a free one.

    Call it only while the stack is stopped, because ports in use are rejected.

    Raises:
        ConfigError: PORT_IN_USE or PORT_INVALID, with the component, the port and the variable that configures it.
    """
    configured = _configured(os.environ if environ is None else environ)
    chosen = {name: configured.get(name, previous.get(name)) for name in COMPONENTS}
    fixed = {name: port for name, port in chosen.items() if port is not None}
    _reject_shared(fixed)
    for name, port in fixed.items():
        if not is_free(port):
            raise _in_use(name, port)
    used_ports = set(fixed.values())
    for name in COMPONENTS:
        if name not in fixed:
            fixed[name] = _free_port(used_ports)
            used_ports.add(fixed[name])
    return {name: fixed[name] for name in COMPONENTS}


def is_free(port: int) -> bool:
    """Returns whether no process listens on the port of the loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Ignores connections of the last run in state TIME_WAIT.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _configured(environ: Mapping[str, str]) -> dict[str, int]:
    ports = {}
    for name in COMPONENTS:
        text = environ.get(port_variable(name), "").strip()
        if not text:
            continue
        if not text.isdecimal() or not 0 < int(text) < _PORT_LIMIT:
            raise ConfigError(
                "PORT_INVALID",
                f"{port_variable(name)} is {text!r}, which is not a port.",
                hint="Give a number from 1 to 65535, or unset the variable for a free port.",
            )
        ports[name] = int(text)
    return ports


def _reject_shared(ports: Mapping[str, int]) -> None:
    owner: dict[int, str] = {}
    for name, port in ports.items():
        if port in owner:
            raise ConfigError(
                "PORT_INVALID",
                f"{owner[port]} and {name} would both listen on port {port}.",
                hint=f"Set {port_variable(name)} to another port.",
            )
        owner[port] = name


def _in_use(component: str, port: int) -> ConfigError:
    return ConfigError(
        "PORT_IN_USE",
        f"Port {port} of {component} is taken by {_listener(port)}.",
        hint=f"End that process, or choose another port with {port_variable(component)}=<port>.",
    )


def _listener(port: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr[1] == port and connection.status == psutil.CONN_LISTEN:
                if connection.pid is None:
                    break
                return f"process {connection.pid} ({psutil.Process(connection.pid).name()})"
    except psutil.Error:
        pass
    return "another process"


def _free_port(used_ports: set[int]) -> int:
    for port in random.sample(_CHOICE, k=200):
        if port not in used_ports and is_free(port):
            return port
    raise ConfigError(
        "PORT_IN_USE",
        f"No free port was found between {_CHOICE.start} and {_CHOICE.stop}.",
        hint=f"Configure ports with {', '.join(map(port_variable, COMPONENTS))}.",
    )
