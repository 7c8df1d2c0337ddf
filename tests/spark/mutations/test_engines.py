"""A batch applied without Spark leaves the same rows in every table as one applied by Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.mutations.apply import MutationRun
from tests.spark.mutations.cases import generated
from tests.spark.mutations.interleaving import Interleaving, request
from tests.spark.mutations.mutation_harness import DATA, PIPELINE, TOLD, MutationHarness, declared

TABLES = (DATA, TOLD, "names", "intervals")
#: The commit of a merge has another version where the engines commit differently often.
_VARYING = {"ingested_at", "data_version"}


def rows(stage: MutationHarness, table: str) -> list[str]:
    found = [{name: value for name, value in each.items() if name not in _VARYING} for each in stage.rows(table)]
    return sorted(repr({name: _comparable(value) for name, value in sorted(each.items())}) for each in found)


def _comparable(value: Any) -> Any:
    is_map = isinstance(value, list) and bool(value) and isinstance(value[0], tuple)
    return sorted(value, key=repr) if is_map else value


@pytest.mark.integration
@pytest.mark.parametrize("parts", [1, 3])
def test_both_engines_leave_the_same_rows(spark: SparkSession, tmp_path: Path, parts: int) -> None:
    sizes = {"spark": 0, "process": 20_000}
    stages = {
        engine: MutationHarness(tmp_path / engine, declared(partition_by=("event_date",), small_batch_requests=size))
        for engine, size in sizes.items()
    }
    cases = Interleaving(generated(60, start=9), parts=parts, seed=9)
    names = [
        [request("o0", time, "rename_name", each, name=f"{each} at {time}") for time, each in ((part, "a"), (3, "b"))]
        for part in range(parts)
    ]

    for part in range(parts):
        for engine, stage in stages.items():
            stage.land(rows=cases.rows[part], requests=[*cases.requests[part], *names[part]])
            (end,) = MutationRun(lambda: spark, stage.catalog, PIPELINE).run().batches
            assert end.engine == engine

    for table in TABLES:
        assert rows(stages["process"], table) == rows(stages["spark"], table), table
    assert rows(stages["process"], TOLD)
    assert rows(stages["process"], "names")


@pytest.mark.integration
def test_a_batch_that_this_process_begins_is_completed_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    stage = MutationHarness(tmp_path, declared(partition_by=("event_date",), small_batch_requests=1))
    cases = Interleaving(generated(10, start=3), parts=1, seed=3)
    stage.land(rows=cases.rows[0], requests=cases.requests[0])

    left = MutationRun(None, stage.catalog, PIPELINE).run()
    done = MutationRun(lambda: spark, stage.catalog, PIPELINE).run()

    assert left.spark_reason
    assert [end.engine for end in done.completed] == ["spark"]
    assert done.batches == []
