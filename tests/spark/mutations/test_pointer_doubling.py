"""The cost of resolve: rounds grow with the logarithm of the longest chain, joins only cover unfinished requests, and
no rows reach the driver.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaworks.mutations.interval_diff import local_checkpoint
from deltaworks.mutations.resolve import resolve

_START = datetime(2026, 1, 1)
_ON_THE_DRIVER = ("collect", "toPandas", "toArrow", "toLocalIterator", "take", "head", "first", "foreach", "mapInArrow")
_PYTHON = re.compile(r"PythonUDF|EvalPython|MapIn|InPandas|InArrow|PythonRunner")


@dataclass
class Watch:
    """A checkpoint that records the plans and row counts it receives."""

    plans: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def __call__(self, frame: DataFrame) -> DataFrame:
        self.plans.append(optimized(frame))
        kept = local_checkpoint(frame)
        self.rows.append(kept.count())
        return kept

    @property
    def rounds(self) -> list[int]:
        """Returns the rows of each round. Two frames precede them; finished requests are collected without a join."""
        return [rows for plan, rows in zip(self.plans[2:], self.rows[2:], strict=True) if joins(plan)]


def optimized(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().optimizedPlan().toString())


def joins(plan: str) -> int:
    return len(re.findall(r"\bJoin (?:Inner|LeftOuter|RightOuter|FullOuter|LeftSemi|LeftAnti)", plan))


def chains(spark: SparkSession, lengths: Sequence[int]) -> DataFrame:
    """Returns one rename chain per length, created by Spark."""
    sizes = spark.createDataFrame(list(enumerate(lengths)), "chain int, length int")
    return sizes.select("chain", F.explode(F.sequence(F.lit(0), F.col("length") - 1)).alias("hop")).select(
        F.lit("o").alias("org_id"),
        F.lit("rename").alias("op"),
        F.concat_ws("-", "chain", "hop").alias("id"),
        F.concat_ws("-", "chain", F.col("hop") + 1).alias("new_id"),
        F.lit(None).cast("map<string,string>").alias("fields"),
        F.col("hop").cast("long").alias("seq"),
        (F.lit(_START) + F.make_dt_interval(secs=F.col("hop"))).alias("time"),
    )


@dataclass(frozen=True)
class Resolved:
    """One recorded resolve: a chain of `longest` requests and 500 single ones."""

    longest: int
    watch: Watch
    intervals: DataFrame
    jobs: int


def watched(spark: SparkSession, longest: int) -> Resolved:
    """Resolves while only counts may reach the driver."""
    watch, group = Watch(), f"resolve-{longest}"
    requests = chains(spark, [longest] + [1] * 500)
    with pytest.MonkeyPatch.context() as patch:
        for name in _ON_THE_DRIVER:
            patch.setattr(type(requests), name, _refuse(name))
        with pytest.raises(AssertionError, match="resolve calls collect"):
            requests.collect()
        spark.sparkContext.setJobGroup(group, group)
        try:
            intervals = resolve(requests, checkpoint=watch)
        finally:
            spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup(group)
    return Resolved(longest, watch, intervals, len(jobs))


def _refuse(name: str) -> object:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError(f"resolve calls {name}")

    return refuse


@pytest.fixture(scope="module", params=[8, pytest.param(4096, marks=pytest.mark.integration)])
def resolved(request: pytest.FixtureRequest, spark: SparkSession) -> Resolved:
    return watched(spark, request.param)


def test_a_chain_ends_with_its_last_id(resolved: Resolved) -> None:
    start = resolved.intervals.where("id = '0-0'").collect()

    assert [(row.final_id, row.hops, row.valid_from, row.valid_to) for row in start] == [
        (f"0-{resolved.longest}", resolved.longest, None, _START)
    ]


def test_joins_grow_with_the_logarithm_of_the_longest_chain(resolved: Resolved) -> None:
    rounds = math.ceil(math.log2(resolved.longest))

    assert [joins(plan) for plan in resolved.watch.plans[:2]] == [0, 1]
    assert [len(resolved.watch.rounds), len(resolved.watch.plans)] == [rounds, 2 + rounds + rounds // 4]
    assert joins(optimized(resolved.intervals)) == 2


def test_only_unresolved_moves_take_part_in_a_round(resolved: Resolved) -> None:
    longest, requests = resolved.longest, resolved.longest + 500
    rounds = math.ceil(math.log2(longest))

    # Every request moves one id to another. Each later round only covers requests that have not reached their chain's
    # end: all but the last of the longest chain, all but the last two, the last four.
    assert resolved.watch.rows[:2] == [2 * requests, requests]
    assert resolved.watch.rounds == [longest - 2**done for done in range(rounds)]


def test_jobs_grow_with_the_logarithm_of_the_longest_chain(resolved: Resolved) -> None:
    rounds = math.ceil(math.log2(resolved.longest))

    # A materialisation runs one job per shuffle and broadcast; each count of the watch adds one. A join per hop would
    # take three more jobs for every request of the chain.
    assert rounds < resolved.jobs <= 9 * (rounds + 2) + 6


def test_nothing_runs_in_python(spark: SparkSession, resolved: Resolved) -> None:
    plans = [optimized(resolved.intervals), *resolved.watch.plans]

    assert [plan for plan in plans if _PYTHON.search(plan)] == []
    in_python = spark.range(1).select(F.udf(lambda number: number, "long")("id"))
    assert _PYTHON.search(optimized(in_python)), "the pattern finds Python where there is some"


@pytest.mark.integration
def test_a_hub_of_a_hundred_thousand_requests_resolves(spark: SparkSession) -> None:
    hub, last = 100_000, _START + timedelta(days=30)
    spokes = spark.range(hub).selectExpr(
        "'o' AS org_id",
        "CASE WHEN id % 2 = 0 THEN 'merge' ELSE 'update' END AS op",
        "CASE WHEN id % 2 = 0 THEN concat('s', id) ELSE 'hub' END AS id",
        "CASE WHEN id % 2 = 0 THEN 'hub' END AS new_id",
        "CASE WHEN id % 2 = 1 THEN map('stage', concat('v', id)) END AS fields",
        "id AS seq",
        "timestamp'2026-01-01 00:00:00' + make_dt_interval(0, 0, 0, id) AS time",
    )
    onward = spark.createDataFrame(
        [
            ("o", "rename", "hub", "end", None, hub, last),
            ("o", "rename", "end", "over", None, hub, last + timedelta(1)),
        ],
        spokes.schema,
    )

    found = resolve(spokes.unionByName(onward)).cache()

    assert found.where("id LIKE 's%' AND final_id = 'over' AND hops = 3").count() == hub // 2
    assert found.where(f"id LIKE 's%' AND fields['stage'] = 'v{hub - 1}'").count() == hub // 2
    # Only the last update counts: one interval up to it, and one from there to the rename.
    assert found.where("id = 'hub'").count() == 2
    found.unpersist()
