"""The SQL that labels rows from the times at which a state held; runs in Spark and DuckDB.

Feature rows and state rows of an entity are merged by time. The label `begins` is true if the state begins within the
horizon; rows where the state already holds are excluded. The label `absent` is true if the state holds at no time
within the horizon. A state at the time of the row counts as past.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from deltaworks.models.spans import AT

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
