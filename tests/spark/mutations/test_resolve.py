"""Resolve matches the documented examples, NetworkX and the replay of generated logs, row by row.

Rounds grow with the logarithm of the longest chain, and no rows reach the driver.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise

import networkx
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaworks.mutations.entities import INTERVAL_SCHEMA, components, edges, resolve
from deltaworks.mutations.interval_diff import local_checkpoint
from deltaworks.mutations.requests import REQUEST_SCHEMA
from deltaworks.tables.spark_session import override_settings
from tests.spark.mutations.cases import at, differences, frame, generated, kinds, smallest
from tests.unit.mutations.examples import EXAMPLES

HARD = {
    *("swaps", "ties", "duplicates", "chains", "cycles", "deleted", "undeleted", "ids used again", "updated"),
    *("updates at the time of a move", "fields set again after a move", "last by an update of a move's time"),
}


def test_every_example_of_the_documents_resolves_as_stated(spark: SparkSession) -> None:
    resolved = resolve(frame(spark, [example.requests for example in EXAMPLES]))

    assert resolved.schema.simpleString() == spark.createDataFrame([], INTERVAL_SCHEMA).schema.simpleString()
    intervals = resolved.collect()
    for org, example in enumerate(EXAMPLES):
        for (origin, time), outcome in example.rows.items():
            met = [
                each
                for each in intervals
                if (each.org_id, each.id) == (str(org), origin)
                and (each.valid_from is None or each.valid_from <= at(time))
                and (each.valid_to is None or at(time) < each.valid_to)
            ]
            found = [(None if each.deleted else each.final_id, each.fields) for each in met] or [(origin, {})]
            assert found == [(outcome.id, outcome.fields)], (example.name, origin, time)


def test_generated_logs_resolve_as_they_replay(spark: SparkSession) -> None:
    logs = generated(400, start=1)

    found = differences(logs, resolve(frame(spark, logs)))

    assert smallest(found) is None
    occurring = kinds(logs)
    assert {kind for kind in HARD if occurring[kind] >= 10} == HARD, occurring


@pytest.mark.integration
@pytest.mark.parametrize("start", range(100, 104))
def test_thousands_of_generated_logs_resolve_as_they_replay(spark: SparkSession, start: int) -> None:
    logs = generated(1500, start=start)

    assert smallest(differences(logs, resolve(frame(spark, logs)))) is None


@pytest.mark.integration
@pytest.mark.parametrize(
    "conf",
    [
        {"spark.sql.adaptive.enabled": "false", "spark.sql.autoBroadcastJoinThreshold": "-1"},
        {
            "spark.sql.autoBroadcastJoinThreshold": "-1",
            "spark.sql.adaptive.autoBroadcastJoinThreshold": "-1",
            "spark.sql.adaptive.advisoryPartitionSizeInBytes": "1KB",
            "spark.sql.adaptive.coalescePartitions.enabled": "false",
            "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "1KB",
            "spark.sql.adaptive.skewJoin.skewedPartitionFactor": "1",
            "spark.sql.shuffle.partitions": "7",
        },
    ],
    ids=["no adaptive execution, sort-merge joins", "every partition split as skewed"],
)
def test_the_answer_does_not_depend_on_how_spark_joins(spark: SparkSession, conf: dict[str, str]) -> None:
    logs = generated(400, start=7)

    with override_settings(spark, conf):
        found = differences(logs, resolve(frame(spark, logs)))

    assert smallest(found) is None


Edge = tuple[str, str, str]


def expected(connected: Iterable[Edge]) -> set[tuple[str, str, str, int]]:
    """Returns for every id of every organisation the least id and the size of its component."""
    graphs: dict[str, networkx.Graph] = {}
    for org, one, other in connected:
        graphs.setdefault(org, networkx.Graph()).add_edge(one, other)
    return {
        (org, name, min(group), len(group))
        for org, graph in graphs.items()
        for group in networkx.connected_components(graph)
        for name in group
    }


def shapes() -> list[Edge]:
    """Returns paths in ascending, descending and shuffled order, a star, ring, clique, tree, and random graphs."""
    chance = random.Random(5)
    names = [f"{number:02}" for number in range(60)]
    shuffled = chance.sample(names, len(names))
    drawn: dict[str, Iterable[tuple[str, str]]] = {
        "path": pairwise(names),
        "path backwards": pairwise(reversed(names)),
        "path shuffled": pairwise(shuffled),
        "star of the least": ((names[0], name) for name in names[1:]),
        "star of the greatest": ((names[-1], name) for name in names[:-1]),
        "ring": zip(shuffled, [*shuffled[1:], shuffled[0]], strict=True),
        "clique": ((one, other) for one in names[:15] for other in names[:15] if one != other),
        "tree": ((names[number], names[(number - 1) // 2]) for number in range(1, len(names))),
        "twice, and both ways": [("a", "b"), ("a", "b"), ("b", "a")],
    }
    for number in range(30):
        nodes = names[: chance.randint(2, 40)]
        drawn[f"random {number}"] = [tuple(chance.sample(nodes, 2)) for _ in range(chance.randint(1, 40))]  # type: ignore[misc]
    return [(org, one, other) for org, pairs in drawn.items() for one, other in pairs]


def test_components_of_every_shape_are_those_of_networkx(spark: SparkSession) -> None:
    connected = shapes()
    frame = spark.createDataFrame(connected, "org_id string, id string, new_id string")

    found = [tuple(row) for row in components(frame).collect()]

    assert len(found) == len(set(found))
    assert set(found) == expected(connected)


def test_renames_and_merges_connect_and_nothing_else_does(spark: SparkSession) -> None:
    rows = [
        ("o", "rename", "a", "b", None, 1, None),
        ("o", "rename", "c", "d", None, 1, "2026-01-01"),
        ("o", "rename", "c", "e", None, 2, "2026-01-01"),
        ("o", "merge", "f", "g", None, 1, "2026-01-02"),
        ("o", "rename", "h", "h", None, 1, "2026-01-02"),
        ("o", "rename", "h", None, None, 1, "2026-01-02"),
        ("o", "delete", "h", "i", None, 1, "2026-01-02"),
        ("o", "update", "h", "i", {"stage": "won"}, 1, "2026-01-02"),
    ]
    schema = REQUEST_SCHEMA.replace("time timestamp", "time string")
    requests = spark.createDataFrame(rows, schema).selectExpr("* EXCEPT (time)", "CAST(time AS timestamp) AS time")

    found = {tuple(row) for row in edges(requests).collect()}

    assert found == {("o", "c", "d"), ("o", "c", "e"), ("o", "f", "g")}


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
