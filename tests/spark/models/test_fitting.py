"""Spark and DuckDB compute the same labels and scores.

The scores of boosted trees, marked `integration`, have their twin without a JVM in
tests/unit/models/test_expression.py.
"""

from __future__ import annotations

import random
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from deltaworks.models.fitting import LABEL, fit, label_query

COLUMNS = ("errors", "latency")


def rows_of(seed: int = 3) -> list[tuple[str, int, float | None, float]]:
    chance = random.Random(seed)
    rows: list[tuple[str, int, float | None, float]] = []
    for edge in "ab":
        for at in range(120):
            errors = None if chance.random() < 0.1 else chance.random()
            latency = float("nan") if chance.random() < 0.1 else chance.gauss(100, 9)
            rows.append((edge, at * 60, errors, latency))
    return rows


def states_of(rows: list[tuple[str, int, float | None, float]]) -> list[tuple[str, int, bool]]:
    """A state that holds after many errors."""
    return [(edge, at + 60, (errors or 0) > 0.6) for edge, at, errors, _ in rows]


@pytest.mark.parametrize("algorithm", ["logistic", pytest.param("gbt", marks=pytest.mark.integration)])
def test_spark_and_duckdb_give_the_same_labels_and_the_same_scores(spark: SparkSession, algorithm: str) -> None:
    rows = rows_of()
    states = states_of(rows)
    spark.createDataFrame(rows, "edge string, _at long, errors double, latency double").createOrReplaceTempView(
        "made_rows"
    )
    spark.createDataFrame(states, "edge string, _at long, holds boolean").createOrReplaceTempView("made_states")
    sql = label_query(
        rows="made_rows",
        states="made_states",
        entity=("edge",),
        columns=COLUMNS,
        predicts="begins",
        horizon_seconds=120,
    )
    labelled = spark.sql(sql).repartition(1).sortWithinPartitions("edge", "_at").persist()
    by_spark = labelled.toArrow()
    with duckdb.connect(":memory:") as connection:
        connection.register("made_rows", _arrow(spark, "made_rows"))
        connection.register("made_states", _arrow(spark, "made_states"))
        by_duckdb = connection.sql(f"SELECT * FROM ({sql}) ORDER BY edge, _at").to_arrow_table()

        assert _plain(by_spark) == _plain(by_duckdb)
        assert {row[LABEL] for row in by_spark.to_pylist()} == {True, False}
        connection.register("labelled", by_spark)
        model = fit(algorithm, labelled, COLUMNS)  # type: ignore[arg-type]
        scores = [row["score"] for row in model.with_score(labelled, "score").collect()]
        inputs = ", ".join(f"{value} AS x{index}" for index, value in enumerate(model.inputs))
        asked = f"SELECT {model.expression} FROM (SELECT {inputs} FROM labelled)"

        assert [row[0] for row in connection.execute(asked).fetchall()] == pytest.approx(scores, abs=1e-12)
        assert max(scores) - min(scores) > 0.1
        assert scores == pytest.approx(_by_library(algorithm, labelled, model), abs=1e-9)
    labelled.unpersist()
    for view in ("made_rows", "made_states"):
        spark.catalog.dropTempView(view)


def _arrow(spark: SparkSession, view: str) -> Any:
    return spark.table(view).toArrow()


def _plain(table: Any) -> list[tuple[Any, ...]]:
    return [tuple(str(value) for value in row.values()) for row in table.to_pylist()]


def _by_library(algorithm: str, rows: Any, model: Any) -> list[float]:
    """Returns the probabilities of pyspark.ml for the same model."""
    from pyspark.ml.classification import GBTClassifier, LogisticRegression
    from pyspark.ml.feature import VectorAssembler
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions as F

    inputs = [f"{value} AS x{index}" for index, value in enumerate(model.inputs)]
    frame = rows.selectExpr(f"CAST({LABEL} AS DOUBLE) AS label", *inputs)
    vectors = VectorAssembler(inputCols=["x0", "x1"], outputCol="features").transform(frame).persist()
    learner: Any = (
        LogisticRegression(regParam=1e-3, maxIter=100, tol=1e-8)
        if algorithm == "logistic"
        else GBTClassifier(maxIter=20, maxDepth=3, stepSize=0.2, seed=20_251, minInstancesPerNode=20)
    )
    answer = learner.fit(vectors).transform(vectors)
    return [row[0] for row in answer.select(vector_to_array(F.col("probability"))[1]).collect()]
