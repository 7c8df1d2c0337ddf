"""SQL expressions of models equal the models, exactly where no exponential is involved."""

from __future__ import annotations

import math

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.models.fitting import (
    Leaf,
    Node,
    Split,
    boosted_expression,
    input_expression,
    logistic_expression,
    sql_literal,
    tree_expression,
)

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=64)
SMALL = st.floats(-5, 5)
TREES = st.recursive(
    st.builds(Leaf, SMALL), lambda nodes: st.builds(Split, st.integers(0, 2), SMALL, nodes, nodes), max_leaves=8
)
INPUTS = st.tuples(SMALL, SMALL, SMALL)


CONNECTION = duckdb.connect(":memory:")


def asked_of_duckdb(expression: str, inputs: tuple[float, ...] = ()) -> float:
    columns = ", ".join(f"?::DOUBLE AS x{index}" for index in range(len(inputs))) or "1 AS nothing"
    answer = CONNECTION.execute(f"SELECT {expression} FROM (SELECT {columns})", list(inputs)).fetchall()
    return float(answer[0][0])


def value_of(node: Node, inputs: tuple[float, ...]) -> float:
    while isinstance(node, Split):
        node = node.left if inputs[node.column] <= node.threshold else node.right
    return node.value


@given(FINITE)
def test_a_number_literal_is_exact(value: float) -> None:
    assert asked_of_duckdb(f"{sql_literal(value)} + 0e0") == value


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_numbers_are_rejected(value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        sql_literal(value)


@settings(max_examples=40)
@given(TREES, INPUTS)
def test_a_tree_gives_the_value_of_its_leaf(tree: Node, inputs: tuple[float, ...]) -> None:
    assert asked_of_duckdb(tree_expression(tree), inputs) == value_of(tree, inputs)


@settings(max_examples=25)
@given(st.lists(st.tuples(TREES, SMALL), min_size=1, max_size=3), INPUTS)
def test_boosted_trees_give_a_probability(trees: list[tuple[Node, float]], inputs: tuple[float, ...]) -> None:
    margin = sum(weight * value_of(tree, inputs) for tree, weight in trees)

    score = asked_of_duckdb(boosted_expression([tree for tree, _ in trees], [weight for _, weight in trees]), inputs)

    assert score == pytest.approx(1 / (1 + math.exp(-2 * margin)), abs=1e-12)


@settings(max_examples=25)
@given(SMALL, INPUTS, INPUTS)
def test_a_logistic_regression_gives_a_probability(
    intercept: float, weights: tuple[float, ...], inputs: tuple[float, ...]
) -> None:
    margin = intercept + sum(weight * value for weight, value in zip(weights, inputs, strict=True))

    score = asked_of_duckdb(logistic_expression(intercept, weights), inputs)

    assert score == pytest.approx(1 / (1 + math.exp(-margin)), abs=1e-12)


@pytest.mark.parametrize(
    ("column", "value"), [("NULL", 2.5), ("'NaN'::DOUBLE", 2.5), ("7", 7.0), ("1.5::DECIMAL(3,1)", 1.5)]
)
def test_missing_values_become_the_training_mean(column: str, value: float) -> None:
    assert asked_of_duckdb(input_expression(column, 2.5)) == value
