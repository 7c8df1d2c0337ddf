"""A purge deletes every row with a searched token in any column, and no other row."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.control.provenance import user_metadata
from deltaworks.errors import ContractError
from deltaworks.privacy.erasure.purge_table import TablePurger, erasure_step
from deltaworks.privacy.erasure.token_search import TokenSearch
from deltaworks.tables import rewrite
from deltaworks.tables.files import WrittenFile, split_by_partition, write_file
from deltaworks.tables.lake import arrow_path
from deltaworks.tables.log import state_at
from deltaworks.testing import local_lake, present

KEY = paths.table("shop", "orders")
STEP = erasure_step("shop", "orders", 1)
SCHEMA = pa.schema(
    [
        ("event_date", pa.string()),
        ("id", pa.int64()),
        ("player", pa.string()),
        ("raw", pa.string()),
        ("friends", pa.list_(pa.string())),
        ("extras", pa.map_(pa.string(), pa.string())),
    ]
)


def token(name: str) -> str:
    """The token of somebody."""
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return "p1_" + base64.b32encode(digest).decode().rstrip("=").lower()


def row(number: int, person: str | None, place: str, day: int) -> dict[str, Any]:
    """A row that names a person in one of its columns, or nobody."""
    named = token(person) if person else None
    return {
        "event_date": f"2026-01-0{day + 1}",
        "id": number,
        "player": named if place == "player" else f"guest{number}",
        "raw": json.dumps({"who": named, "n": number}) if place == "raw" else None,
        "friends": [token("nobody"), named] if place == "friends" else [],
        "extras": [(named, "x")] if place == "key" and named else [("k", named)] if place == "value" else [],
    }


class Table:
    """A table in a lake of its own, to which rows are added a commit at a time."""

    def __init__(self, root: Path) -> None:
        self.lake = local_lake(root)
        self.objects = LocalObjects(root)
        made = user_metadata(pipeline="shop", batch=0, operation="create_table")
        self.lake.ensure(KEY, SCHEMA, user_metadata=made, partition_by=["event_date"])

    def add(self, rows: list[dict[str, Any]]) -> None:
        opened = present(self.lake.open(KEY))
        root = arrow_path(self.lake.storage, KEY)
        parts = split_by_partition(pa.Table.from_pylist(rows, SCHEMA), ["event_date"])
        files = [write_file(self.lake.filesystem, root, part, partition=values) for values, part in parts]
        opened.create_write_transaction(
            [file.add_action() for file in files], mode="append", schema=opened.schema(), partition_by=["event_date"]
        )

    def rows(self) -> list[dict[str, Any]]:
        return sorted(present(self.lake.rows(KEY)).to_pylist(), key=lambda line: line["id"])

    def purger(self, **requests: list[str]) -> TablePurger:
        searches = {name: TokenSearch(map(token, people)) for name, people in requests.items()}
        return TablePurger(self.lake, self.objects, KEY, pipeline="shop", table="orders", requests=searches)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


PLACES = ("player", "raw", "friends", "key", "value")
ROWS = st.lists(st.tuples(st.sampled_from([None, "ann", "bob", "cy"]), st.sampled_from(PLACES), st.integers(0, 2)))


@settings(max_examples=8)
@given(commits=st.lists(ROWS, min_size=1, max_size=3), erased=st.sets(st.sampled_from(["ann", "bob", "dee"])))
def test_only_rows_of_erased_people_are_purged(
    commits: list[list[tuple[str | None, str, int]]], erased: set[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    table = Table(tmp_path_factory.mktemp("lake"))
    rows: list[dict[str, Any]] = []
    theirs = 0
    kept: list[int] = []
    for commit in commits:
        added = [row(len(rows) + index, *parts) for index, parts in enumerate(commit)]
        for one, (person, _, _) in zip(added, commit, strict=True):
            gone = person in erased
            theirs += gone
            kept += [] if gone else [one["id"]]
        rows += added
        if added:
            table.add(added)
    before = table.rows()

    purge = table.purger(**{name: [name] for name in erased}).purge(STEP)

    assert table.rows() == [line for line in before if line["id"] in kept]
    assert (purge.rows_before, purge.erased_before) == (len(rows), theirs)
    assert (purge.rows_after, purge.erased_after) == (len(rows) - theirs, 0)
    assert purge.other_rows_after == purge.other_rows_before == len(kept)
    assert sum(purge.by_request.values()) == theirs


def test_a_purge_commits_once_per_window_and_repeats_its_result(table: Table) -> None:
    table.add([row(1, "ann", "player", 0), row(2, "bob", "raw", 0)])
    first = table.purger(r1=["ann"]).purge(STEP)
    version = state_at(table.lake, table.objects, KEY).version

    again = table.purger(r1=["ann"]).purge(STEP)

    assert again == first.replace(bytes_written=0)
    assert state_at(table.lake, table.objects, KEY).version == version


def test_files_without_matching_rows_are_not_rewritten(table: Table) -> None:
    table.add([row(1, "bob", "player", 0)])
    table.add([row(2, "ann", "player", 0)])
    before = state_at(table.lake, table.objects, KEY).files

    purge = table.purger(r1=["ann"]).purge(STEP)

    after = state_at(table.lake, table.objects, KEY).files
    assert len(purge.removed_files) == 1
    assert set(after) == {name for name in before if name[0] not in purge.removed_files}


def test_the_log_of_a_purge_contains_no_token(table: Table) -> None:
    table.add([row(1, "ann", "player", 0), row(2, "bob", "player", 0)])
    table.purger(r1=["ann"]).purge(STEP)
    version = state_at(table.lake, table.objects, KEY).version
    stored = present(table.objects.get(f"{KEY}/_delta_log/{version:020d}.json"))
    assert token("ann").encode() not in stored.data
    assert b'"operation":"DELETE"' in stored.data


def test_concurrent_appends_are_kept_and_purged(table: Table) -> None:
    table.add([row(1, "ann", "player", 0), row(2, "bob", "player", 0)])
    late = [[row(3, "ann", "raw", 0), row(4, "bob", "raw", 1)]]

    def append_once() -> None:
        if late:
            table.add(late.pop())

    purge = table.purger(r1=["ann"]).purge(STEP, before_commit=append_once)

    assert [line["id"] for line in table.rows()] == [2, 4]
    assert purge.erased_before == 2


def test_after_a_concurrent_append_only_its_files_are_rewritten(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.add([row(1, "ann", "player", 0), row(2, "bob", "player", 0)])
    written = list[str]()
    write = rewrite.write_file_body

    def recording(*arguments: Any, **options: Any) -> WrittenFile:
        file = write(*arguments, **options)
        written.append(file.path)
        return file

    def append_once() -> None:
        if len(written) == 1:
            table.add([row(3, "ann", "player", 1), row(4, "bob", "player", 1)])

    monkeypatch.setattr(rewrite, "write_file_body", recording)
    purge = table.purger(r1=["ann"]).purge(STEP, before_commit=append_once)

    assert (purge.rows_before, purge.erased_before, purge.rows_after) == (4, 2, 2)
    assert [line["id"] for line in table.rows()] == [2, 4]
    assert len(written) == 2
    assert {path for path, _ in state_at(table.lake, table.objects, KEY).files} == set(written)


def test_anonymized_rows_lose_their_tokens(table: Table) -> None:
    table.add([row(1, "ann", "player", 0), row(2, "ann", "raw", 0), row(3, "bob", "friends", 0)])
    before = table.rows()

    purge = table.purger(r1=["ann"]).purge(STEP, mode="identity")

    after = table.rows()
    assert [line["id"] for line in after] == [1, 2, 3]
    assert after[2] == before[2]
    identity = after[0]["player"]
    assert identity.startswith("x1_")
    assert json.loads(after[1]["raw"])["who"] == identity
    assert token("ann") not in json.dumps(after)
    assert (purge.rows_after, purge.other_rows_after, purge.erased_after) == (3, 1, 0)


def test_a_wrong_rewrite_is_not_committed(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.add([row(1, "ann", "player", 0), row(2, "bob", "player", 0)])
    purger = table.purger(r1=["ann"])
    version = state_at(table.lake, table.objects, KEY).version
    everybody = purger._search.matching_rows
    calls = []

    def blind_once(batch: pa.RecordBatch) -> Any:
        calls.append(batch.num_rows)
        return everybody(batch) if len(calls) != 2 else np.zeros(batch.num_rows, dtype=np.bool_)

    monkeypatch.setattr(purger._search, "matching_rows", blind_once)
    with pytest.raises(ContractError, match="ERASURE_MISCOUNTED"):
        purger.purge(STEP)
    assert state_at(table.lake, table.objects, KEY).version == version
