"""Keyed tables are validated against the columns of their history."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.spec_change_effects import Effect
from deltaworks.specs.spec_diff import classify_changes
from deltaworks.testing import declare_pipeline, declare_table


def spec(keyed: dict[str, Any] | None, **others: Any) -> PipelineSpec:
    columns = {"symbol": "string", "day": "date", "version": "long", "price": "decimal(12,4)", "weight": "double"}
    columns |= {"tags": "array<string>", "active": "boolean", "op": "string"}
    table: dict[str, Any] = declare_table("ticks", *(f"{name} {kind}" for name, kind in columns.items()))
    declared = declare_pipeline(
        table if keyed is None else {**table, "keyed": keyed},
        pipeline="market",
        event={"name": {"constant": "tick"}, "time": {"path": "time"}},
    )
    return PipelineSpec.model_validate(declared | others)


def test_the_short_form_is_by_key_and_event_time() -> None:
    (keyed,) = spec({"by": "symbol"}).keyed_tables

    assert (keyed.name, keyed.history, keyed.by, keyed.newest_by) == (
        "latest_ticks",
        "ticks",
        ("symbol",),
        ("event_time",),
    )
    assert keyed.sort_columns == ("event_time", "_seq", "_position")
    assert "_deleted" not in keyed.types


def test_tables_with_deletions_have_a_deletion_column() -> None:
    (keyed,) = spec({"by": ["symbol", "day"], "newest_by": "version", "deleted_when": {"op": "d"}}).keyed_tables

    assert list(keyed.types)[-1] == "_deleted"
    assert keyed.deleted_when == {"op": ("d",)}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"by": []}, "at least 1 item"),
    ({"newest_by": "version"}, "Field required"),
    ({"by": "symbl"}, "there is no column 'symbl' in this table; did you mean 'symbol'"),
    ({"by": "weight"}, "'weight' is double; it must be string, int, long, boolean, date, timestamp or a decimal"),
    ({"by": ["symbol", "symbol"]}, "'symbol' is named twice"),
    ({"by": "symbol", "newest_by": "tags"}, "'tags' is array<string>"),
    ({"by": "symbol", "newest_by": "active"}, "'active' is boolean"),
    ({"by": "symbol", "deleted_when": {"price": 1}}, "'price' is decimal(12,4)"),
    ({"by": "symbol", "deleted_when": {"version": "d"}}, "'version' is long, and 'd' is not"),
    ({"by": "symbol", "deleted_when": {"version": True}}, "'version' is long, and True is not"),
    ({"by": "symbol", "partition_by": ["day"]}, "'day' is not in `by`: a key would move between partitions"),
    ({"by": "price", "partition_by": ["price"]}, "which is not a partition type"),
    ({"by": "symbol", "table": "ticks"}, "table ticks is declared twice"),
    ({"by": "symbol", "table": "quarantine"}, "the name 'quarantine' is reserved"),
]


@pytest.mark.parametrize(("keyed", "message"), WRONG, ids=lambda value: str(value)[:50])
def test_an_error_has_its_key_path(keyed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as rejection:
        spec(keyed)

    assert message in str(rejection.value)


def test_gold_reads_a_keyed_table_and_a_live_table_does_not() -> None:
    gold = {"name": "sums", "sql": "s.sql", "reads": ["latest_ticks"], "partition_by": "symbol", "affects": "same"}
    parted = {"by": ["symbol"], "partition_by": ["symbol"]}

    assert spec(parted, gold={"tables": [gold]}).gold.tables[0].reads == ("latest_ticks",)
    with pytest.raises(ValidationError, match="is not partitioned by"):
        spec({"by": ["symbol"]}, gold={"tables": [gold]})
    with pytest.raises(ValidationError, match="reads unknown table"):
        spec(parted, live=[{"name": "counts", "reads": "latest_ticks"}])


@pytest.mark.parametrize(
    ("before", "after", "field", "effect"),
    [
        (None, {"by": "symbol"}, "keyed", Effect.RESTART),
        ({"by": "symbol"}, None, "keyed", Effect.RESTART),
        ({"by": "symbol"}, {"by": ["symbol", "day"]}, "keyed.by", Effect.RESTART),
        ({"by": "symbol"}, {"by": "symbol", "newest_by": "version"}, "keyed.newest_by", Effect.RESTART),
        ({"by": "symbol"}, {"by": "symbol", "deleted_when": {"op": "d"}}, "keyed.deleted_when", Effect.RESTART),
        ({"by": "symbol"}, {"by": "symbol", "table": "prices"}, "keyed.table", Effect.RESTART),
        (
            {"by": "symbol"},
            {"by": "symbol", "partition_by": ["symbol"]},
            "keyed.partition_by",
            Effect.NEW_GENERATION,
        ),
    ],
)
def test_a_change_of_a_keyed_table_rebuilds_it(
    before: dict[str, Any] | None, after: dict[str, Any] | None, field: str, effect: Effect
) -> None:
    (change,) = classify_changes(spec(before), spec(after))

    assert (change.field, change.effect) == (f"tables.ticks.{field}", effect)
    assert "ticks" in change.advice
