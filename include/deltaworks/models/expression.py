"""A fitted model as an SQL expression, which Spark and DuckDB read alike.

So gold scores rows in its ordinary pass, without the library that fitted the model; a judge of a model judges the very
expression that is published. Columns are taken as `x0`, `x1`, …: as doubles, what is absent or not a number replaced by
the mean of training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Leaf:
    """The end of a way through a tree."""

    value: float


@dataclass(frozen=True, slots=True)
class Split:
    """A question of a tree: values up to the threshold go to `below`, all others to `above`."""

    column: int
    threshold: float
    left: Node
    right: Node


Node = Leaf | Split


def input_expression(column: str, mean: float) -> str:
    """The value a model takes of a column."""
    value = f"CAST({column} AS DOUBLE)"
    return f"coalesce(CASE WHEN isnan({value}) THEN NULL ELSE {value} END, {sql_literal(mean)})"


def logistic_expression(intercept: float, weights: Sequence[float]) -> str:
    """The probability of a logistic regression."""
    terms = [
        sql_literal(intercept),
        *(f"{sql_literal(weight)} * x{index}" for index, weight in enumerate(weights) if weight),
    ]
    return f"1e0 / (1e0 + exp(-({' + '.join(terms)})))"


def boosted_expression(trees: Sequence[Node], weights: Sequence[float]) -> str:
    """The probability of gradient-boosted trees, whose sum is half the logarithm of the odds (Friedman, "Greedy
    Function Approximation", 2001)."""
    terms = [f"{sql_literal(weight)} * {tree_expression(tree)}" for tree, weight in zip(trees, weights, strict=True)]
    return f"1e0 / (1e0 + exp(-2e0 * ({' + '.join(terms) or sql_literal(0.0)})))"


def tree_expression(node: Node) -> str:
    """The value of the leaf that a row comes to."""
    if isinstance(node, Leaf):
        return sql_literal(node.value)
    below, above = tree_expression(node.left), tree_expression(node.right)
    return f"(CASE WHEN x{node.column} <= {sql_literal(node.threshold)} THEN {below} ELSE {above} END)"


def sql_literal(value: float) -> str:
    """A double as both dialects read it, to its last bit; without an exponent a literal would be a decimal.

    Raises:
        ValueError: it is not finite.
    """
    if not math.isfinite(value):
        raise ValueError(f"{value} is no finite number")
    text = repr(float(value))
    text = text if "e" in text else f"{text}e0"
    return f"({text})" if value < 0 else text
