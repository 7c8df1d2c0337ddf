"""Labels and features of a model match a scan of all states, by arrival and event time; no fold overlaps another."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.models.alarms import average_precision
from deltaworks.models.fitting import LABEL, label_query
from deltaworks.models.spans import DAY_SECONDS, Fold, Span, end_of_labels, rolling_folds, training_span
from tests.unit.gold.gold_planning import empty_database, in_duckdb
from tests.unit.models.edge_data import BY_EVENT_TIME, SHIPPED, Signal, minutes

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


HORIZONS = st.integers(60, 40 * DAY_SECONDS)


def spans(fold: Fold) -> tuple[Span, Span, Span, Span]:
    parts = (fold.training.fit_rows, fold.training.selection_rows, fold.training.all_rows, fold.test)
    assert all(isinstance(part, Span) for part in parts)
    return parts  # type: ignore[return-value]


def last_label(span: Span, horizon: int) -> int:
    """Returns the last time covered by a span's labels."""
    return span.end - 1 + horizon


@given(HORIZONS, st.integers(1, 60), st.integers(1, 30), st.integers(1, 8), st.integers(20_000, 22_000))
def test_no_training_label_overlaps_the_test(
    horizon: int, train_days: int, test_days: int, count: int, end_day: int
) -> None:
    days = max(train_days, -(-2 * horizon // DAY_SECONDS))

    folds = rolling_folds(
        end=end_day * DAY_SECONDS, train_days=days, test_days=test_days, count=count, gap_seconds=horizon
    )

    assert len(folds) == count
    for fold in folds:
        fitted, chosen, whole, test = spans(fold)
        assert last_label(fitted, horizon) < chosen.start
        assert last_label(whole, horizon) < test.start
        assert (whole.start, whole.end) == (fitted.start, chosen.end)
        assert fitted.start < fitted.end
        assert test.end - test.start == test_days * DAY_SECONDS
    tests = [spans(fold)[3] for fold in folds]
    assert all(before.end == after.start for before, after in itertools.pairwise(tests))
    assert tests[-1].end == end_day * DAY_SECONDS


def test_without_the_gap_training_labels_would_overlap_the_test() -> None:
    horizon = 28 * DAY_SECONDS

    (fold,) = rolling_folds(end=20_000 * DAY_SECONDS, train_days=84, test_days=7, count=1, gap_seconds=0)

    _, _, whole, test = spans(fold)
    assert last_label(whole, horizon) >= test.start


@given(st.integers(0, 10**9), HORIZONS)
def test_every_row_before_the_end_has_a_label(known_until: int, horizon: int) -> None:
    end = end_of_labels(known_until, horizon)

    assert end % DAY_SECONDS == 0
    assert end - 1 + horizon < known_until
    assert known_until - horizon - end < DAY_SECONDS


def test_a_span_is_half_open_in_sql() -> None:
    assert Span(5, 7).condition == "(_at >= 5 AND _at < 7)"
    assert training_span(end=8 * DAY_SECONDS, train_days=8, gap_seconds=60).selection_rows == Span(
        6 * DAY_SECONDS, 8 * DAY_SECONDS
    )


def area_of_errors(signal: Signal, *, by_event_time: bool = False) -> tuple[float, float]:
    """Returns the area of the recent error share as a score, and the positive rate."""
    features = (SHIPPED / "gold" / "edge_features.sql").read_text()
    for written, instead in BY_EVENT_TIME.items():
        assert written in features
        features = features.replace(written, instead) if by_event_time else features
    label = (SHIPPED / "models" / "edge_failure.sql").read_text()
    rows = [
        {**row, "minute": row["event_time"], "event_date": row["event_time"].date()} for row in minutes(signal=signal)
    ]
    with empty_database() as connection:
        connection.register("edge_arrivals", pa.Table.from_pylist(rows))
        for name, sql in {"feature_rows": features, "states": label}.items():
            connection.execute(
                f"CREATE TEMP TABLE {name} AS SELECT *, epoch(minute)::BIGINT AS _at FROM ({in_duckdb(sql)})"
            )
        labelled = label_query(
            rows="feature_rows",
            states="states",
            entity=("cdn", "edge"),
            columns=("error_5",),
            predicts="begins",
            horizon_seconds=900,
        )
        answer = connection.sql(labelled).to_arrow_table()
    labels = answer[LABEL].to_numpy()
    return average_precision(labels, np.nan_to_num(answer["error_5"].to_numpy())), float(labels.mean())


def test_only_errors_that_precede_slowness_predict_it() -> None:
    announced, share = area_of_errors("announced")
    chance, _ = area_of_errors("none")

    assert announced > 3 * share
    assert chance < 2 * share


def test_late_errors_predict_only_by_event_time(
    record_property: Callable[[str, object], None],
) -> None:
    honest, share = area_of_errors("late")
    dazzled, _ = area_of_errors("late", by_event_time=True)

    figures: Mapping[str, float] = {"by arrival": honest, "by event time": dazzled, "positive": share}
    record_property("summary", ", ".join(f"{name} {value:.3f}" for name, value in figures.items()))
    assert honest < 1.5 * share
    assert dazzled > 3 * share
