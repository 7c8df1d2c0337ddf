"""What a side has left of the events in each Delta table: counts and checksums, by which sides are held equal.

The tables of a side lie in folders named after them, wherever below its root. Sides are read after each repetition,
outside of the measured time, with delta-rs.
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
    """Rows of a table, and the sum of the digests of their ids: equal for the same ids in any order."""

    rows: int
    ids: int


def get_content(ids: Iterator[str | None]) -> Content:
    """The content of a table with these ids; one that is repeated counts as often as it comes."""
    rows = total = 0
    for value in ids:
        digest = hashlib.blake2b(repr(value).encode(), digest_size=8).digest()
        rows, total = rows + 1, (total + int.from_bytes(digest, "big")) & _MASK
    return Content(rows, total)


def read_contents(root: Path, tables: frozenset[str], *, column: str) -> dict[str, Content]:
    """The content of every one of `tables` that is below `root`; the ids are in `column`.

    Raises:
        RuntimeError: a table is there twice.
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
    """A line for each table whose content is not the expected one; a table without rows may be missing."""
    nothing = Content(0, 0)
    return [
        f"{name}: {contents.get(name, nothing)} in place of {expected.get(name, nothing)}"
        for name in sorted({*expected, *contents})
        if contents.get(name, nothing) != expected.get(name, nothing)
    ]


@dataclass(frozen=True, slots=True)
class CheckedStorage(BenchmarkStorage):
    """A place that looks at what a repetition has left in its root before that is removed."""

    check: Callable[[Path], None]

    @contextmanager
    def new_root(self) -> Iterator[StorageSpec]:
        """As any place's; `check` is called with the folder of a repetition that ended without an error."""
        with BenchmarkStorage.new_root(self) as storage:
            yield storage
            self.check(Path(storage.root.removeprefix("file://")))


def with_check(place: BenchmarkStorage, expected: Mapping[str, Content], *, column: str) -> CheckedStorage:
    """`place` on a local disk, whose repetitions must leave the expected rows in these tables."""
    tables = frozenset(expected)

    def check(root: Path) -> None:
        if wrong := differences(expected, read_contents(root, tables, column=column)):
            raise RuntimeError(f"{len(wrong)} of {len(tables)} tables hold other rows than were sent: {wrong[:3]}")

    return CheckedStorage(place.name, place.root, place.served, check)
