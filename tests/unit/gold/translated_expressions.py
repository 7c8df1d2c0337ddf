"""Expressions in Spark's dialect whose plain translation has another value in DuckDB, with Spark's values.

`tests/spark/gold/test_previews.py` evaluates them with Spark, `test_translation.py` with DuckDB.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

VALUES: Final[dict[str, Any]] = {
    "dayofweek(DATE'2026-03-01')": 1,
    "dayofweek(DATE'2026-03-07')": 7,
    "weekday(DATE'2026-03-01')": 6,
    "weekday(DATE'2026-03-02')": 0,
    "substring('abc', 0, 2)": "ab",
    "pmod(-7, 3)": 2,
    "pmod(-7 - 1, 3)": 1,
    "bround(2.5D)": 2.0,
    "bround(2.25D, 1)": 2.2,
    "unix_timestamp(TIMESTAMP'2026-03-01 00:00:00.9')": 1772323200,
    "unix_timestamp('2026-03-01 00:00:00')": 1772323200,
    "floor(-1.5D)": -2,
    "ceil(1.2D)": 2,
    "log10(0D)": None,
    "log10(1000D)": 3.0,
    "ln(-1D)": None,
    "date_add(DATE'2026-02-28', 1)": dt.date(2026, 3, 1),
    "date_sub(DATE'2026-03-01', 1)": dt.date(2026, 2, 28),
    "add_months(DATE'2026-01-31', 1)": dt.date(2026, 2, 28),
    "trunc(DATE'2026-03-09', 'MM')": dt.date(2026, 3, 1),
    "trunc(DATE'2026-03-09', 'YY')": dt.date(2026, 1, 1),
    "timestampdiff(MINUTE, TIMESTAMP'2026-03-01 00:00:30', TIMESTAMP'2026-03-01 00:01:29')": 0,
    "datediff(HOUR, TIMESTAMP'2026-03-01 00:30:00', TIMESTAMP'2026-03-01 01:29:00')": 0,
    "datediff(DATE'2026-03-09', DATE'2026-03-01')": 8,
    "percentile(x, 0.5)": 1.5,
    "count_if(x > NULL)": 0,
    "count_if(x > 1)": 1,
    "date_add(trunc(DATE'2026-03-09', 'MM'), pmod(-1, 7))": dt.date(2026, 3, 7),
}
#: The rows over which they are evaluated.
ROWS: Final = "(SELECT 1 AS x UNION ALL SELECT 2 AS x) AS numbers"


def query_of(expression: str) -> str:
    """Returns a query with the expression as its only column; aggregates are over two rows."""
    return f"SELECT {expression} AS value FROM {ROWS}"
