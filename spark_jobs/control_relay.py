"""The job of the operation `control_relay`: `python spark_jobs/control_relay.py --relay NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("control_relay"))
