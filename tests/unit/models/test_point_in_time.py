"""Features by arrival and by event time, with the shipped SQL in DuckDB."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa

from deltaworks.models.alarms import average_precision
from deltaworks.models.fitting import LABEL, label_query
from tests.unit.gold.gold_planning import empty_database, in_duckdb
from tests.unit.models.edge_data import BY_EVENT_TIME, SHIPPED, Signal, minutes


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
