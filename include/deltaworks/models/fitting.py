"""Labels training rows, fits models with pyspark.ml, deterministically, and returns them as SQL expressions.

Spark and DuckDB evaluate labels and models alike. Gold tables score rows with the expression, without the training
library, and evaluation uses the same expression. Its columns are inputs `x0`, `x1`, … as doubles; missing and NaN
values are replaced by the training mean. Fitting does not use the splits of pyspark.ml (`randomSplit`,
`CrossValidator`), which would train on days after the test days.

For labels, feature rows and state rows of an entity are merged by time. The label `begins` is true if the state begins
within the horizon; rows where the state already holds are excluded. The label `absent` is true if the state holds at no
time within the horizon. A state at the time of the row counts as past.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from deltaworks.models.spans import AT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from deltaworks.specs.models import Algorithm


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf of a decision tree."""

    value: float


@dataclass(frozen=True, slots=True)
class Split:
    """A split of a decision tree: values up to the threshold go left."""

    column: int
    threshold: float
    left: Node
    right: Node


Node = Leaf | Split


def input_expression(column: str, mean: float) -> str:
    """Returns the input expression of a column."""
    value = f"CAST({column} AS DOUBLE)"
    return f"coalesce(CASE WHEN isnan({value}) THEN NULL ELSE {value} END, {sql_literal(mean)})"


def logistic_expression(intercept: float, weights: Sequence[float]) -> str:
    """Returns the probability of a logistic regression."""
    terms = [
        sql_literal(intercept),
        *(f"{sql_literal(weight)} * x{index}" for index, weight in enumerate(weights) if weight),
    ]
    return f"1e0 / (1e0 + exp(-({' + '.join(terms)})))"


def boosted_expression(trees: Sequence[Node], weights: Sequence[float]) -> str:
    """Returns the probability of gradient-boosted trees; their sum is half the log-odds (Friedman, "Greedy Function
    Approximation", 2001).
    """
    terms = [f"{sql_literal(weight)} * {tree_expression(tree)}" for tree, weight in zip(trees, weights, strict=True)]
    return f"1e0 / (1e0 + exp(-2e0 * ({' + '.join(terms) or sql_literal(0.0)})))"


def tree_expression(node: Node) -> str:
    """Returns a decision tree as nested CASE expressions."""
    if isinstance(node, Leaf):
        return sql_literal(node.value)
    below, above = tree_expression(node.left), tree_expression(node.right)
    return f"(CASE WHEN x{node.column} <= {sql_literal(node.threshold)} THEN {below} ELSE {above} END)"


def sql_literal(value: float) -> str:
    """Returns an exact double literal for both dialects. Its exponent prevents parsing as a decimal.

    Raises:
        ValueError: the value is not finite.
    """
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    text = repr(float(value))
    text = text if "e" in text else f"{text}e0"
    return f"({text})" if value < 0 else text


Prediction = Literal["begins", "absent"]
#: Column of a state row: whether the state holds.
HOLDS: Final = "holds"
#: Columns of a labelled row: the label, the time when the state next begins (or holds), and the time when it last held.
#: Times are null if there is none.
LABEL, NEXT_AT, LAST_AT = "_label", "_next_at", "_last_at"


def label_query(
    *, rows: str, states: str, entity: Sequence[str], columns: Sequence[str], predicts: Prediction, horizon_seconds: int
) -> str:
    """Returns the query that labels rows.

    Args:
        rows: relation with features: the entity columns, `_at` and `columns`.
        states: relation with states: the entity columns, `_at` and `holds`. Several rows of one time are combined with
            OR.
        entity: the entity columns. Null is an entity.
        columns: further columns of `rows` to keep.
    """
    key = ", ".join(entity)
    carried_columns = "".join(f", {name}" for name in columns)
    null_columns = "".join(f", NULL AS {name}" for name in columns)
    target_column = "began" if predicts == "begins" else "held"
    horizon = f"next_at <= {AT} + {horizon_seconds}"
    label = f"coalesce({horizon}, false)" if predicts == "begins" else f"NOT coalesce({horizon}, false)"
    row_filter = " AND NOT coalesce(held_at = state_at, false)" if predicts == "begins" else ""
    return f"""
        WITH instants AS (
            SELECT {key}, {AT}, max(CASE WHEN {HOLDS} THEN 1 ELSE 0 END) AS state FROM {states} GROUP BY {key}, {AT}
        ), steps AS (
            SELECT *, lag(state) OVER (PARTITION BY {key} ORDER BY {AT}) AS state_before FROM instants
        ), together AS (
            SELECT {key}, {AT}, 0 AS is_row,
                CASE WHEN state = 1 AND coalesce(state_before, 0) = 0 THEN {AT} END AS began,
                CASE WHEN state = 1 THEN {AT} END AS held, {AT} AS stated{null_columns}
            FROM steps
            UNION ALL
            SELECT {key}, {AT}, 1, NULL, NULL, NULL{carried_columns} FROM {rows}
        ), placed AS (
            SELECT *,
                min({target_column}) OVER later AS next_at,
                max(held) OVER earlier AS held_at,
                max(stated) OVER earlier AS state_at
            FROM together
            WINDOW
                later AS (PARTITION BY {key} ORDER BY {AT} DESC, is_row DESC
                    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW),
                earlier AS (PARTITION BY {key} ORDER BY {AT}, is_row
                    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
        )
        SELECT {key}, {AT}, {label} AS {LABEL}, next_at AS {NEXT_AT}, held_at AS {LAST_AT}{carried_columns}
        FROM placed
        WHERE is_row = 1{row_filter}
    """


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
