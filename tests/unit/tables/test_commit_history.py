"""Reads a table's commits from the newest downwards."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltaworks.tables import log
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history
from deltaworks.testing import local_lake

KEY, COMMITS = "games/events", 40


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake, rows = local_lake(tmp_path), pa.table({"a": [1]})
    table = lake.ensure(KEY, rows.schema, user_metadata="{}")
    for version in range(1, COMMITS):
        lake.append(table, KEY, rows, step=Step("games", version), user_metadata=json.dumps({"batch": str(version)}))
    return lake


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The versions whose commits were read, one request each."""
    versions: list[int] = []
    plain = log.read_commits

    def counted(lake: Lake, key: str, wanted: Iterable[int]) -> Iterator[Any]:
        numbers = list(wanted)
        versions.extend(numbers)
        return plain(lake, key, numbers)

    monkeypatch.setattr(log, "read_commits", counted)
    return versions


def test_reading_the_newest_commit_reads_no_other(lake: Lake, read: list[int]) -> None:
    newest = next(commit_history(lake, KEY, newest=COMMITS - 1))

    assert (newest.version, newest.metadata) == (COMMITS - 1, {"batch": str(COMMITS - 1)})
    assert read == [COMMITS - 1]


@pytest.mark.parametrize(("asked", "most"), [(2, 5), (5, 5), (6, 21), (22, 37), (40, 40)])
def test_read_ahead_grows_with_the_number_of_commits_read(lake: Lake, read: list[int], asked: int, most: int) -> None:
    commits = itertools.islice(commit_history(lake, KEY, newest=COMMITS - 1), asked)

    assert [commit.version for commit in commits] == list(range(COMMITS - 1, COMMITS - 1 - asked, -1))
    assert len(read) == most
    assert len(set(read)) == most, "none is read twice"


def test_no_more_than_the_limit_is_read(lake: Lake, read: list[int]) -> None:
    assert len(list(commit_history(lake, KEY, newest=COMMITS - 1, limit=3))) == len(read) == 3
