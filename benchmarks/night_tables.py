"""The tables of the benchmarks of a night: a pipeline of small declared tables, and rows of theirs."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from deltaworks.specs.catalog import Catalog

PIPELINE = "bench"


def table_name(number: int) -> str:
    """The name of a table of the pipeline, counted from 0."""
    return f"events_{number:02d}"


def project(root: Path, *, tables: int) -> Catalog:
    """A project below `root` whose one pipeline has that many tables, its lake in `root/lake`."""
    from deltaworks.specs.project import load_catalog

    columns = [{"name": "player", "path": "player", "type": "long"}, {"name": "item", "path": "item", "type": "string"}]
    declared: dict[str, dict[str, Any]] = {
        "relays/landing.yaml": {"relay": "landing", "buckets": ["landing"], "listing": {}},
        f"pipelines/{PIPELINE}/pipeline.yaml": {
            "pipeline": PIPELINE,
            "description": "tables of one night",
            "owner": "benchmarks",
            "source": {"kind": "cloud_files", "relay": "landing", "bucket": "landing"},
            "event": {"name": {"path": "name"}, "time": {"path": "at", "unit": "epoch_seconds"}},
            "tables": [
                {
                    "name": table_name(number),
                    "when": {"name": table_name(number)},
                    "columns": columns,
                    "zorder_by": ["player"],
                }
                for number in range(tables)
            ],
        },
        "environments/local.yaml": {
            "environment": "local",
            "lake": {"root": f"file://{root}/lake"},
            "landing": {"root": f"file://{root}/landing"},
            "messaging": {},
        },
    }
    for path, content in declared.items():
        (root / "include" / path).parent.mkdir(parents=True, exist_ok=True)
        # JSON is YAML too.
        (root / "include" / path).write_text(json.dumps(content))
    return load_catalog("local", root=root)


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
