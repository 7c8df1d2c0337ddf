"""The job of the operation `learn_input_rate`: `python spark_jobs/learn_input_rate.py --pipeline NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("learn_input_rate"))
