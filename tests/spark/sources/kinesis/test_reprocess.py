"""Kinesis records re-read by a reprocess: from the shards while they are retained, then from the archive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.errors import ContractError
from deltaworks.recovery.reprocess.plan import ReprocessRequest
from deltaworks.recovery.reprocess.run import Reprocess, ReprocessResult
from deltaworks.recovery.reprocess.selection import Selection
from tests.crashes import Crash, crash_at
from tests.spark.conftest import Project
from tests.spark.sources.kafka_harness import PIPELINE, ProjectOf
from tests.spark.sources.kinesis.conftest import QueryHarness
from tests.spark.sources.kinesis.test_gap_rows import put, run, with_stream

READ_WITH = PIPELINE.replace("_record.key", "_record.partition_key")
LANDED_WITH = READ_WITH.replace("      - {{name: keyed, path: _record.partition_key, type: string}}\n", "", 1)
ARCHIVED = "archive: {{retain_days: 30}}\n"
MakeStage = Callable[..., QueryHarness]


class Landed:
    """Three batches of a stream that is split after the second, landed without the column that is declared now."""

    def __init__(self, harness: QueryHarness, spark: SparkSession, project_of: ProjectOf, *, archive: bool) -> None:
        self.harness, self.spark = harness, spark
        source = {"kind": "kinesis", "stream": harness.name}
        more = ARCHIVED if archive else ""
        self.project: Project = with_stream(project_of(source, LANDED_WITH + more), harness)
        put(harness, *range(10))
        harness.put("{broken", key="b")
        run(spark, self.project)
        put(harness, *range(10, 20))
        run(spark, self.project)
        harness.split(0)
        put(harness, *range(20, 30))
        run(spark, self.project)
        self.project = with_stream(project_of(source, READ_WITH + more), harness)
        run(spark, self.project)

    def rows(self, *, without: tuple[str, ...] = ("keyed",)) -> list[dict[str, Any]]:
        rows = self.project.rows("shop", "orders")
        kept = [{key: value for key, value in row.items() if key not in without} for row in rows]
        return sorted(kept, key=lambda row: (row["_seq"], row["_position"]))

    def quarantined(self) -> list[dict[str, Any]]:
        rows = self.project.rows("shop", "quarantine")
        return sorted(
            ({**row, "spec_fingerprint": ""} for row in rows), key=lambda row: (row["_seq"], row["_position"])
        )

    def reprocess(self, name: str = "r1", *, fault: str = "", **options: Any) -> ReprocessResult:
        request = ReprocessRequest(**options) if options else None
        return Reprocess(lambda: self.spark, self.project.catalog, "shop", fault=crash_at(fault)).run(name, request)


@pytest.mark.integration
def test_all_records_of_all_shards_are_reread_with_their_ordinals(
    make_harness: MakeStage, spark: SparkSession, project_of: ProjectOf
) -> None:
    landed = Landed(make_harness(), spark, project_of, archive=False)
    before, quarantined = landed.rows(), landed.quarantined()

    with pytest.raises(Crash):
        landed.reprocess(fault="staged", selection=Selection(from_start=True))
    result = landed.reprocess()

    assert result.origins["archive"] == 0
    assert landed.rows() == before
    assert landed.quarantined() == quarantined
    assert [row["keyed"] for row in landed.rows(without=())] == [str(row["number"]) for row in before]


@pytest.mark.integration
def test_sequence_numbers_select_the_shares_that_contain_them(
    make_harness: MakeStage, spark: SparkSession, project_of: ProjectOf
) -> None:
    landed = Landed(make_harness(), spark, project_of, archive=True)
    before = landed.rows()
    (eleventh,) = (
        row["position"] for row in landed.project.rows("shop", "archive") if b'"number": 11}' in (row["value"] or b"")
    )
    name = f"{landed.harness.name}/shardId-000000000000/{eleventh}-{eleventh}"

    landed.reprocess(selection=Selection(offsets=(name,)))

    again = {row["number"] for row in landed.rows(without=()) if row["keyed"] is not None}
    assert again == set(range(10, 20)), "the share of the batch, whole"
    assert landed.rows() == before


@pytest.mark.integration
def test_expired_records_come_from_the_archive_and_are_lost_without_one(
    make_harness: MakeStage, spark: SparkSession, project_of: ProjectOf
) -> None:
    landed = Landed(make_harness(), spark, project_of, archive=True)
    before, quarantined = landed.rows(), landed.quarantined()
    landed.harness.age(30)
    put(landed.harness, 99)

    result = landed.reprocess(selection=Selection(from_start=True))

    assert result.origins["source"] == 0
    assert landed.rows() == before
    assert landed.quarantined() == quarantined
    assert all(row["keyed"] is not None for row in landed.rows(without=()))


@pytest.mark.integration
def test_without_an_archive_expired_records_are_missing_and_nothing_changes(
    make_harness: MakeStage, spark: SparkSession, project_of: ProjectOf
) -> None:
    landed = Landed(make_harness(), spark, project_of, archive=False)
    before = landed.rows(without=())
    landed.harness.age(30)

    with pytest.raises(ContractError, match="declares no archive") as gone:
        landed.reprocess(selection=Selection(from_start=True))

    assert gone.value.condition == "REPROCESS_RECORDS_EXPIRED"
    assert landed.rows(without=()) == before
