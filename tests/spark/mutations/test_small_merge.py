"""Spark's and delta-rs's merge give the same rows, and a delta-rs merge lands once despite concurrent commits."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import random
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from deltaworks.control import paths
from deltaworks.control.provenance import user_metadata
from deltaworks.errors import ConcurrencyError
from deltaworks.mutations import small_merge as engine_choice
from deltaworks.mutations.commits import SparkStepCommits, engine_of, merge_metric
from deltaworks.mutations.merge import TableMerge, affected_range, merge_settings, merge_source
from deltaworks.mutations.small_merge import SmallMerge, plan_merge
from deltaworks.specs.table import TableSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import Step
from deltaworks.tables.variant import encode_json
from deltaworks.testing import declare_table, local_lake, present

PIPELINE, BOTH = "crm", ("spark", "delta_rs")
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
#: Partition values with special characters. The last one is in no batch.
ORGS = ("acme", "o'neil \\ sons/100% ä", "bolt", "", "core")
FIELDS: dict[str, tuple[str, list[str | None]]] = {
    "order": ("string", ["won", "it's \\n", "", None]),
    "size": ("long", ["5", "-9223372036854775808", "no number", None]),
    "rate": ("double", ["1.5", "NaN", "-0.0", None]),
    "price": ("decimal(10,2)", ["12.345", "0.10", "x", None]),
    "at": ("timestamp", ["2026-05-04 03:02:01.123456", "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", None]),
    "day": ("date", ["2026-02-03", "1500-01-01", None]),
    "open": ("boolean", ["true", "false", None]),
}
OTHERS = {"tags": "array<string>", "marks": "map<string,long>", "place": "struct<city:string,at:timestamp>"}


def declared(partition_by: str) -> TableSpec:
    columns = {"org_id": "string", "contact_id": "string", "origin_contact_id": "string"}
    columns |= {f"{prefix}{name}": kind for name, (kind, _) in FIELDS.items() for prefix in ("", "origin_")} | OTHERS
    return TableSpec.model_validate(
        declare_table(
            "activities",
            *(f"{name} {kind} from {name.removeprefix('origin_')}" for name, kind in columns.items()),
            partition_by=[partition_by],
            evolve="rescue",
            keep_rest="variant",
            mutable={
                "id": "contact_id",
                "origin": "origin_contact_id",
                "fields": {name: f"origin_{name}" for name in FIELDS},
            },
        )
    )


def arrived(chance: random.Random, event: str, org: str | None) -> dict[str, Any]:
    values: dict[str, list[Any]] = {
        "order": ["lost", None],
        "size": [7, None],
        "rate": [0.0, float("nan"), None],
        "price": [Decimal("1.20"), None],
        "at": [START + dt.timedelta(microseconds=1), None],
        "day": [START.date(), None],
        "open": [True, None],
    }
    time = START + dt.timedelta(hours=chance.randrange(96), microseconds=chance.randrange(10**6))
    found = {name: chance.choice(each) for name, each in values.items()}
    contact = chance.choice("abcdef")
    return {
        "event_id": event,
        "event_name": "activity",
        "event_time": time,
        "event_date": time.date(),
        "_ingested_at": START,
        "org_id": org,
        "contact_id": contact,
        "origin_contact_id": contact,
        **found,
        **{f"origin_{name}": value for name, value in found.items()},
        "tags": chance.choice([["x", None], [], None]),
        "marks": chance.choice([[("k", 1), ("l", None)], None]),
        "place": chance.choice([{"city": "Oslo", "at": time}, {"city": None, "at": None}, None]),
        "_rest": chance.choice([encode_json('{"a": [1, "é"], "b": {"c": 1.5}}'), encode_json("null"), None]),
    }


def stretches(spark: SparkSession, chance: random.Random) -> DataFrame:
    """Returns for some ids one, two or no adjacent intervals, each end open or closed."""
    rows = []
    for org in ORGS[:-1]:
        for each in chance.sample("abcdef", 4):
            cut = START + dt.timedelta(hours=chance.randrange(96), microseconds=chance.randrange(10**6))
            after, until = (cut, None), (None, cut)
            shapes: list[list[tuple[Any, Any]]] = [[(None, None)], [until], [after], [until, after]]
            for start, end in chance.choice(shapes):
                fields = {name: chance.choice(given) for name, (_, given) in FIELDS.items() if chance.random() < 0.5}
                rows.append((org, each, start, end, chance.choice("abcxyz"), chance.random() < 0.3, fields))
    kinds = "org_id string, id string, valid_from timestamp, valid_to timestamp, final_id string, deleted boolean"
    return spark.createDataFrame(rows, f"{kinds}, fields map<string,string>").localCheckpoint()


class Bench:
    """Two copies of the same table."""

    def __init__(self, spark: SparkSession, root: Path, partition_by: str = "org_id") -> None:
        self.spark = spark
        self.lake = local_lake(root)
        self.table = declared(partition_by)
        self.tables = {engine: self.table.model_copy(update={"name": f"by_{engine}"}) for engine in BOTH}
        self._schema = arrow_schema(self.table.column_types())

    def key(self, engine: str) -> str:
        return paths.table(PIPELINE, self.tables[engine].name)

    def land(self, batch: int, rows: list[Mapping[str, Any]], engines: tuple[str, ...] = BOTH) -> None:
        made = user_metadata(pipeline=PIPELINE, batch=batch, operation="ingest")
        data = pa.Table.from_pylist([dict(row) for row in rows], schema=self._schema)
        for engine in engines:
            opened = self.lake.ensure(
                self.key(engine), self._schema, user_metadata=made, partition_by=self.table.partition_by
            )
            self.lake.append(opened, self.key(engine), data, step=Step("stream", batch), user_metadata=made)

    def opened(self, engine: str) -> DeltaTable:
        return present(self.lake.open(self.key(engine)))

    def commits(self, number: int, before: Callable[[], None] = lambda: None) -> SparkStepCommits:
        return SparkStepCommits(self.spark.newSession(), self.lake, PIPELINE, number, before_commit=before)

    def merge(self, engine: str, wanted: DataFrame, number: int, before: Callable[[], None] = lambda: None) -> int:
        """Merges with one engine; returns the attempts."""
        reach, commits, name = affected_range(wanted), self.commits(number, before), self.tables[engine].name
        if engine == "delta_rs":
            small = SmallMerge(self.table, merge_source(self.table, wanted), reach, batch=number)
            return commits.commit_once_with_delta_rs(name, small.execute, check=lambda: None)
        session = commits._session
        merge, uri = TableMerge(self.table, wanted, reach), self.lake.storage.spark_uri(self.key(engine))
        settings = merge_settings(target_bytes=0, cores=2)
        return commits.commit_once(name, lambda: merge.execute(session, uri, batch=number), settings=settings)

    def rows(self, engine: str) -> list[Any]:
        """Returns all rows with all columns, as Spark reads them."""
        uri = self.lake.storage.spark_uri(self.key(engine))
        columns = [f"CAST({name} AS STRING)" if name in FIELDS else name for name in self.table.column_types()]
        found = self.spark.read.format("delta").load(uri).selectExpr(*columns, "_deleted", "_mutation")
        return sorted(map(repr, found.collect()))


@pytest.mark.parametrize("partition_by", ["org_id", pytest.param("event_date", marks=pytest.mark.integration)])
def test_both_engines_leave_the_same_rows_in_files_that_hold_the_same(
    spark: SparkSession, tmp_path: Path, partition_by: str
) -> None:
    chance = random.Random(f"merges by {partition_by}")
    bench = Bench(spark, tmp_path, partition_by)
    bench.land(1, [arrived(chance, f"1-{number}", org) for org in (*ORGS, None) for number in range(12)])
    bench.land(2, [arrived(chance, f"2-{number}", org) for org in ORGS for number in range(4)])

    wanted = stretches(spark, chance)
    for engine in BOTH:
        assert bench.merge(engine, wanted, 1) == 1
    assert bench.rows("delta_rs") == bench.rows("spark")

    made = {engine: bench.commits(1).find_commit(bench.tables[engine].name) for engine in BOTH}
    figures = {
        engine: [merge_metric(commit, f"numTarget{name}") for name in ("RowsUpdated", "FilesRemoved")]
        for engine, commit in made.items()
    }
    assert figures["delta_rs"] == figures["spark"]
    assert figures["spark"][0] > 10
    assert [engine_of(made[engine]) for engine in BOTH] == list(BOTH)
    told = [commit.metadata for commit in made.values() if commit is not None]
    assert [{**each, "step": ""} for each in told] == [{**told[0], "step": ""}] * 2
    # A merge without changes is recorded as done.
    for engine in BOTH:
        before = bench.opened(engine).file_uris()
        assert bench.merge(engine, wanted, 2) == 1
        assert bench.opened(engine).file_uris() == before
        assert bench.commits(2).has_committed(bench.tables[engine].name)
        assert bench.merge(engine, wanted, 2) == 0


def test_files_of_other_organisations_are_not_read_and_their_statistics_are_preserved(
    spark: SparkSession, tmp_path: Path
) -> None:
    chance = random.Random(2)
    bench = Bench(spark, tmp_path)
    for batch in range(3):
        bench.land(batch, [arrived(chance, f"{batch}-{org}", org) for org in ORGS], ("delta_rs",))
    # Files of an organisation and an id outside every batch: reading them fails.
    only = spark.createDataFrame(
        [("acme", "zz", None, None, "b", False, {}), ("acme", "zzz", None, None, "b", False, {})],
        stretches(spark, chance).schema,
    )
    for file in bench.opened("delta_rs").file_uris():
        Path(file).unlink()

    assert bench.merge("delta_rs", only, 1) == 1

    kept = pa.table(bench.opened("delta_rs").get_add_actions(flatten=True))
    assert kept.num_rows == 3 * len(ORGS)
    assert kept.column("max.origin_contact_id").null_count == 0


def test_statistics_of_rewritten_files_bound_their_rows(spark: SparkSession, tmp_path: Path) -> None:
    bench = Bench(spark, tmp_path)
    row = arrived(random.Random(3), "only", "acme") | {"origin_contact_id": "a", "contact_id": "a"}
    row["event_time"] = START.replace(microsecond=123_456)
    row["origin_order"] = "x" * 31 + "\U0010ffff" * 40
    bench.land(1, [row], ("delta_rs",))
    wanted = spark.createDataFrame(
        [("acme", "a", None, None, "b", False, {"order": "y" * 300})], stretches(spark, random.Random(3)).schema
    )
    bench.merge("delta_rs", wanted, 1)
    uri = bench.lake.storage.spark_uri(bench.key("delta_rs"))

    found = spark.read.format("delta").load(uri)

    assert found.where("event_time >= TIMESTAMP '2026-01-01 00:00:00.123400+00:00'").count() == 1
    assert found.where(f"`order` = '{'y' * 300}'").count() == 1
    assert found.where(f"origin_order > '{'x' * 31}'").count() == 1
    assert found.where("contact_id = 'b' AND _mutation = 1").count() == 1


def test_a_merge_retries_after_a_conflict_and_skips_a_step_committed_meanwhile(
    spark: SparkSession, tmp_path: Path
) -> None:
    chance = random.Random(4)
    bench = Bench(spark, tmp_path)
    bench.land(1, [arrived(chance, f"1-{number}", "acme") for number in range(6)], ("delta_rs",))
    wanted = stretches(spark, chance)
    late = iter([True])

    def another_writer() -> None:
        if next(late, False):
            bench.land(2, [arrived(chance, f"2-{number}", "acme") for number in range(6)], ("delta_rs",))

    assert bench.merge("delta_rs", wanted, 1, another_writer) == 2
    merged = bench.rows("delta_rs")
    assert len(merged) == 12

    # A writer whose snapshot precedes this step, or a later one, cannot commit.
    stale, other = bench.opened("delta_rs"), stretches(spark, chance)
    bench.merge("delta_rs", stretches(spark, chance), 2)
    now = bench.rows("delta_rs")
    for number in (1, 2, 3):
        step = Step(f"{PIPELINE}/mutation/{bench.tables['delta_rs'].name}", number)
        with pytest.raises(ConcurrencyError, match="DELTA_CONFLICT"):
            SmallMerge(bench.table, merge_source(bench.table, other), affected_range(other), batch=number).execute(
                stale, step, json.dumps({})
            )
    assert [bench.merge("delta_rs", wanted, number) for number in (1, 2)] == [0, 0]
    assert bench.rows("delta_rs") == now != merged


def test_delta_rs_merges_only_what_fits_memory_and_what_it_supports(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(5)
    wanted = stretches(spark, chance)
    reach = dataclasses.replace(affected_range(wanted), organisations=("acme",))
    sizes = {}
    for partition_by in ("org_id", "event_date"):
        bench = Bench(spark, tmp_path / partition_by, partition_by)
        bench.land(1, [arrived(chance, f"1-{org}", org) for org in ORGS], ("delta_rs",))
        total = sum(pa.table(bench.opened("delta_rs").get_add_actions()).column("size_bytes").to_pylist())
        plan = plan_merge(bench.lake, bench.key("delta_rs"), bench.table, reach, small_merge_bytes=total)
        assert (plan.engine, plan.reasons) == ("delta_rs", ())
        sizes[partition_by] = plan.target_bytes == total
        refused = plan_merge(
            bench.lake, bench.key("delta_rs"), bench.table, reach, small_merge_bytes=plan.target_bytes - 1
        )
        assert refused.engine == "spark"
        with monkeypatch.context() as patched:
            patched.setattr(engine_choice, "free_memory_bytes", lambda free=plan.target_bytes * 20 - 1: free)
            short = plan_merge(bench.lake, bench.key("delta_rs"), bench.table, reach, small_merge_bytes=total)
        assert "bytes of memory that are free" in short.reasons[0]
        many = dataclasses.replace(reach, periods=200_001)
        assert plan_merge(bench.lake, bench.key("delta_rs"), bench.table, many, small_merge_bytes=total).reasons
    # Only partitions by organisation show which bytes belong to an organisation.
    assert sizes == {"org_id": False, "event_date": True}
    uri = bench.lake.storage.spark_uri(bench.key("delta_rs"))
    spark.sql(f"ALTER TABLE delta.`{uri}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')").collect()
    plan = plan_merge(bench.lake, bench.key("delta_rs"), bench.table, reach, small_merge_bytes=1 << 30)
    assert (plan.engine, plan.reasons) == ("spark", ("deletion vectors",))
