"""The first differing date of two versions of an interval table, by rows."""

from __future__ import annotations

import datetime as dt
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaworks.gold.plan import changes_by_row_diff
from deltaworks.tables.changes import Changes
from deltaworks.testing import local_lake
from tests.examples import examples

START = dt.date(2025, 1, 1)
SCHEMA = pa.schema(
    [("ticker", pa.string()), ("valid_from", pa.date32()), ("valid_to", pa.date32()), ("eps", pa.int64())]
)
Row = tuple[str, int | None, int | None, int]
ROWS = st.lists(
    st.tuples(
        st.sampled_from("AB"), st.none() | st.integers(0, 5), st.none() | st.integers(0, 5), st.sampled_from([1, 2])
    ),
    max_size=5,
)
FIRST: list[Row] = [("A", 0, 3, 1), ("A", 3, None, 2), ("B", 1, None, 7)]


def day(number: int | None) -> dt.date | None:
    return None if number is None else START + dt.timedelta(days=number)


def write(folder: Path, rows: list[Row], schema: pa.Schema = SCHEMA) -> None:
    columns = {
        "ticker": [row[0] for row in rows],
        "valid_from": [day(row[1]) for row in rows],
        "valid_to": [day(row[2]) for row in rows],
        "eps": [row[3] for row in rows],
        "note": [None for _ in rows],
    }
    table = pa.table({name: columns[name] for name in schema.names}, schema=schema)
    write_deltalake(str(folder / "t"), table, mode="overwrite", schema_mode="overwrite")


def changed(folder: Path, before: int | None = 0, after: int = 1) -> Changes:
    lake = local_lake(folder)
    return changes_by_row_diff(lake, "t", column="valid_from", before=before, after=after)


def first_date(changes: Changes) -> str | None:
    (partition,) = changes.partitions
    return dict(partition)["valid_from"]


def test_rewritten_rows_are_no_change(tmp_path: Path) -> None:
    write(tmp_path, FIRST)
    write(tmp_path, FIRST[::-1])

    assert not changed(tmp_path)


@pytest.mark.parametrize(
    ("rows", "first"),
    [
        ([*FIRST, ("B", 1, None, 7)], 1),
        ([("A", 0, 3, 1), ("A", 3, 5, 2), ("A", 5, None, 3), ("B", 1, None, 7)], 3),
        ([("A", 0, 3, 1), ("A", 3, None, 2)], 1),
        ([("A", 0, 3, 9), ("A", 3, None, 2), ("B", 1, None, 7)], 0),
    ],
    ids=["one twice", "a new one", "one less", "a restated value"],
)
def test_the_first_differing_date_is_the_change(tmp_path: Path, rows: list[Row], first: int) -> None:
    write(tmp_path, FIRST)
    write(tmp_path, rows)

    assert first_date(changed(tmp_path)) == str(day(first))


def test_versions_that_cannot_be_compared_change_everything_with_a_reason(tmp_path: Path) -> None:
    write(tmp_path, FIRST)
    write(tmp_path, FIRST, SCHEMA.append(pa.field("note", pa.string())))
    assert changed(tmp_path).reason == "its versions 0 and 1 cannot be compared: its columns changed"
    assert changed(tmp_path, before=None).is_unbounded

    write(tmp_path, [("A", None, 1, 1)])
    write(tmp_path, FIRST)
    assert changed(tmp_path, before=2, after=3).reason == "1 differing rows have no valid_from"


def test_versions_with_deleted_files_change_everything(tmp_path: Path) -> None:
    write(tmp_path, FIRST)
    for file in (tmp_path / "t").glob("*.parquet"):
        file.unlink()
    write(tmp_path, FIRST)

    changes = changed(tmp_path)

    assert changes.is_unbounded
    assert "versions 0 and 1 cannot be compared" in changes.reason


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS, ROWS)
def test_the_first_differing_date_matches_plain_python(tmp_path: Path, before: list[Row], after: list[Row]) -> None:
    shutil.rmtree(tmp_path / "t", ignore_errors=True)
    write(tmp_path, before)
    write(tmp_path, after)
    counted, now = Counter(before), Counter(after)
    differing = [*(counted - now), *(now - counted)]

    changes = changed(tmp_path)

    if any(row[1] is None for row in differing):
        assert changes.is_unbounded
    elif differing:
        assert first_date(changes) == str(day(min(row[1] or 0 for row in differing)))
    else:
        assert not changes
