"""Entry point of long-running processes: relays, feeds, rules and remediations.

A process ends on signals, on stop requests and when its launcher dies. Its exit code, and on an error the last line of
output, tell the launcher what to do next. Launchers that restart it regardless of a stop request pass
`--wait-while-stopped`; launchers that see only the process watch the age of `--heartbeat-file`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StopFlag
from deltaworks.control.objects import open_objects
from deltaworks.control.parent_watchdog import start_parent_watchdog
from deltaworks.errors import DeltaworksError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog
from deltaworks.specs.storage import StorageSpec

#: A failure within this time after the start is delayed before the process exits.
_EARLY_SECONDS = 60.0
_STOPPED_POLL_SECONDS = 5.0


class Program(Protocol):
    """The work of a daemon process.

    The method `run` works until it is stopped and returns a dataclass of counts. The method `stop` makes it return soon
    and may be called from any thread.
    """

    def run(self) -> Any: ...

    def stop(self, *, immediately: bool = False) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonKind:
    """One kind of daemon process, such as a relay.

    Args:
        noun: display name, and the name of the option that selects the instance.
        module: module to run with `python -m`. help: help text of that option.
        control_folder: returns the control folder of an instance.
        build: creates the program, which must call the passed callback every few seconds while it is healthy.
        failure_condition: condition of unexpected errors.
        cli_name: returns the name that `deltaworks stop` and `start` take.
    """

    noun: str
    module: str
    help: str
    control_folder: Callable[[str], str]
    build: Callable[[Catalog, str, Callable[[], None]], Program]
    failure_condition: str
    cli_name: Callable[[str], str] = str

    @property
    def logger(self) -> logging.Logger:
        """The logger of this kind."""
        return logging.getLogger(f"deltaworks.{self.noun}")


def run_daemon(kind: DaemonKind, arguments: list[str] | None = None) -> int:
    """Runs one instance until it ends; returns the exit code."""
    options = _parse(kind, arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    terminated = threading.Event()
    stop_callbacks: list[Callable[[], None]] = []

    def on_signal(_number: int, _frame: object) -> None:
        terminated.set()
        for stop in stop_callbacks:
            stop()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    start_parent_watchdog()
    started = time.monotonic()
    error = _run(kind, options, terminated, stop_callbacks)
    if error is None:
        return 0
    if time.monotonic() - started < _EARLY_SECONDS:
        # A launcher that restarts without pause must not spin on a process that cannot run.
        terminated.wait(options.early_failure_wait_seconds)
    _print_line(error.as_line())
    return error.exit_code


def _parse(kind: DaemonKind, arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {kind.module}", description=__doc__)
    parser.add_argument(f"--{kind.noun}", dest="name", required=True, help=kind.help)
    parser.add_argument("--early-failure-wait-seconds", type=float, default=10.0)
    parser.add_argument("--heartbeat-file", type=Path, help="touched every few seconds; a supervisor can watch its age")
    parser.add_argument(
        "--wait-while-stopped", action="store_true", help="while a stop request is set, wait until it is withdrawn"
    )
    return parser.parse_args(arguments)


def _run(
    kind: DaemonKind, options: argparse.Namespace, terminated: threading.Event, stop_callbacks: list[Callable[[], None]]
) -> DeltaworksError | None:
    name, touch_heartbeat = (
        options.name,
        options.heartbeat_file.touch if options.heartbeat_file is not None else lambda: None,
    )
    label = f"{kind.noun.capitalize()} {name}"
    try:
        catalog = load_catalog(skip_invalid=True)
        # Built before waiting, so that an invalid spec is reported as an error.
        program = kind.build(catalog, name, touch_heartbeat)
        if options.wait_while_stopped:
            _wait_while_stopped(kind, catalog.environment.lake, name, terminated, touch_heartbeat)
        if terminated.is_set():
            return None
        stop_callbacks.append(lambda: program.stop(immediately=True))
        kind.logger.info("%s starts", label)
        counts = program.run()
    except DeltaworksError as error:
        kind.logger.error("%s failed: %s", label, error)
        return error
    except Exception as error:
        kind.logger.exception("%s failed", label)
        return DeltaworksError(
            kind.failure_condition,
            f"{type(error).__name__}: {error}",
            hint="Open the log of this process: its traceback has the place in the code.",
            retryable=True,
        )
    record = {field.name: getattr(counts, field.name) for field in dataclasses.fields(counts)}
    _print_line(f"DELTAWORKS_{kind.noun.upper()} {json.dumps(record)}")
    return None


def _wait_while_stopped(
    kind: DaemonKind, lake: StorageSpec, name: str, terminated: threading.Event, touch_heartbeat: Callable[[], None]
) -> None:
    """Waits until no stop request is set. Returns immediately if the storage does not answer; the program
    reports that."""
    flag, is_waiting = StopFlag(open_objects(lake), paths.stop_request(kind.control_folder(name))), False
    while not terminated.is_set():
        try:
            request = flag.read()
        except Exception:
            return
        if request is None:
            return
        if not is_waiting:
            restart_command = request.restart_command(kind.cli_name(name))
            kind.logger.info("%s %s is stopped: %s. It waits for %s", kind.noun, name, request.reason, restart_command)
        is_waiting = True
        touch_heartbeat()
        terminated.wait(_STOPPED_POLL_SECONDS)


def _print_line(line: str) -> None:
    """Prints a line that the launcher reads from standard output."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
