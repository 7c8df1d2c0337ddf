"""Storages for benchmarks: a folder on local disk, or a bucket on s3proxy. Every repetition writes to a new root."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.games_files import bench_folder
from deltaworks.specs.storage import StorageSpec
from sandbox.servers.object_store import lake_storage, running_object_store

_BUCKET = "bench"


@dataclass(frozen=True, slots=True)
class BenchmarkStorage:
    """A storage to write to. `served` is the local folder that contains its files, where tables are removed after a
    repetition.
    """

    name: str
    root: str
    served: Path

    def storage(self, folder: str) -> StorageSpec:
        """Returns the storage spec of a folder below the root."""
        root = f"{self.root}/{folder}"
        return lake_storage(root) if root.startswith("s3://") else StorageSpec(root=root)

    @contextmanager
    def new_root(self) -> Iterator[StorageSpec]:
        """Yields an empty root for one repetition and removes it afterwards."""
        folder = uuid.uuid4().hex
        (self.served / folder).mkdir(parents=True)
        try:
            yield self.storage(folder)
        finally:
            shutil.rmtree(self.served / folder, ignore_errors=True)


def local_disk() -> BenchmarkStorage:
    """Returns the storage in the benchmark folder."""
    folder = bench_folder() / "tables"
    return BenchmarkStorage("local", f"file://{folder}", folder)


@contextmanager
def object_store() -> Iterator[BenchmarkStorage]:
    """Runs s3proxy over the benchmark folder while the block runs, and sets its credentials in the environment."""
    directory = bench_folder() / "s3"
    with running_object_store(directory, buckets=[_BUCKET]) as address:
        before = {name: os.environ.get(name) for name in address.environment()}
        os.environ.update(address.environment())
        try:
            yield BenchmarkStorage("s3proxy", f"s3://{_BUCKET}", directory / _BUCKET)
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
