"""A process without end: started by name, ended by signals, stop requests and the death of its launcher.

`main_of` is the program of a relay, of a pipeline's feeds, of a remediation. Its exit code and, on an error, the last
line of output say what the launcher should do next. A launcher that starts it again at once, whatever a stop request
says, gives it `--wait-while-stopped`; one that sees nothing but its process watches the age of `--heartbeat-file`.
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
from deltaworks.control.health.stop import StopFlag
from deltaworks.control.objects import open_objects
from deltaworks.control.parent_watchdog import start_parent_watchdog
from deltaworks.errors import DeltaworksError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog
from deltaworks.specs.storage import StorageSpec

#: One that fails within this time of its start has failed early.
_EARLY_SECONDS = 60.0
_STOPPED_POLL_SECONDS = 5.0


class Program(Protocol):
    """What runs: `run` returns a dataclass of counts when it has ended, and `stop` has it end soon, from any thread."""

    def run(self) -> Any: ...

    def stop(self, *, immediately: bool = False) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonKind:
    """One kind of process.

    Args:
        word: what it is called, and the option that takes its name.
        module: what `python -m` runs. described: the help of that option.
        control: its control folder, by name.
        open: makes the program; the function it gets is called every few seconds while the program is well.
        failed: the condition of a failure that nobody foresaw.
        argument: what `deltaworks stop` and `start` call it.
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
        """Where it says what it does."""
        return logging.getLogger(f"deltaworks.{self.noun}")


def run_daemon(kind: DaemonKind, arguments: list[str] | None = None) -> int:
    """Run one to its end; returns the exit code."""
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
        # Whatever starts it without pause must not spin on one that cannot run.
        terminated.wait(options.early_failure_wait_seconds)
    _print_line(error.as_line())
    return error.exit_code


def _parse(kind: DaemonKind, arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {kind.module}", description=__doc__)
    parser.add_argument(f"--{kind.noun}", dest="name", required=True, help=kind.help)
    parser.add_argument("--early-failure-wait-seconds", type=float, default=10.0)
    parser.add_argument(
        "--heartbeat-file", type=Path, help="touched every few seconds, for whoever watches this process"
    )
    parser.add_argument(
        "--wait-while-stopped", action="store_true", help="while a stop holds, wait for its end before starting"
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
        # Before it waits: what is declared wrongly is an error, and not something that is stopped.
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
            hint="See the traceback in the log above this line.",
            retryable=True,
        )
    record = {field.name: getattr(counts, field.name) for field in dataclasses.fields(counts)}
    _print_line(f"DELTAWORKS_{kind.noun.upper()} {json.dumps(record)}")
    return None


def _wait_while_stopped(
    kind: DaemonKind, lake: StorageSpec, name: str, terminated: threading.Event, touch_heartbeat: Callable[[], None]
) -> None:
    """Wait until no stop holds. A lake that does not answer is the program's to report."""
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
    """Standard output is for the lines a launcher reads."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
