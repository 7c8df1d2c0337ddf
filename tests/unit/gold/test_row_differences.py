"""Rows by which two tables differ are counted as multisets by partition, and floats are compared to nine digits."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.gold.row_differences import CURRENT, DUCKDB, REBUILT, RowComparison, count_differing_rows
from deltaworks.tables.duckdb_session import duckdb_session
from deltaworks.tables.lake import Lake
from deltaworks.testing import append_rows, local_lake, present

#: Equal but for the last bits, on both sides of a boundary of nine digits.
BOUNDARY = 1.000000005


def counted(lake: Lake, other: str, **options: object) -> dict[str | None, int] | None:
    tables = [present(lake.open(f"tables/{name}")) for name in ("a", other)]
    return count_differing_rows(lake, *tables, by='"day"', **options)  # type: ignore[arg-type]


def test_rows_are_counted_by_value_without_excluded_ones_and_with_floats_to_nine_digits(tmp_path: Path) -> None:
    lake = local_lake(tmp_path)
    rows = [{"day": 1, "rate": 0.1 + 0.2}, {"day": 2, "rate": 1.0}, {"day": 2, "rate": 1.0}, {"day": 3, "rate": 2.0}]
    append_rows(lake, "tables/a", rows)
    append_rows(lake, "tables/b", [{"day": 1, "rate": 0.3}, {"day": 2, "rate": 1.0}, {"day": 3, "rate": 2.1}])
    append_rows(lake, "tables/c", [{"day": "1", "rate": 0.3}])

    assert counted(lake, "b") == {"2": 1, "3": 2}, "one copy less, and both of 3"
    assert counted(lake, "b", excluded='"day" IN (3)') == {"2": 1}
    assert counted(lake, "b", is_exact=True) == {"1": 2, "2": 1, "3": 2}
    assert counted(lake, "c") is None, "other types"
    assert counted(lake, "a") == {}


def test_a_float_at_a_rounding_boundary_and_a_negative_zero_are_no_difference(tmp_path: Path) -> None:
    lake = local_lake(tmp_path)
    below, above = math.nextafter(BOUNDARY, 0), math.nextafter(BOUNDARY, 2)
    assert f"{below:.8e}" != f"{above:.8e}"
    append_rows(lake, "tables/a", [{"day": 1, "rate": below}, {"day": 2, "rate": 0.0}])
    append_rows(lake, "tables/b", [{"day": 1, "rate": above}, {"day": 2, "rate": -0.0}])

    assert counted(lake, "b") == {}
    assert counted(lake, "b", is_exact=True) == {"1": 2}


ROWS = st.lists(st.tuples(st.sampled_from([1, 2, None]), st.sampled_from(["x", "y", None])), max_size=6)


@given(ROWS, ROWS)
@settings(max_examples=60, deadline=None)
def test_the_counts_are_those_of_multisets(
    current: list[tuple[int | None, str | None]], rebuilt: list[tuple[int | None, str | None]]
) -> None:
    with duckdb_session() as session:
        for name, rows in ((CURRENT, current), (REBUILT, rebuilt)):
            session.execute(f"CREATE OR REPLACE TEMP TABLE {name} (day INT, name VARCHAR)")
            for row in rows:
                session.execute(f"INSERT INTO {name} VALUES (?, ?)", row)
        comparison = RowComparison(columns={"day": "integer", "name": "string"}, by='"day"', dialect=DUCKDB)

        found = comparison.count(lambda sql: session.execute(sql).fetchall())

    differing = (Counter(current) - Counter(rebuilt)) + (Counter(rebuilt) - Counter(current))
    expected: Counter[str | None] = Counter()
    for (day, _), rows_of_value in differing.items():
        expected[None if day is None else str(day)] += rows_of_value
    assert found == dict(expected)


@pytest.mark.parametrize("kind", ["double", "float"])
def test_types_of_floats_are_rounded(kind: str) -> None:
    seen: list[str] = []
    comparison = RowComparison(columns={"rate": kind}, by="1", dialect=DUCKDB)
    comparison.count(lambda sql: seen.append(sql) or [])  # type: ignore[func-returns-value]

    assert "{:.8e}" in seen[0]
