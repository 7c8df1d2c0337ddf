"""Resolve matches the documented examples and the replay of generated logs, row by row."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from deltaworks.mutations.resolve import INTERVAL_SCHEMA, resolve
from deltaworks.tables.spark.session import override_settings
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
