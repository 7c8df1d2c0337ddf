"""Gold tables that read each other: in which order they are built, and circles refused by name."""

from __future__ import annotations

import pytest

from deltaworks.specs.gold import GoldTableSpec, build_order
from deltaworks.specs.pipeline import PipelineSpec


def table(name: str, *reads: str) -> GoldTableSpec:
    return GoldTableSpec(name=name, sql=f"{name}.sql", reads=reads, partition_by="event_date")


def test_a_table_comes_after_those_it_reads_and_else_as_declared() -> None:
    declared = [table("c", "b"), table("a", "events"), table("b", "a", "events"), table("d", "events")]

    order = [each.name for each in build_order(declared)]

    assert order.index("a") < order.index("b") < order.index("c")
    assert [each.name for each in build_order([table("y", "events"), table("x", "events")])] == ["y", "x"]


@pytest.mark.parametrize(
    "tables", [[table("a", "b"), table("b", "c"), table("c", "a")], [table("a", "a")]], ids=["three", "itself"]
)
def test_a_circle_is_refused_with_its_names(tables: list[GoldTableSpec]) -> None:
    with pytest.raises(ValueError, match="in a circle: ") as refused:
        build_order(tables)

    assert all(each.name in str(refused.value) for each in tables)


def declared(**gold: object) -> PipelineSpec:
    return PipelineSpec.model_validate(
        {
            "pipeline": "shop",
            "description": "a shop",
            "owner": "tests",
            "source": {"kind": "s3_sqs", "relay": "landing", "bucket": "landing"},
            "event": {"name": {"path": "name"}, "time": {"path": "time"}},
            "tables": [{"name": "events", "catch_all": True}],
            "gold": gold,
        }
    )


def test_a_pipeline_takes_gold_tables_that_read_gold_tables_and_no_circle() -> None:
    daily, busiest = table("daily", "events"), table("busiest", "daily")

    assert declared(tables=[busiest.model_dump(), daily.model_dump()]).gold.tables
    with pytest.raises(ValueError, match="in a circle: "):
        declared(tables=[table("daily", "busiest").model_dump(), busiest.model_dump()])
    with pytest.raises(ValueError, match="no table here"):
        declared(tables=[table("daily", "weekly").model_dump()])
