"""`deltaworks console`: the operator console in a process of its own, for this machine alone."""

from __future__ import annotations

import typer

from deltaworks.cli.context import catalog, use_settings
from deltaworks.cli.output import line

_PORTS = (1, 65_535)


def console(
    port: int = typer.Option(8990, min=_PORTS[0], max=_PORTS[1], help="The port on the loopback address."),
) -> None:
    """Serve the operator console on this machine alone, read-only, until it is ended."""
    use_settings()
    catalog()  # what is declared wrongly is told here, not on the first page
    import uvicorn

    from deltaworks.console.alone import HOST, OneReader, build_alone

    reader = OneReader()
    line(f"The console is at http://{HOST}:{port}/open/{reader.key}")
    line("The address works once and for this machine alone. Ctrl-C ends it.")
    uvicorn.run(build_alone(reader), host=HOST, port=port, log_level="warning", access_log=False)
