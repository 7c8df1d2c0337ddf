"""Folders that a benchmark works in: a lake made once, and a copy of it for each repetition. None is left behind."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """A folder of that name which is not there yet, beside those of other benchmarks; removed with the block.

    What a run that was killed left of it is removed first.
    """
    from benchmarks.games_files import bench_folder

    folder = bench_folder() / name
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def copy_template(template: Path) -> Iterator[Path]:
    """A copy of a folder with the ages of its files, beside it; removed with the block."""
    folder = template.with_name(f"{template.name}-{uuid.uuid4().hex[:8]}")
    try:
        shutil.copytree(template, folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
