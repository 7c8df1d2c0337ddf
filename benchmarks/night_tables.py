"""Test tables of the benchmarks for nightly maintenance: a pipeline of small declared tables, and their rows."""

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
    """Returns the name of the pipeline's n-th table, counted from 0."""
    return f"events_{number:02d}"


def project(root: Path, *, tables: int, zorder_from: int | None = None) -> Catalog:
    """Creates a project below `root` with one pipeline of `tables` tables. Its lake is `root/lake`.

    Args:
        zorder_from: bytes from which a partition is Z-ordered; by default as for any pipeline.
    """
    columns = [{"name": "player", "path": "player", "type": "long"}, {"name": "item", "path": "item", "type": "string"}]
    names = [table_name(number) for number in range(tables)]
    declared = {
        "pipeline": PIPELINE,
        "description": "tables of one night",
        "event": {"name": {"path": "name"}, "time": {"path": "at", "unit": "epoch_seconds"}},
        "tables": [
            {"name": name, "when": {"name": name}, "columns": columns, "zorder_by": ["player"]} for name in names
        ],
        "maintenance": {} if zorder_from is None else {"zorder_from_bytes": zorder_from},
    }
    return declare_project(root, declared, landing=root / "landing")


def land(folder: Path, chance: np.random.Generator, dates: Sequence[dt.date], *, rows: int, files: int) -> None:
    """Writes `files` commits with one file per date, of `rows` rows each."""
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
