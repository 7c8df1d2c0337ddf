"""Runs programs under supervisord: its configuration, its start, and control through its socket."""

from __future__ import annotations

import contextlib
import http.client
import shlex
import subprocess
import sys
import time
import xmlrpc.client
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psutil
from supervisor.xmlrpc import Faults, SupervisorTransport

from deltaworks.errors import DeltaworksError
from sandbox.stack.home import StackHome

_LOG_BYTES = "20MB"
_LOG_BACKUPS = 3
_CONNECTION_ERRORS = (OSError, http.client.HTTPException, xmlrpc.client.ProtocolError)


@dataclass(frozen=True, slots=True)
class Program:
    """A supervised program: its command, and the seconds after which it is killed when it is stopped."""

    name: str
    command: tuple[str, ...]
    stop_seconds: int = 10


@dataclass(frozen=True, slots=True)
class ProgramState:
    """The state of a program as reported by the supervisor. `started_at` is in epoch seconds."""

    name: str
    state: str
    pid: int | None
    started_at: float | None
    detail: str


def render_config(home: StackHome, programs: Sequence[Program]) -> str:
    """Returns supervisord's configuration. No program starts automatically; ended programs are restarted."""
    sections = [
        ("unix_http_server", {"file": str(home.supervisor_socket), "chmod": "0700"}),
        (
            "supervisord",
            {
                "logfile": str(home.logs / "supervisord.log"),
                "logfile_maxbytes": _LOG_BYTES,
                "logfile_backups": str(_LOG_BACKUPS),
                "pidfile": str(home.root / "supervisord.pid"),
                "childlogdir": str(home.logs),
                "directory": str(home.run),
                "strip_ansi": "true",
            },
        ),
        (
            "rpcinterface:supervisor",
            {"supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface"},
        ),
        *((f"program:{program.name}", _program_options(home, program)) for program in programs),
    ]
    return "\n".join(_section(name, options) for name, options in sections)


def _program_options(home: StackHome, program: Program) -> dict[str, str]:
    return {
        "command": shlex.join(program.command),
        "directory": str(home.run),
        # `up` starts each program after the programs it needs are healthy.
        "autostart": "false",
        "autorestart": "true",
        "startsecs": "3",
        # The delay grows by a second per retry, so a fault of about two minutes is tolerated.
        "startretries": "15",
        "stopwaitsecs": str(program.stop_seconds),
        "stopasgroup": "true",
        "killasgroup": "true",
        "redirect_stderr": "true",
        "stdout_logfile": str(home.logs / f"{program.name}.log"),
        "stdout_logfile_maxbytes": _LOG_BYTES,
        "stdout_logfile_backups": str(_LOG_BACKUPS),
    }


def _section(name: str, options: Mapping[str, str]) -> str:
    # The supervisor expands %(...)s in every value.
    lines = "".join(f"{key}={value.replace('%', '%%')}\n" for key, value in options.items())
    return f"[{name}]\n{lines}"


class Supervisor:
    """Controls the supervisor of one stack. Not thread-safe."""

    def __init__(self, home: StackHome) -> None:
        self._home = home

    @property
    def _rpc(self) -> Any:
        # A new connection per call, because a failed one never recovers.
        transport = SupervisorTransport(None, None, f"unix://{self._home.supervisor_socket}")
        return xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport).supervisor

    def pid(self) -> int | None:
        """Returns the supervisor's process id; None if it is not running."""
        try:
            return int(cast(int, self._rpc.getPID()))
        except _CONNECTION_ERRORS:
            return None

    def launch(self, programs: Sequence[Program], *, environment: Mapping[str, str]) -> None:
        """Writes the configuration and starts the supervisor as a daemon, without starting programs.

        Raises:
            DeltaworksError: SUPERVISOR_FAILED.
        """
        self._home.supervisor_socket.unlink(missing_ok=True)
        self._home.supervisor_config.write_text(render_config(self._home, programs))
        done = subprocess.run(
            [sys.executable, "-m", "supervisor.supervisord", "-c", str(self._home.supervisor_config)],
            env=dict(environment),
            cwd=self._home.run,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not wait_until(lambda: self.pid() is not None, seconds=15):
            raise DeltaworksError(
                "SUPERVISOR_FAILED",
                f"The process supervisor did not start: {(done.stderr or done.stdout).strip()}",
                hint=f"Read {self._home.logs / 'supervisord.log'}.",
            )

    def add(self, programs: Sequence[Program], names: Sequence[str]) -> None:
        """Adds programs to a running supervisor, without starting them. Others are not touched. Idempotent.

        Args:
            programs: all programs, for the configuration.
            names: the programs to add.
        """
        self._home.supervisor_config.write_text(render_config(self._home, programs))
        self._rpc.reloadConfig()
        for name in names:
            with _allowing_fault_codes(Faults.ALREADY_ADDED):
                self._rpc.addProcessGroup(name)

    def programs(self) -> dict[str, ProgramState]:
        """Returns all programs by name; empty if the supervisor is not running."""
        try:
            answer = cast(list[dict[str, Any]], self._rpc.getAllProcessInfo())
        except _CONNECTION_ERRORS:
            return {}
        return {item["name"]: _program_state(item) for item in answer}

    def start(self, name: str) -> None:
        """Starts a program unless it is running; does not wait until it is healthy."""
        with _allowing_fault_codes(Faults.ALREADY_STARTED):
            self._rpc.startProcess(name, False)

    def stop(self, names: Sequence[str], *, seconds: float) -> None:
        """Stops programs in parallel and waits for their end. The supervisor kills those that exceed their own
        limit."""
        for name in names:
            with _allowing_fault_codes(Faults.NOT_RUNNING, Faults.BAD_NAME):
                self._rpc.stopProcess(name, False)

        def ended() -> bool:
            programs = self.programs()
            return all(programs[name].pid is None for name in names if name in programs)

        wait_until(ended, seconds=seconds)

    def shutdown(self, *, seconds: float) -> None:
        """Ends the supervisor and all programs that still run."""
        pid = self.pid()
        if pid is None:
            return
        with contextlib.suppress(*_CONNECTION_ERRORS, xmlrpc.client.Fault):
            self._rpc.shutdown()
        wait_until(lambda: not psutil.pid_exists(pid), seconds=seconds)


@contextlib.contextmanager
def _allowing_fault_codes(*codes: int) -> Iterator[None]:
    try:
        yield
    except xmlrpc.client.Fault as fault:
        if fault.faultCode not in codes:
            message = f"The supervisor answered: {fault.faultString}."
            raise DeltaworksError("SUPERVISOR_REFUSED", message) from fault


def _program_state(info: Mapping[str, Any]) -> ProgramState:
    pid = int(info["pid"]) or None
    return ProgramState(
        name=info["name"],
        state=info["statename"],
        pid=pid,
        started_at=float(info["start"]) if pid else None,
        detail=info["spawnerr"] or info["description"],
    )


def last_lines(path: Path, count: int = 8) -> str:
    """Returns the last lines of a program's log, for messages."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-count:])
    except FileNotFoundError:
        return ""


def wait_until(condition: Callable[[], bool], *, seconds: float, poll_seconds: float = 0.25) -> bool:
    """Polls until the condition is true; returns False after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(poll_seconds)
    return True
