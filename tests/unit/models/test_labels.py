"""The label query matches a scan of all states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.models.fitting import label_query

Row = tuple[str | None, int]
State = tuple[str | None, int, bool]
CONNECTION = duckdb.connect(":memory:")
NAMES = st.sampled_from(["a", "b", None])
ROWS = st.lists(st.tuples(NAMES, st.integers(0, 40)), max_size=12, unique=True)
STATES = st.lists(st.tuples(NAMES, st.integers(0, 40), st.booleans()), max_size=25)


def labelled(rows: list[Row], states: list[State], *, predicts: Literal["begins", "absent"], horizon: int) -> list[Any]:
    sql = label_query(
        rows="rows_", states="states_", entity=("edge",), columns=("x",), predicts=predicts, horizon_seconds=horizon
    )
    CONNECTION.execute(f"CREATE OR REPLACE TEMP VIEW rows_ AS {relation(rows)}")
    CONNECTION.execute(f"CREATE OR REPLACE TEMP VIEW states_ AS {relation(states)}")
    return sorted(CONNECTION.execute(sql).fetchall(), key=repr)


def relation(rows: Sequence[Row | State]) -> str:
    """Returns rows or states as a query; rows have a column x."""
    values = [f"({', '.join('NULL' if value is None else repr(value) for value in row)}, 1.0)" for row in rows]
    typed = "SELECT edge::VARCHAR AS edge, _at::BIGINT AS _at, {last} FROM (VALUES {values}) AS v({names})"
    if rows and len(rows[0]) == 2:
        return typed.format(last="x::DOUBLE AS x", values=", ".join(values), names="edge, _at, x")
    if rows:
        return typed.format(last="holds::BOOLEAN AS holds", values=", ".join(values), names="edge, _at, holds, x")
    return "SELECT NULL::VARCHAR AS edge, 0::BIGINT AS _at, true AS holds, 1.0::DOUBLE AS x WHERE false"


def looked_at(rows: list[Row], states: list[State], *, predicts: str, horizon: int) -> list[Any]:
    answer = []
    for edge, at in rows:
        held: dict[int, bool] = {}
        for name, instant, holds in states:
            if name == edge:
                held[instant] = held.get(instant, False) or holds
        instants = sorted(held)
        began = [
            instant
            for place, instant in enumerate(instants)
            if held[instant] and (place == 0 or not held[instants[place - 1]])
        ]
        awaited = began if predicts == "begins" else [instant for instant in instants if held[instant]]
        later = [instant for instant in awaited if instant > at]
        soon = bool(later) and later[0] <= at + horizon
        before = [instant for instant in instants if instant <= at]
        if predicts == "begins" and before and held[before[-1]]:
            continue
        last = max((instant for instant in before if held[instant]), default=None)
        label = soon if predicts == "begins" else not soon
        answer.append((edge, at, label, later[0] if later else None, last, 1.0))
    return sorted(answer, key=repr)


@pytest.mark.parametrize("predicts", ["begins", "absent"])
@settings(max_examples=60)
@given(rows=ROWS, states=STATES, horizon=st.integers(1, 15))
def test_labels_match_a_scan_of_all_states(
    predicts: Literal["begins", "absent"], rows: list[Row], states: list[State], horizon: int
) -> None:
    assert labelled(rows, states, predicts=predicts, horizon=horizon) == looked_at(
        rows, states, predicts=predicts, horizon=horizon
    )


def test_rows_where_the_state_holds_are_excluded() -> None:
    states: list[State] = [("a", 10, True), ("a", 11, False), ("a", 20, True)]

    answer = labelled([("a", 9), ("a", 10), ("a", 11)], states, predicts="begins", horizon=9)

    assert answer == [("a", 11, True, 20, 10, 1.0), ("a", 9, True, 10, None, 1.0)]


def test_a_state_at_the_time_of_a_row_is_past() -> None:
    assert labelled([("a", 10)], [("a", 10, True)], predicts="absent", horizon=5)[0][2] is True
    assert labelled([("a", 10)], [("a", 15, True)], predicts="absent", horizon=5)[0][2] is False
    assert labelled([("a", 10)], [("a", 16, True)], predicts="absent", horizon=5)[0][2] is True
