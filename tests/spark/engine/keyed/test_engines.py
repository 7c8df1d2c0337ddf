"""Spark and delta-rs merge a keyed table identically, and gold reads the result."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.engine.keyed import merge
from deltaworks.gold.input_views import InputViews
from deltaworks.gold.parts import Part
from deltaworks.gold.pinned_inputs import pin_inputs
from deltaworks.maintenance.layout import optimized_tables, read_layout
from deltaworks.maintenance.optimize import optimize_table
from deltaworks.testing import present
from tests.unit.engine.keyed.keyed_harness import LATEST, START, KeyedHarness, declared, tick

SYMBOLS = ["a", "o'neil \\ sons", "", "ü", None]


def rows(draw: random.Random, count: int) -> list[dict[str, Any]]:
    return [
        tick(
            draw.choice(SYMBOLS),
            draw.choice([None, 0, 1, 2]),
            day=START.date() + dt.timedelta(days=draw.randrange(3)),
            event_date=START.date() + dt.timedelta(days=draw.randrange(3)),
            price=draw.choice([None, Decimal("1.2345")]),
            op=draw.choice(["u", "d", None]),
            tags=draw.choice([None, [], [{"name": "x", "size": None}, None]]),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("partition_by", [[], pytest.param(["day"], marks=pytest.mark.integration)])
def test_both_engines_leave_the_same_rows(
    spark: SparkSession, tmp_path: Path, partition_by: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(3)
    spec = declared(deleted_when={"op": "d"})
    mapping = spec.model_dump(mode="json", exclude_unset=True)
    mapping["tables"][0]["keyed"]["partition_by"] = partition_by
    stage = KeyedHarness(tmp_path, type(spec).model_validate(mapping))
    tables = stage.tables(spark=spark)
    stage.append(rows(draw, 60))
    stage.follow(tables)
    chosen = merge.choose_engine
    engines = []
    for step in range(4):
        stage.append(rows(draw, 12))
        if step == 2:
            stage.history().delete("version = 1")
        engine = "spark" if step % 2 == 0 else "delta_rs"
        monkeypatch.setattr(merge, "choose_engine", lambda *_, engine=engine: (engine, "the test says so"))
        followed = present(stage.follow(tables))
        engines.append((followed.mode, followed.engine))
        assert stage.latest() == stage.expected()
    monkeypatch.setattr(merge, "choose_engine", chosen)

    assert [engine for _, engine in engines] == ["spark", "delta_rs", "spark", "delta_rs"]
    assert [how for how, _ in engines] == ["newer", "newer", "exact", "newer"]
    assert stage.follow(stage.tables(spark=spark)) is None

    optimize_table(spark, stage.lake, "market", read_layout(stage.lake, "market", optimized_tables(stage.spec)[LATEST]))
    assert stage.latest() == stage.expected()
    pinned = pin_inputs(stage.lake, stage.spec, [LATEST])
    with InputViews(spark, stage.lake, pinned, None) as views:
        views.register([LATEST], Part("event_date", None))
        shown = spark.sql(f"SELECT symbol, day, version FROM {LATEST}").collect()
    assert sorted(map(repr, ((row.symbol, row.day, row.version) for row in shown))) == sorted(
        repr((row["symbol"], row["day"], row["version"])) for row in stage.expected() if not row["_deleted"]
    )
