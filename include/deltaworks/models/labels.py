"""What a model is to predict, made of the instants at which a state held: a query that Spark and DuckDB both read.

Of every entity (a CDN's edge, a viewer) two kinds of rows are laid in one order of time: those with features, and those
that say whether a state held. `begins`: does the state begin to hold within the horizon? A row at which it holds
already is left out. `absent`: does it hold at no instant within the horizon? What is at the instant of a row is past.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from deltaworks.models.spans import AT

Prediction = Literal["begins", "absent"]
#: The column of a row with states: whether it holds.
HOLDS: Final = "holds"
#: The columns of a labelled row: the label, the instant at which the state next began (or held), and since when it last
#: held; both are null where there is none.
LABEL, NEXT_AT, LAST_AT = "_label", "_next_at", "_last_at"


def label_query(
    *, rows: str, states: str, of: Sequence[str], columns: Sequence[str], predicts: Prediction, horizon_seconds: int
) -> str:
    """The query that labels rows.

    Args:
        rows: the relation with features: the columns `of`, `_at` and `columns`.
        states: the relation with states: the columns `of`, `_at` and `holds`. Several of one instant count as one,
            which holds where any of them does.
        of: the columns that name an entity. Null is an entity too.
        columns: further columns of `rows` that are carried along.
    """
    key = ", ".join(of)
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
