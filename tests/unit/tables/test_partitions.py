"""Partitions as predicates, for every partition column type and value."""

from __future__ import annotations

import duckdb
import pytest

from deltaworks.tables.changes import partition_predicate, sql_literal

TYPES = {"org_id": "string", "day": "date", "n": "long", "ok": "boolean"}


def test_one_column_is_a_list_and_null_a_condition_of_its_own() -> None:
    assert partition_predicate({(("org_id", "b"),), (("org_id", "a"),)}, TYPES) == "`org_id` IN ('a', 'b')"
    assert partition_predicate({(("day", "2026-01-01"),), (("day", None),)}, TYPES) == (
        "(`day` IS NULL OR `day` IN (DATE'2026-01-01'))"
    )
    assert partition_predicate({(("ok", "true"),)}, TYPES) == "`ok` IN (true)"


def test_several_columns_are_named_together() -> None:
    partitions = {(("n", "1"), ("org_id", "a")), (("n", "2"), ("org_id", None))}

    assert (
        partition_predicate(partitions, TYPES)
        == "(`n` IN (1) AND `org_id` IN ('a')) OR (`n` IN (2) AND `org_id` IS NULL)"
    )


def test_a_table_without_partitions_has_a_predicate_that_is_true() -> None:
    assert partition_predicate({()}, TYPES) == "true"


@pytest.mark.parametrize("value", ["it's", "a\\b", "\\'", "tab\there"])
def test_every_text_is_a_single_literal(value: str) -> None:
    # DuckDB reads the same escapes behind an E.
    (found,) = duckdb.sql(f"SELECT E{sql_literal(value, 'string')}").fetchall()

    assert found == (value,)
