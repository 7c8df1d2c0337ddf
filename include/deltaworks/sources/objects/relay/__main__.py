"""Runs a relay: `python -m deltaworks.sources.objects.relay --relay landing`.

Ends itself after the relay's `max_run_seconds`, on SIGTERM, on a stop request, and when its launcher dies.
The exit code and, on an error, the last line of output say what the launcher should do next.

A launcher that starts it again at once, whatever a stop request says, gives it `--wait-while-stopped`; one that sees
nothing but its process watches the age of `--beat-file`.
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
from pathlib import Path

from deltaworks.control import paths
from deltaworks.control.guard import start_guard
from deltaworks.control.health.stop import StopFlag
from deltaworks.control.objects import open_objects
from deltaworks.errors import DeltaworksError
from deltaworks.sources.objects.relay.queue import NotificationQueue
from deltaworks.sources.objects.relay.relay import Relay
from deltaworks.specs.base import resolve_text
from deltaworks.specs.project import load_catalog
from deltaworks.specs.storage import StorageSpec

#: A relay that fails within this time of its start has failed early.
_EARLY_SECONDS = 60.0
_STOPPED_POLL_SECONDS = 5.0
_LOGGER = logging.getLogger("deltaworks.relay")


def main(arguments: list[str] | None = None) -> int:
    """Run one relay to its end; returns the exit code."""
    options = _parse(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    terminated = threading.Event()
    stop_relay: list[Callable[[], None]] = []

    def on_signal(_number: int, _frame: object) -> None:
        terminated.set()
        for stop in stop_relay:
            stop()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    start_guard()
    started = time.monotonic()
    error = _run(options, terminated, stop_relay)
    if error is None:
        return 0
    if time.monotonic() - started < _EARLY_SECONDS:
        # Whatever starts relays without pause must not spin on one that cannot run.
        terminated.wait(options.early_failure_wait_seconds)
    _say(error.as_line())
    return error.exit_code


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deltaworks.sources.objects.relay", description=__doc__)
    parser.add_argument("--relay", required=True, help="a name under include/relays")
    parser.add_argument("--early-failure-wait-seconds", type=float, default=10.0)
    parser.add_argument("--beat-file", type=Path, help="touched every few seconds, for whoever watches this process")
    parser.add_argument(
        "--wait-while-stopped", action="store_true", help="while a stop holds, wait for its end before starting"
    )
    return parser.parse_args(arguments)


def _run(
    options: argparse.Namespace, terminated: threading.Event, stop_relay: list[Callable[[], None]]
) -> DeltaworksError | None:
    name, beat = options.relay, options.beat_file.touch if options.beat_file is not None else lambda: None
    try:
        catalog = load_catalog(tolerant=True)
        spec = catalog.relay(name)
        if options.wait_while_stopped:
            _wait_while_stopped(catalog.environment.lake, name, terminated, beat)
        if terminated.is_set():
            return None
        queue = None
        if spec.queue_url is not None:
            queue = NotificationQueue(
                catalog.environment.messaging,
                resolve_text(spec.queue_url),
                visibility_seconds=spec.visibility_seconds,
            )
        environment = catalog.environment
        relay = Relay(spec, lake=environment.lake, queue=queue, landing=environment.landing, on_turn=beat)
        stop_relay.append(lambda: relay.stop(at_once=True))
        _LOGGER.info("Relay %s starts", name)
        counts = relay.run()
    except DeltaworksError as error:
        _LOGGER.error("Relay %s failed: %s", name, error)
        return error
    except Exception as error:
        _LOGGER.exception("Relay %s failed", name)
        return DeltaworksError(
            "RELAY_FAILED",
            f"{type(error).__name__}: {error}",
            hint="See the traceback in the log above this line.",
            retryable=True,
        )
    _say(
        "DELTAWORKS_RELAY "
        + json.dumps({count.name: getattr(counts, count.name) for count in dataclasses.fields(counts)})
    )
    return None


def _wait_while_stopped(lake: StorageSpec, name: str, terminated: threading.Event, beat: Callable[[], None]) -> None:
    """Wait until no stop holds. A lake that does not answer is the relay's to report."""
    flag, waits = StopFlag(open_objects(lake), paths.stop_request(paths.relay_control(name))), False
    while not terminated.is_set():
        try:
            request = flag.read()
        except Exception:
            return
        if request is None:
            return
        if not waits:
            _LOGGER.info("Relay %s is stopped: %s. It waits for %s", name, request.reason, request.withdrawn_by(name))
        waits = True
        beat()
        terminated.wait(_STOPPED_POLL_SECONDS)


def _say(line: str) -> None:
    """Standard output is for the lines a launcher reads."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
