"""As-of joins built by Spark: intervals with late, restated and simultaneous facts."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.errors import ContractError
from deltaworks.gold.build import rebuild_gold
from deltaworks.gold.plan import interval_failures
from deltaworks.specs.gold import IntervalsSpec
from tests.shared_data import SHARED_DATA
from tests.spark.gold.market_data import (
    EPS_KNOWN,
    MARKET,
    PRICE_WITH_EPS,
    SPLITS,
    Answer,
    Fact,
    Rows,
    answer_of,
    fact,
    facts_of,
    live_through,
    open_market,
    price,
)


class SparkMarket:
    """A market whose gold is built by Spark."""

    def __init__(self, spark: SparkSession, project: Any) -> None:
        self._spark, self._project = spark, project
        self.rows = Rows()

    def land(self, *, prices: Sequence[dict[str, Any]] = (), facts: Sequence[Fact] = ()) -> None:
        for name, rows in (("prices", prices), ("facts", facts)):
            if rows:
                self._project.append("market", name, list(rows))
                getattr(self.rows, name).extend(rows)

    def split(self, line: str) -> None:
        self.rows.splits += line
        (self._project.catalog.folder("market") / "reference" / "splits.csv").write_text(self.rows.splits)

    def build(self) -> tuple[str, ...] | None:
        result = rebuild_gold(self._spark, self._project.catalog, "market").table("price_with_eps")
        return result.partitions

    def answer(self) -> Answer:
        return answer_of(self._project.rows("market", "price_with_eps"))


@pytest.mark.integration
@pytest.mark.skipif(
    not SHARED_DATA.is_dir(), reason=f"no real data at {SHARED_DATA}; name its folder in DELTAWORKS_SHARED_DATA"
)
def test_an_as_of_join_is_exact_after_late_and_restated_rows(
    spark: SparkSession, make_project: Callable[..., Any]
) -> None:
    files = {"gold/eps_known.sql": EPS_KNOWN, "gold/price_with_eps.sql": PRICE_WITH_EPS}
    market = SparkMarket(spark, make_project({"market": (MARKET, files | {"reference/splits.csv": SPLITS})}))

    # Every sixth date: the unit test covers all dates without Spark, ten times faster.
    open_market(market, every=6)
    live_through(market)

    assert facts_of(market.answer()) == facts_of(market.rows.oracle())


@pytest.mark.parametrize(
    ("rows", "broken"),
    [
        ([("A", 1, 3), ("A", 3, None), ("B", 2, 9)], []),
        ([("A", 1, 3), ("A", 4, None), ("B", 1, 2)], ["1 intervals with a gap before the next, of (ticker) A"]),
        ([("A", 1, 4), ("A", 3, None)], ["1 intervals that overlap the next, of (ticker) A"]),
        ([("A", 1, None), ("A", 3, None)], ["1 intervals that overlap the next, of (ticker) A"]),
        ([("A", 1, 3), ("A", 1, 3)], ["1 intervals that overlap the next, of (ticker) A"]),
        ([("A", 3, 3)], ["1 intervals whose valid_to is not after valid_from, of (ticker) A"]),
        ([("A", None, 3)], ["1 intervals without valid_from, of (ticker) A"]),
    ],
)
def test_intervals_follow_one_another(
    spark: SparkSession, rows: list[tuple[str, int | None, int | None]], broken: list[str]
) -> None:
    declared = IntervalsSpec.model_validate({"by": "ticker", "from": "valid_from", "to": "valid_to"})

    answer = spark.createDataFrame(rows, "ticker string, valid_from int, valid_to int")

    assert interval_failures(declared, answer) == broken


def test_intervals_that_overlap_are_not_published(spark: SparkSession, make_project: Callable[..., Any]) -> None:
    overlapping = EPS_KNOWN.replace(
        "lead(valid_from) OVER (PARTITION BY ticker ORDER BY valid_from)", "DATE'2012-01-01'"
    )
    files = {"gold/eps_known.sql": overlapping, "gold/price_with_eps.sql": PRICE_WITH_EPS}
    market = SparkMarket(spark, make_project({"market": (MARKET, files | {"reference/splits.csv": SPLITS})}))
    market.land(
        prices=[price("A", dt.date(2011, 3, 1), Decimal(1))],
        facts=[fact("A", f"2011-0{month}-01", f"2010-0{month}-01", "1", "x") for month in (1, 2)],
    )

    with pytest.raises(ContractError, match="intervals that overlap the next, of"):
        market.build()
