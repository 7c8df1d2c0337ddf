"""Fits models with pyspark.ml, deterministically, and returns them as SQL expressions.

Does not use the splits of pyspark.ml (`randomSplit`, `CrossValidator`), which would train on days after the test days.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from deltaworks.models.expression import (
    Leaf,
    Node,
    Split,
    boosted_expression,
    input_expression,
    logistic_expression,
)
from deltaworks.models.labels import LABEL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from deltaworks.specs.models import Algorithm

SEED: Final = 20_251
_BOOSTING_ROUNDS, _TREE_DEPTH, _LEARNING_RATE = 20, 3, 0.2
_REGULARIZATION: Final = 1e-3


@dataclass(frozen=True, slots=True)
class FittedModel:
    """A fitted model: its columns, the expressions of its inputs `x0`, `x1`, …, and the score expression."""

    algorithm: Algorithm
    columns: tuple[str, ...]
    inputs: tuple[str, ...]
    expression: str

    def with_score(self, rows: DataFrame, name: str) -> DataFrame:
        """Adds the score as a column."""
        frame = rows.selectExpr("*", *_aliased_inputs(self.inputs))
        return frame.selectExpr("*", f"{self.expression} AS {name}").drop(*(f"x{at}" for at in range(len(self.inputs))))


def _aliased_inputs(inputs: Sequence[str]) -> list[str]:
    return [f"{value} AS x{index}" for index, value in enumerate(inputs)]


def fit(algorithm: Algorithm, rows: DataFrame, columns: Sequence[str]) -> FittedModel:
    """Fits a model. The last digits depend on the order and partitioning of rows.

    Args:
        rows: with label and columns; both labels must occur.
    """
    from pyspark.ml.feature import VectorAssembler
    from pyspark.sql import functions as F

    inputs = tuple(
        input_expression(name, mean) for name, mean in zip(columns, _column_means(rows, columns), strict=True)
    )
    frame = rows.selectExpr(f"CAST({LABEL} AS DOUBLE) AS label", *_aliased_inputs(inputs))
    assembler = VectorAssembler(inputCols=[f"x{index}" for index in range(len(inputs))], outputCol="features")
    vectors = assembler.transform(frame).select(F.col("label"), F.col("features")).persist()
    try:
        return FittedModel(algorithm, tuple(columns), inputs, _FITTERS[algorithm](vectors))
    finally:
        vectors.unpersist()


def _column_means(rows: DataFrame, columns: Sequence[str]) -> tuple[float, ...]:
    """Returns the mean of each column without missing values; 0 if a column has none."""
    values = [f"CAST({name} AS DOUBLE)" for name in columns]
    aggregates = [f"avg(CASE WHEN isnan({value}) THEN NULL ELSE {value} END)" for value in values]
    row = rows.selectExpr(*aggregates).first()
    return tuple(0.0 if mean is None else float(mean) for mean in row or ())


def _fit_logistic(vectors: DataFrame) -> str:
    from pyspark.ml.classification import LogisticRegression

    # Features are standardized for fitting; the weights are scaled back.
    fitted = LogisticRegression(regParam=_REGULARIZATION, standardization=True, maxIter=100, tol=1e-8).fit(vectors)
    return logistic_expression(float(fitted.intercept), [float(weight) for weight in fitted.coefficients])


def _fit_boosted(vectors: DataFrame) -> str:
    from pyspark.ml.classification import GBTClassifier

    learner = GBTClassifier(
        maxIter=_BOOSTING_ROUNDS, maxDepth=_TREE_DEPTH, stepSize=_LEARNING_RATE, seed=SEED, minInstancesPerNode=20
    )
    fitted = learner.fit(vectors)
    trees = [_convert_node(tree._java_obj.rootNode()) for tree in fitted.trees]
    return boosted_expression(trees, [float(weight) for weight in fitted.treeWeights])


_FITTERS: Final[Mapping[str, Callable[[Any], str]]] = {"logistic": _fit_logistic, "gbt": _fit_boosted}


def _convert_node(node: Any) -> Node:
    """Converts a tree node of pyspark.ml, which is only accessible through the JVM."""
    if node.subtreeDepth() == 0:
        return Leaf(float(node.prediction()))
    split = node.split()
    return Split(
        int(split.featureIndex()),
        float(split.threshold()),
        _convert_node(node.leftChild()),
        _convert_node(node.rightChild()),
    )
