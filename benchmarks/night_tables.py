"""The tables of the benchmarks of a night: a pipeline of small declared tables, and rows of theirs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.project import declare_project

if TYPE_CHECKING:
    import numpy as np

    from deltaworks.specs.catalog import Catalog

PIPELINE = "bench"


def table_name(number: int) -> str:
    """The name of a table of the pipeline, counted from 0."""
    return f"events_{number:02d}"


def project(root: Path, *, tables: int) -> Catalog:
    """A project below `root` whose one pipeline has that many tables, its lake in `root/lake`."""
    columns = [{"name": "player", "path": "player", "type": "long"}, {"name": "item", "path": "item", "type": "string"}]
    names = [table_name(number) for number in range(tables)]
    declared = {
        "pipeline": PIPELINE,
        "description": "tables of one night",
        "event": {"name": {"path": "name"}, "time": {"path": "at", "unit": "epoch_seconds"}},
        "tables": [
            {"name": name, "when": {"name": name}, "columns": columns, "zorder_by": ["player"]} for name in names
        ],
    }
    return declare_project(root, declared, landing=root / "landing")


def land(folder: Path, chance: np.random.Generator, dates: Sequence[dt.date], *, rows: int, files: int) -> None:
    """So many files in each of these days, a commit a file, each of so many rows."""
    import numpy as np
    import pyarrow as pa
    from deltalake import write_deltalake

    days = np.repeat(np.array(dates, "datetime64[D]"), rows)
    for _ in range(files):
        table = pa.table(
            {
                "event_date": pa.array(days),
                "player": chance.integers(0, 1_000_000, len(days)),
                "item": pa.array(chance.integers(0, 1 << 60, len(days))).cast(pa.string()),
            }
        )
        write_deltalake(str(folder), table, mode="append", partition_by=["event_date"])
