"""Schema versions: created if absent, read back, and safe for concurrent writers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from deltaworks.control.objects import LocalObjects
from deltaworks.errors import ConcurrencyError, ContractError
from deltaworks.events.inference.schema_versions import SchemaVersion, SchemaVersions
from deltaworks.specs.types import parse_type

FIRST = SchemaVersion(
    number=1,
    inferred_columns={"b": parse_type("struct<x:decimal(20,0)>"), "a": parse_type("long")},
    hints="a STRING, c.d DATE",
    added=("b struct<x:decimal(20,0)>",),
    conflicts=("b: 2 text",),
    sample={"objects": 1, "keys": ["k"]},
)


class Overtaken(LocalObjects):
    """A store where somebody else makes each of the first `times` versions just before we would."""

    def __init__(self, root: Path, times: int) -> None:
        super().__init__(root)
        self._left = times

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if self._left:
            self._left -= 1
            other = replace(FIRST, number=int(key[-15:-5]), inferred_columns={f"other{self._left}": parse_type("int")})
            super().put_if_absent(key, other.to_record().encode())
        return super().put_if_absent(key, data)


def test_a_version_is_read_as_it_was_written_and_in_the_order_of_its_columns(tmp_path: Path) -> None:
    versions = SchemaVersions(LocalObjects(tmp_path), "here")
    assert versions.latest() is None
    assert versions.update(lambda _: FIRST) == FIRST
    found = versions.latest()
    assert found == FIRST
    assert [(name, str(kind)) for name, kind in found.columns().items()] == [
        ("b", "struct<x:decimal(20,0)>"),
        ("a", "string"),
        ("c", "struct<d:date>"),
    ]


def test_a_writer_that_lost_the_race_builds_on_the_winners_version(tmp_path: Path) -> None:
    seen: list[SchemaVersion | None] = []

    def make(newest: SchemaVersion | None) -> SchemaVersion:
        seen.append(newest)
        found = {} if newest is None else newest.inferred_columns
        return replace(FIRST, inferred_columns={**found, "ours": parse_type("date")})

    made = SchemaVersions(Overtaken(tmp_path, times=2), "here").update(make)
    assert [each and each.number for each in seen] == [None, 1, 2]
    assert (made.number, list(made.inferred_columns)) == (3, ["other0", "ours"])


def test_concurrent_streams_agree_on_the_first_version(tmp_path: Path) -> None:
    ready = threading.Barrier(8)

    def begin(name: int) -> SchemaVersion:
        versions = SchemaVersions(LocalObjects(tmp_path), "here")
        ready.wait(10)
        mine = replace(FIRST, inferred_columns={f"c{name}": parse_type("int")}, hints="")
        return versions.update(lambda newest: mine if newest is None else None)

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(begin, range(8)))
    assert len({str(version) for version in made}) == 1
    assert len(list((tmp_path / "versions").iterdir())) == 1


def test_concurrently_added_columns_are_all_kept(tmp_path: Path) -> None:
    def add(name: int) -> None:
        column = {f"c{name}": parse_type("int")}
        SchemaVersions(LocalObjects(tmp_path), "here").update(
            lambda newest: replace(
                FIRST, inferred_columns={**({} if newest is None else newest.inferred_columns), **column}
            )
        )

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(add, range(6)))
    newest = SchemaVersions(LocalObjects(tmp_path), "here").latest()
    assert newest is not None
    assert (newest.number, sorted(newest.inferred_columns)) == (6, [f"c{name}" for name in range(6)])


def test_a_writer_that_always_loses_the_race_fails_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(ConcurrencyError, match=r"SCHEMA_CONTENDED.*separate schema location"):
        SchemaVersions(Overtaken(tmp_path, times=1000), "here").update(lambda _: FIRST)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": 2}'])
def test_an_invalid_version_raises_with_its_name(tmp_path: Path, data: bytes) -> None:
    LocalObjects(tmp_path).put("versions/0000000001.json", data)
    with pytest.raises(ContractError, match=r"SCHEMA_VERSION_UNREADABLE.*here/versions/0000000001.json"):
        SchemaVersions(LocalObjects(tmp_path), "here").latest()
