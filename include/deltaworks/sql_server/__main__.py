"""Runs the declared SQL server: `python -m deltaworks.sql_server --sql_server sql_server`."""

from __future__ import annotations

from collections.abc import Callable

from deltaworks.control import paths
from deltaworks.control.daemon_main import DaemonKind, run_daemon
from deltaworks.specs.catalog import Catalog
from deltaworks.sql_server.process import SqlServerProcess, end_process


def open_sql_server(catalog: Catalog, _name: str, on_tick: Callable[[], None]) -> SqlServerProcess:
    """Returns the process of the declared SQL server.

    Raises:
        ConfigError: SQL_SERVER_NOT_DECLARED.
    """
    return SqlServerProcess(catalog, on_tick=on_tick)


SQL_SERVER = DaemonKind(
    noun="sql_server",
    module="deltaworks.sql_server",
    help=f"the only process: {paths.SQL_SERVER_PROCESS}",
    control_folder=lambda _name: paths.sql_server_control(),
    build=open_sql_server,
    failure_condition="SQL_SERVER_FAILED",
    cli_name=lambda _name: paths.SQL_SERVER_PROCESS,
)


def main(arguments: list[str] | None = None) -> int:
    """Runs the server until it ends; returns the exit code."""
    return run_daemon(SQL_SERVER, arguments)


if __name__ == "__main__":
    end_process(main())
