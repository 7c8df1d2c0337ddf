"""The process of the SQL server. A lease allows only one per lake; needs no JVM.

Declarations and users are read again when their files change. A server that a person starts for themselves holds no
lease and writes nothing to the lake.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from pyarrow import ArrowException

from deltaworks.control import paths
from deltaworks.control.leased_process import LeasedProcess
from deltaworks.control.objects import open_objects
from deltaworks.errors import ConfigError, DeltaworksError
from deltaworks.specs.base import resolve_text
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog
from deltaworks.specs.project_folder import declaration_state
from deltaworks.specs.sql_server import (
    ALL_PIPELINES,
    SqlLimitsSpec,
    SqlListenSpec,
    SqlRoleSpec,
    SqlServerSpec,
)
from deltaworks.sql_server.query_engine import QueryEngine
from deltaworks.sql_server.query_log import QueryLog
from deltaworks.sql_server.server import SqlServer
from deltaworks.sql_server.users import Authenticator, OneUser, User, UserFile, hash_password

_LOGGER = logging.getLogger(__name__)
LEASE_SECONDS = 30.0
CHECK_INTERVAL_SECONDS = 5.0
MAX_RUN_SECONDS = 86_400.0
STALL_SECONDS = 120.0
SHUTDOWN_SECONDS = 10.0
#: The role of the only user of a server that a person starts for themselves.
_OWN_ROLE = "owner"


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """Counts of a run: finished queries, and queries that the log dropped."""

    queries: int = 0
    dropped_from_log: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenServer:
    """A listening server with its parts."""

    server: SqlServer
    engine: QueryEngine
    users: UserFile | OneUser
    log: QueryLog | None
    url: str

    def close(self) -> ServerCounts:
        """Cancels running queries, ends the service, and writes the last rows of the log."""
        self.engine.close()
        # A client that does not read its rows holds its request, and with it the end of the service.
        ending = threading.Thread(target=self.server.shutdown, name="end-service", daemon=True)
        ending.start()
        ending.join(SHUTDOWN_SECONDS)
        if self.log is not None:
            self.log.close()
        return ServerCounts(self.engine.finished, 0 if self.log is None else self.log.dropped)


def open_server(catalog: Catalog, spec: SqlServerSpec) -> OpenServer:
    """Opens the declared server, which listens from now on.

    Raises:
        ConfigError: SQL_USERS_INVALID, SQL_SERVER_CERTIFICATE_INVALID, SQL_SERVER_ADDRESS_UNAVAILABLE.
    """
    users = UserFile(Path(resolve_text(spec.users)), spec.roles)
    log = QueryLog(catalog.environment.lake, keep_days=spec.log_days)
    try:
        return _open(catalog, spec.listen, users, spec.roles, spec.limits, fresh_seconds=spec.fresh_seconds, log=log)
    except BaseException:
        log.close()
        raise


def open_own_server(catalog: Catalog, listen: SqlListenSpec) -> tuple[OpenServer, str]:
    """Opens a server for the person who starts it, with a user of the same rights. Returns it with a random password.

    It reads the lake and writes nothing: no lease, no heartbeat, no log.

    Raises:
        ConfigError: as `open_server` does.
    """
    password = secrets.token_urlsafe(12)
    roles = {_OWN_ROLE: SqlRoleSpec(pipelines=(ALL_PIPELINES,), personal=True)}
    users = OneUser(User("deltaworks", hash_password(password), (_OWN_ROLE,)))
    limits = SqlLimitsSpec.defaults()
    fresh = SqlServerSpec.model_fields["fresh_seconds"].default
    return _open(catalog, listen, users, roles, limits, fresh_seconds=fresh, log=None), password


def _open(
    catalog: Catalog,
    listen: SqlListenSpec,
    users: UserFile | OneUser,
    roles: dict[str, SqlRoleSpec],
    limits: SqlLimitsSpec,
    *,
    fresh_seconds: float,
    log: QueryLog | None,
) -> OpenServer:
    certificates = _certificates(listen)
    engine = QueryEngine(catalog, limits, fresh_seconds=fresh_seconds, log=log)
    scheme = "grpc" if certificates is None else "grpc+tls"
    host = f"[{listen.host}]" if ":" in listen.host else listen.host
    try:
        server = SqlServer(
            f"{scheme}://{host}:{listen.port}",
            engine=engine,
            authenticator=Authenticator(users),
            roles=roles,
            catalog=catalog,
            certificates=certificates,
        )
    except (ArrowException, OSError) as error:
        engine.close()
        raise ConfigError(
            "SQL_SERVER_ADDRESS_UNAVAILABLE",
            f"The server cannot listen on {listen.host}:{listen.port}: {' '.join(str(error).split())[:300]}",
        ) from error
    return OpenServer(server=server, engine=engine, users=users, log=log, url=f"{scheme}://{host}:{server.port}")


def _certificates(listen: SqlListenSpec) -> list[tuple[bytes, bytes]] | None:
    if listen.tls is None:
        return None
    files = [Path(resolve_text(listen.tls.certificate)), Path(resolve_text(listen.tls.key))]
    try:
        certificate, key = (file.read_bytes() for file in files)
    except OSError as error:
        raise ConfigError("SQL_SERVER_CERTIFICATE_INVALID", f"A file of tls cannot be read: {error}") from error
    for file, data, label in zip(files, (certificate, key), (b"CERTIFICATE", b"PRIVATE KEY"), strict=True):
        if b"-----BEGIN " not in data or label not in data:
            raise ConfigError("SQL_SERVER_CERTIFICATE_INVALID", f"{file} is no PEM file with a {label.decode()}.")
    return [(certificate, key)]


class SqlServerProcess:
    """One run of the declared SQL server. `run` returns at its time limit or when a stop is requested.

    Args:
        on_tick: called every few seconds, so that a stall is detected.

    Raises:
        ConfigError: SQL_SERVER_NOT_DECLARED.
    """

    def __init__(self, catalog: Catalog, *, on_tick: Callable[[], None] = lambda: None) -> None:
        spec = catalog.environment.sql_server
        if spec is None:
            raise ConfigError(
                "SQL_SERVER_NOT_DECLARED",
                f"The environment {catalog.environment.environment} declares no sql_server.",
            )
        self._catalog, self._spec, self._on_tick = catalog, spec, on_tick
        self._leased_process = LeasedProcess(
            open_objects(catalog.environment.lake),
            paths.sql_server_control(),
            name=paths.SQL_SERVER_PROCESS,
            ttl_seconds=LEASE_SECONDS,
            max_run_seconds=MAX_RUN_SECONDS,
            trigger_seconds=CHECK_INTERVAL_SECONDS,
            stall_seconds=STALL_SECONDS,
        )
        self.url = ""

    def stop(self, *, immediately: bool = False) -> None:
        """Requests a stop, which cancels running queries. Callable from a signal handler."""
        self._leased_process.stop()

    def run(self) -> ServerCounts:
        """Serves until the run ends.

        Raises:
            ConfigError: as `open_server` does.
            ConcurrencyError: LEASE_HELD, another process serves.
            FencedError: LEASE_LOST, a successor has taken over.
        """
        with self._leased_process.hold_lease(on_tick=self._on_tick):
            opened = open_server(self._catalog, self._spec)
            self.url = opened.url
            _LOGGER.info("Serving SQL at %s", opened.url)
            try:
                self._serve(opened)
            finally:
                counts = opened.close()
        return counts

    def _serve(self, opened: OpenServer) -> None:
        # The declarations may have changed while the server was opened.
        loaded = None
        while not self._leased_process.should_stop:
            state = declaration_state(self._catalog.root)
            try:
                opened.users.reload()
                if state != loaded:
                    loaded = state
                    # Pipelines only: address, roles and limits are those of the start.
                    catalog = load_catalog(skip_invalid=True)
                    self._catalog = replace(catalog, environment=self._catalog.environment)
                    opened.server.reload(self._catalog)
            except DeltaworksError as error:
                _LOGGER.warning("Changed files are ignored until they are mended: %s", error)
            heartbeat: dict[str, Any] = {"state": "running" if opened.engine.running else "idle"}
            self._leased_process.heartbeat.update(**heartbeat)
            self._leased_process.pause(CHECK_INTERVAL_SECONDS)


def serve_own(catalog: Catalog, listen: SqlListenSpec, *, announce: Callable[[str, str], None]) -> None:
    """Serves for the person who starts it, until the process is interrupted.

    Args:
        announce: called with the server's URL and the password of its user `deltaworks`.
    """
    opened, password = open_own_server(catalog, listen)
    try:
        announce(opened.url, password)
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        pass
    finally:
        opened.close()


def end_process(exit_code: int) -> NoReturn:
    """Ends the process of a closed server at once.

    A client that does not read its rows holds a thread of the server, and with it a regular end of the process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
