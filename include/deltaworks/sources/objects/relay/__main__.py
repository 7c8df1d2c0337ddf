"""Runs a relay: `python -m deltaworks.sources.objects.relay --relay landing`.

Ends itself after the relay's `max_run_seconds`, on SIGTERM, on a stop request, and when its launcher dies.
The exit code and, on an error, the last line of output say what the launcher should do next.
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

from deltaworks.control.guard import start_guard
from deltaworks.errors import DeltaworksError
from deltaworks.sources.objects.relay.queue import NotificationQueue
from deltaworks.sources.objects.relay.relay import Relay
from deltaworks.specs.base import resolve_text
from deltaworks.specs.project import load_catalog

#: A relay that fails within this time of its start has failed early.
_EARLY_SECONDS = 60.0
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
    error = _run(options.relay, stop_relay)
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
    return parser.parse_args(arguments)


def _run(name: str, stop_relay: list[Callable[[], None]]) -> DeltaworksError | None:
    try:
        catalog = load_catalog(tolerant=True)
        spec = catalog.relay(name)
        queue = None
        if spec.queue_url is not None:
            queue = NotificationQueue(
                catalog.environment.messaging,
                resolve_text(spec.queue_url),
                visibility_seconds=spec.visibility_seconds,
            )
        relay = Relay(spec, lake=catalog.environment.lake, queue=queue, landing=catalog.environment.landing)
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


def _say(line: str) -> None:
    """Standard output is for the lines a launcher reads."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
