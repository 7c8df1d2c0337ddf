"""Runs the process that judges rules: `python -m deltaworks.judging`.

Ends itself after its time, on SIGTERM, on a stop request, and when its launcher dies. The exit code and, on an error,
the last line of output say what the launcher should do next.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys

from deltaworks.control.guard import start_guard
from deltaworks.errors import DeltaworksError
from deltaworks.judging.process import MAX_RUN_SECONDS, JudgingProcess

_LOGGER = logging.getLogger("deltaworks.judging")


def main(arguments: list[str] | None = None) -> int:
    """Run it to its end; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deltaworks.judging", description=__doc__)
    parser.add_argument("--max-run-seconds", type=float, default=MAX_RUN_SECONDS)
    parser.add_argument("--look-seconds", type=float, default=10.0)
    parser.add_argument("--lease-seconds", type=float, default=30.0)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    process = JudgingProcess(
        max_run_seconds=options.max_run_seconds,
        look_seconds=options.look_seconds,
        lease_seconds=options.lease_seconds,
        lease_wait_seconds=options.lease_seconds * 1.5,
    )
    signal.signal(signal.SIGTERM, lambda *_: process.stop())
    signal.signal(signal.SIGINT, lambda *_: process.stop())
    start_guard()
    error = _run(process)
    if error is not None:
        _say(error.as_line())
        return error.exit_code
    _say("DELTAWORKS_RULES " + json.dumps({"looks": process.looks, "judged": process.judged}))
    return 0


def _run(process: JudgingProcess) -> DeltaworksError | None:
    try:
        process.run()
    except DeltaworksError as error:
        _LOGGER.error("Judging failed: %s", error)
        return error
    except Exception as error:
        _LOGGER.exception("Judging failed")
        return DeltaworksError(
            "RULES_FAILED",
            f"{type(error).__name__}: {error}",
            hint="See the traceback in the log above this line.",
            retryable=True,
        )
    return None


def _say(line: str) -> None:
    """Standard output is for the lines a launcher reads."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
