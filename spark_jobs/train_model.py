"""The job of the operation `train_model`: `python spark_jobs/train_model.py --pipeline NAME`."""

from __future__ import annotations

import sys

from deltaworks.operations.job import main

if __name__ == "__main__":
    sys.exit(main("train_model"))
