"""How resolve works: rounds by the logarithm of the longest chain, joins of what still moves, nothing on the driver."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaworks.mutations.pointers import local_checkpoint
from deltaworks.mutations.resolve import resolve

_START = datetime(2026, 1, 1)
_ON_THE_DRIVER = ("collect", "toPandas", "toArrow", "toLocalIterator", "take", "head", "first", "foreach", "mapInArrow")
_PYTHON = re.compile(r"PythonUDF|EvalPython|MapIn|InPandas|InArrow|PythonRunner")


@dataclass
class Watch:
    """A checkpoint that remembers the plan of what it was given, and how many rows that came to."""

    plans: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def __call__(self, frame: DataFrame) -> DataFrame:
        self.plans.append(optimized(frame))
        kept = local_checkpoint(frame)
        self.rows.append(kept.count())
        return kept


def optimized(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().optimizedPlan().toString())


def joins(plan: str) -> int:
    return len(re.findall(r"\bJoin (?:Inner|LeftOuter|RightOuter|FullOuter|LeftSemi|LeftAnti)", plan))


def chains(spark: SparkSession, lengths: Sequence[int]) -> DataFrame:
    """One chain of renames for each length, made by Spark itself."""
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


@pytest.mark.parametrize("longest", [2, 8, pytest.param(4096, marks=pytest.mark.integration)])
def test_rounds_grow_with_the_logarithm_of_the_longest_chain(spark: SparkSession, longest: int) -> None:
    watch = Watch()

    found = resolve(chains(spark, [longest] + [1] * 500), checkpoint=watch)

    rounds = math.ceil(math.log2(longest))
    assert [joins(plan) for plan in watch.plans] == [0, 1] + [1] * rounds
    assert joins(optimized(found)) == 2
    requests = longest + 500
    # Every request leaves an id and comes to one. Then only those take part that have not come to the end of their
    # chain: all but the last of the longest one, all but the last two, the last four.
    assert watch.rows == [2 * requests, requests] + [longest - 2**done for done in range(rounds)]
    start = found.where("id = '0-0'").collect()
    assert [(row.final_id, row.hops, row.valid_from, row.valid_to) for row in start] == [
        (f"0-{longest}", longest, None, _START)
    ]


def test_nothing_runs_in_python_and_nothing_but_counts_comes_to_the_driver(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = chains(spark, [4])
    for name in _ON_THE_DRIVER:
        monkeypatch.setattr(type(requests), name, _refuse(name))
    watch = Watch()
    with pytest.raises(AssertionError, match="resolve calls collect"):
        requests.collect()

    found = resolve(requests, checkpoint=watch)

    for frame, plan in [("intervals", optimized(found)), *enumerate(watch.plans)]:
        assert not _PYTHON.search(plan), (frame, plan)
    monkeypatch.undo()
    assert found.count() == 4


def _refuse(name: str) -> object:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError(f"resolve calls {name}")

    return refuse


def test_jobs_grow_with_rounds_and_not_with_requests(spark: SparkSession) -> None:
    few, many = _jobs(spark, (2,) * 10), _jobs(spark, (2,) * 2000)

    # Adaptive execution may join small tables with a job more or less.
    assert abs(many - few) <= 2
    assert 0 < few <= 20


def _jobs(spark: SparkSession, lengths: Sequence[int]) -> int:
    """How many jobs a resolve takes up to its intervals."""
    group = f"resolve-{len(lengths)}-{lengths[0]}"
    requests = chains(spark, lengths)
    spark.sparkContext.setJobGroup(group, group)
    try:
        resolve(requests)
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))


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
    # One update counts, the last one: an interval up to it, and one from there to the rename.
    assert found.where("id = 'hub'").count() == 2
    found.unpersist()
