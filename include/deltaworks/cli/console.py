"""`deltaworks console`: the operator console in a separate process, for this machine only."""

from __future__ import annotations

import socket

import typer

from deltaworks.cli.context import apply_settings, catalog
from deltaworks.cli.output import print_line
from deltaworks.errors import ConfigError

_PORT_RANGE = (0, 65_535)
_LOOPBACK = "127.0.0.1"


def console(
    port: int = typer.Option(
        8990, min=_PORT_RANGE[0], max=_PORT_RANGE[1], help=("Port to listen on; 0 chooses a free one.")
    ),
    host: str = typer.Option(_LOOPBACK, help="Address to bind to; only the loopback address is allowed."),
) -> None:
    """Serve the operator console on this machine only, read-only, until it is ended."""
    apply_settings()
    catalog()  # report invalid specs here, not on the first page
    listener = open_listener(host, port)
    import uvicorn

    from deltaworks.console.standalone import SingleUser, build_standalone

    reader = SingleUser()
    print_line(f"The console is at http://{_LOOPBACK}:{listener.getsockname()[1]}/open/{reader.login_key}")
    print_line("The URL works once and only on this machine. Press Ctrl-C to stop.")
    config = uvicorn.Config(build_standalone(reader), log_level="warning", access_log=False)
    uvicorn.Server(config).run([listener])


def open_listener(host: str, port: int) -> socket.socket:
    """Opens a socket on the loopback address.

    Raises:
        ConfigError: CONSOLE_NOT_LOOPBACK, CONSOLE_PORT_TAKEN.
    """
    if host not in (_LOOPBACK, "localhost"):
        raise ConfigError(
            "CONSOLE_NOT_LOOPBACK",
            f"This console has no logins, so it does not bind to {host!r}.",
            hint=f"From another machine: `ssh -L {port}:{_LOOPBACK}:{port} THIS_MACHINE` and open the URL there. "
            "For several people it is in Airflow, below /deltaworks/, behind Airflow's logins.",
        )
    try:
        return socket.create_server((_LOOPBACK, port))
    except OSError as error:
        raise ConfigError("CONSOLE_PORT_TAKEN", f"{_LOOPBACK}:{port} cannot be bound: {error}.") from error
