"""A process that lands batch 1 and is killed at a point: `python killed_process.py FOLDER POINT`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.unit.engine.keyed.test_latest_threads import keyed_stage


def main() -> int:
    harness = keyed_stage(Path(sys.argv[1]))
    harness.epoch = 1

    def die(point: str) -> None:
        if point == sys.argv[2]:
            os.kill(os.getpid(), signal.SIGKILL)

    processor = harness.processor(fault=die)
    harness.land(processor, 1)
    processor.keyed.catch_up_all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
