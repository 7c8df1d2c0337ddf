"""Leaves old files in a table's folder, as a writer that crashed days ago would, so that a VACUUM has files to delete.

A table of the demo is minutes old. Its creation time is set back by a commit of its own, and the times of the files on
the lake server's disk too. Nothing may write to the table meanwhile.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from deltaworks.control.home import PipelineHome
from deltaworks.control.provenance import user_metadata
from deltaworks.maintenance.deletion_limits import first_night_reason
from deltaworks.maintenance.layout import optimized_tables
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import state_at
from deltaworks.tables.log_writer import commit_info, write_commit
from sandbox.servers.landing import LAKE_BUCKET

_CREATED_HOURS = 20 * 24
AGED_HOURS = 200
_FILE_BYTES = 1_000
#: The run of the commit that this module writes.
RUN = "games__demo/age_table"


def leave_aged_files(catalog: Catalog, pipeline: str, table: str, *, lake_folder: Path, files: int) -> list[Path]:
    """Leaves files of `AGED_HOURS` in a table's folder and returns their paths on disk.

    The first night of a pipeline is decided before, as that of a new lake, whose nights delete.
    """
    storage = catalog.environment.lake
    lake, home = Lake(storage), PipelineHome.open(storage, pipeline)
    first_night_reason(lake, home, list(optimized_tables(catalog.pipeline(pipeline))), alert=False)
    key = home.table(table)
    _set_back_creation(lake, home, key)
    root = lake_folder / LAKE_BUCKET / key
    folder = next(path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith("_"))
    then = time.time() - AGED_HOURS * 3600
    aged = [folder / f"part-{number:05d}-crashed.zstd.parquet" for number in range(files)]
    for path in aged:
        home.objects.put(f"{key}/{path.relative_to(root)}", b"x" * _FILE_BYTES)
        os.utime(path, (then, then))
    return aged


def _set_back_creation(lake: Lake, home: PipelineHome, key: str) -> None:
    """Commits the table's metadata with an older creation time."""
    opened = lake.open(key)
    assert opened is not None
    metadata = state_at(lake, home.objects, key, opened.version()).metadata
    created_ms = int((time.time() - _CREATED_HOURS * 3600) * 1000)
    info = commit_info(
        "SET TBLPROPERTIES",
        user_metadata=user_metadata(pipeline=home.pipeline, batch=opened.version(), operation="age_table", run=RUN),
        at_ms=int(time.time() * 1000),
        read_version=opened.version(),
        changes_rows=False,
    )
    written = write_commit(
        home.objects, key, opened.version() + 1, [info, {"metaData": {**metadata, "createdTime": created_ms}}]
    )
    assert written, f"another writer committed to {key}"
