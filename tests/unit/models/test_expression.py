"""Models and baselines: SQL expressions equal the models, and rates are shrunk towards larger groups."""

from __future__ import annotations

import math
from collections import defaultdict

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.models.baselines import LabelledRows, fit_baseline
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


HOUR = 3_600
ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 400), st.booleans(), st.one_of(st.none(), st.integers(0, 10))),
    min_size=1,
    max_size=40,
)
Plain = tuple[int, int, bool, int | None]


def labelled(rows: list[Plain]) -> LabelledRows:
    at = np.asarray([hour * HOUR for _, hour, _, _ in rows], dtype=np.int64)
    ages = np.asarray([np.nan if age is None else age * 60.0 for *_, age in rows])
    return LabelledRows(
        np.asarray([entity for entity, *_ in rows], dtype=np.int64),
        at,
        np.asarray([label for _, _, label, _ in rows]),
        np.full(len(rows), np.nan),
        at - ages,
    )


def rate(labels: list[bool], prior: float) -> float:
    return (sum(labels) + 20 * prior) / (len(labels) + 20)


@given(ROWS, ROWS)
def test_persistence_is_the_rate_by_the_age_of_the_state(training: list[Plain], rows: list[Plain]) -> None:
    def step(age: int | None) -> int:
        return -1 if age is None else (age + 1).bit_length() - 1

    groups: dict[int, list[bool]] = defaultdict(list)
    for *_, label, age in training:
        groups[step(age)].append(label)
    overall = sum(label for _, _, label, _ in training) / len(training)

    scores = fit_baseline("persistence", labelled(training))(labelled(rows))

    expected = [rate(groups[step(age)], overall) if step(age) in groups else overall for *_, age in rows]
    assert scores == pytest.approx(expected)


@given(ROWS, ROWS)
def test_seasonal_is_the_rate_of_an_entity_at_an_hour_of_the_week(training: list[Plain], rows: list[Plain]) -> None:
    hours: dict[int, list[bool]] = defaultdict(list)
    own: dict[tuple[int, int], list[bool]] = defaultdict(list)
    for entity, hour, label, _ in training:
        hours[hour % 168].append(label)
        own[entity, hour % 168].append(label)
    overall = sum(label for _, _, label, _ in training) / len(training)

    def expected(entity: int, hour: int) -> float:
        of_hour = rate(hours[hour % 168], overall) if hour % 168 in hours else overall
        key = (entity, hour % 168)
        return rate(own[key], of_hour) if key in own else of_hour

    scores = fit_baseline("seasonal", labelled(training))(labelled(rows))

    assert scores == pytest.approx([expected(entity, hour) for entity, hour, _, _ in rows])
