"""Runs the sample reader once in a separate process and kills it at a given moment.

`python reader_entry.py ROOT MOMENT [apart]`. Moments: `never`, `before`, `during` and `after` the commit of its output.
`apart` disables the protection: the position is written to a file after the output is committed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from deltaworks.tables.changes import ChangePosition
from deltaworks.tables.spark_session import build_session
from deltaworks.testing import present
from tests.spark.mutations.tracked_lake import NAME, TrackedLake

JOB = Path(__file__).resolve().parents[3] / "spark_jobs" / "count_engagement_days.py"


def job() -> ModuleType:
    """Loads the sample from its folder."""
    spec = present(importlib.util.spec_from_file_location("count_engagement_days", JOB))
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _killed_at(moment: str) -> None:
    run = SparkSession.sql

    def sql(self: SparkSession, text: str, *arguments: Any, **options: Any) -> DataFrame:
        commits = text.startswith("MERGE")
        if commits and moment == "before":
            _die()
        if commits and moment == "during":
            threading.Timer(0.5, _die).start()
        done = run(self, text, *arguments, **options)
        if commits and moment in ("after", "during"):
            _die()
        return done

    SparkSession.sql = sql  # type: ignore[method-assign]


def main() -> None:
    root, moment, apart = Path(sys.argv[1]), sys.argv[2], sys.argv[3:] == ["apart"]
    sample, kept = job(), root / "position.txt"
    spark = build_session(TrackedLake(root, None).catalog.environment, app_name="reader", master="local[2]")
    followed = TrackedLake(root, spark)
    _killed_at(moment)
    if apart:
        sample.commit_position = lambda *_: contextlib.nullcontext()
        sample.last_committed_position = lambda *_: ChangePosition.parse(kept.read_text()) if kept.exists() else None
        position = str(followed.changes().position)
    sample.count_days(spark, followed.catalog, NAME)
    if apart:
        kept.write_text(position)


if __name__ == "__main__":
    main()
