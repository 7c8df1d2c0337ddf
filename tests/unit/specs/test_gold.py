"""Dependencies of gold tables: build order, and rejected cycles."""

from __future__ import annotations

import pytest

from deltaworks.specs.gold import AffectsSpec, GoldTableSpec, build_order
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import pipeline_spec


def table(name: str, *reads: str) -> GoldTableSpec:
    return GoldTableSpec(name=name, sql=f"{name}.sql", reads=reads, partition_by="event_date")


def test_tables_are_in_dependency_order_otherwise_as_declared() -> None:
    declared = [table("c", "b"), table("a", "events"), table("b", "a", "events"), table("d", "events")]

    order = [item.name for item in build_order(declared)]

    assert order.index("a") < order.index("b") < order.index("c")
    assert [item.name for item in build_order([table("y", "events"), table("x", "events")])] == ["y", "x"]


@pytest.mark.parametrize(
    "tables", [[table("a", "b"), table("b", "c"), table("c", "a")], [table("a", "a")]], ids=["three", "itself"]
)
def test_a_cycle_is_rejected_with_its_names(tables: list[GoldTableSpec]) -> None:
    with pytest.raises(ValueError, match="form a cycle: ") as rejection:
        build_order(tables)

    assert all(item.name in str(rejection.value) for item in tables)


def declared(**gold: object) -> PipelineSpec:
    return pipeline_spec(
        {"name": "events", "catch_all": True}, event={"name": {"path": "name"}, "time": {"path": "time"}}, gold=gold
    )


def test_gold_tables_can_read_each_other_without_a_cycle() -> None:
    daily, busiest = table("daily", "events"), table("busiest", "daily")

    assert declared(tables=[busiest.model_dump(), daily.model_dump()]).gold.tables
    with pytest.raises(ValueError, match="form a cycle: "):
        declared(tables=[table("daily", "busiest").model_dump(), busiest.model_dump()])
    with pytest.raises(ValueError, match="reads unknown table"):
        declared(tables=[table("daily", "weekly").model_dump()])


FACTS = {"name": "facts", "sql": "f.sql", "reads": ["orders"], "partition_by": "valid_year", "affects": "all"}
INTERVALS = {"intervals": {"by": "ticker", "from": "valid_from", "to": "valid_to"}}
REFERENCE = {"name": "splits", "file": "splits.csv", "key": "d", "columns": [{"name": "d", "type": "date"}]}


def as_of(affects: object, *, facts: dict[str, object] | None = None, dated: bool = True) -> PipelineSpec:
    reads = ["orders", "facts", "splits"]
    known = {"name": "known", "sql": "k.sql", "reads": reads, "partition_by": "event_date", "affects": affects}
    reference = REFERENCE | ({"effective_date": "d"} if dated else {})
    gold = {"tables": [FACTS | {"checks": INTERVALS} | (facts or {}), known]}
    plain = declared().model_dump(mode="json")
    orders = {"name": "orders", "when": {"name": "order"}}
    return PipelineSpec.model_validate(plain | {"tables": [orders], "gold": gold, "references": [reference]})


EACH = {"orders": {"days": [0]}, "facts": "onwards", "splits": "onwards"}


def test_effects_can_be_declared_per_input() -> None:
    spec = as_of(EACH)

    known = spec.gold.tables[1]
    assert known.is_partitioned_by_date
    assert [known.affects_for_input(name) for name in known.reads] == [AffectsSpec(), "onwards", "onwards"]
    assert PipelineSpec.model_validate(spec.model_dump(mode="json")) == spec
    assert spec.gold.tables[0].checks.model_dump(mode="json")["intervals"] == {
        "by": ["ticker"],
        "from": "valid_from",
        "to": "valid_to",
    }


def test_onwards_needs_a_date_or_intervals() -> None:
    with pytest.raises(ValueError, match=r"declare `checks\.intervals` of that table"):
        as_of(EACH, facts={"checks": {}})
    with pytest.raises(ValueError, match="declare `effective_date` of the reference"):
        as_of(EACH, dated=False)
    with pytest.raises(ValueError, match="'splits' is not partitioned by date"):
        as_of(EACH | {"splits": {"days": [0]}})
    as_of(EACH | {"splits": "all"}, dated=False)


def test_effects_cover_exactly_the_inputs() -> None:
    with pytest.raises(ValueError, match="'splits' is missing"):
        as_of({"orders": {"days": [0]}, "facts": "onwards"})
    with pytest.raises(ValueError, match="does not read 'fact'; did you mean 'facts'"):
        as_of(EACH | {"fact": "onwards"})


def test_intervals_need_a_complete_rebuild() -> None:
    with pytest.raises(ValueError, match="intervals cannot be checked because"):
        as_of(EACH, facts={"affects": {"days": [0]}})
