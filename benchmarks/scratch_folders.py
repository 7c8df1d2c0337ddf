"""Temporary folders for benchmarks: a lake that is created once, and a copy of it for each repetition. All are
removed."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """Creates an empty folder for a benchmark and removes it when the block ends.

    Also removes the remains of an earlier run that was killed.
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
    """Copies a folder, preserving modification times, and removes the copy when the block ends."""
    folder = template.with_name(f"{template.name}-{uuid.uuid4().hex[:8]}")
    try:
        shutil.copytree(template, folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
