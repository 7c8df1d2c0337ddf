"""Counts and checksums of the events in each Delta table, to verify that all implementations landed the same rows.

Tables are folders anywhere below an implementation's root, found by their names. They are read with delta-rs after each
repetition, outside the measured time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.storages import BenchmarkStorage
from deltaworks.specs.storage import StorageSpec

_MASK = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Content:
    """The number of rows, and the sum of the digests of their ids, which does not depend on the order of rows."""

    rows: int
    ids: int


def get_content(ids: Iterator[str | None]) -> Content:
    """Returns the content of a table with these ids. Repeated ids count each time."""
    rows = total = 0
    for value in ids:
        digest = hashlib.blake2b(repr(value).encode(), digest_size=8).digest()
        rows, total = rows + 1, (total + int.from_bytes(digest, "big")) & _MASK
    return Content(rows, total)


def read_contents(root: Path, tables: frozenset[str], *, column: str) -> dict[str, Content]:
    """Returns the content of each of `tables` that exists below `root`; ids are in `column`.

    Raises:
        RuntimeError: two folders have the name of the same table.
    """
    from deltalake import DeltaTable
    from pyarrow import fs

    contents: dict[str, Content] = {}
    for log in sorted(root.rglob("_delta_log")):
        name = log.parent.name
        if name not in tables:
            continue
        if name in contents:
            raise RuntimeError(f"{root} holds two tables {name}")
        files = fs.SubTreeFileSystem(str(log.parent), fs.LocalFileSystem())
        table = DeltaTable(str(log.parent)).to_pyarrow_table(columns=[column], filesystem=files)
        contents[name] = get_content(iter(table.column(column).to_pylist()))
    return contents


def differences(expected: Mapping[str, Content], contents: Mapping[str, Content]) -> list[str]:
    """Returns one line per table whose content differs from the expected content. A table without rows may be
    missing."""
    nothing = Content(0, 0)
    return [
        f"{name}: {contents.get(name, nothing)} instead of {expected.get(name, nothing)}"
        for name in sorted({*expected, *contents})
        if contents.get(name, nothing) != expected.get(name, nothing)
    ]


@dataclass(frozen=True, slots=True)
class CheckedStorage(BenchmarkStorage):
    """A storage that checks the tables of a repetition before they are removed."""

    check: Callable[[Path], None]

    @contextmanager
    def new_root(self) -> Iterator[StorageSpec]:
        """Yields an empty root for one repetition. Calls `check` with its folder if the repetition ends without an
        error.
        """
        with BenchmarkStorage.new_root(self) as storage:
            yield storage
            self.check(Path(storage.root.removeprefix("file://")))


def with_check(place: BenchmarkStorage, expected: Mapping[str, Content], *, column: str) -> CheckedStorage:
    """Returns `place`, which must be on local disk, with a check that the tables have the expected rows."""
    tables = frozenset(expected)

    def check(root: Path) -> None:
        if wrong := differences(expected, read_contents(root, tables, column=column)):
            raise RuntimeError(f"{len(wrong)} of {len(tables)} tables hold other rows than were sent: {wrong[:3]}")

    return CheckedStorage(place.name, place.root, place.served, check)
