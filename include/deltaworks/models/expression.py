"""Translates fitted models to SQL expressions that Spark and DuckDB evaluate alike.

Gold tables score rows with the expression, without the training library, and evaluation uses the same expression.
Columns are inputs `x0`, `x1`, … as doubles; missing and NaN values are replaced by the training mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


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
