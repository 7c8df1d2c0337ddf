"""Price over the earnings of ten years, as Robert Shiller publishes it, by a gold table over his monthly figures."""

from __future__ import annotations

import csv
import datetime as dt
from pathlib import Path

import pytest

from deltaworks.testing import declare_pipeline, declare_table
from tests.unit.pipelines.shipped_lake import ShippedLake

PLACE = {"kind": "s3_sqs", "relay": "landing", "bucket": "deltaworks-landing", "prefix": "index_months/"}
INDEX_PE = {"name": "index_pe", "sql": "gold/index_pe.sql", "reads": ["months"], "partition_by": "event_date"}
PIPELINE = declare_pipeline(
    declare_table(
        "months",
        "price double from SP500 required",
        "earnings double from Earnings",
        "real_price double from Real Price",
        "real_earnings double from Real Earnings",
    ),
    pipeline="index_months",
    source=PLACE | {"format": "csv", "budget": {"max_partitions": 20000}},
    event={"name": {"constant": "month"}, "time": {"path": "Date"}, "id": "Date"},
    gold={
        "dedupe": {"by": "event_id", "within_days": 0},
        "tables": [INDEX_PE | {"affects": {"months": "onwards"}}],
    },
)
#: Earnings that are not known yet are written as 0. The month itself is not among those before it.
SQL = """\
WITH before AS (
  SELECT event_date, price, earnings, real_price,
    avg(nullif(real_earnings, 0)) OVER ten_years AS mean, count(nullif(real_earnings, 0)) OVER ten_years AS known
  FROM months
  WINDOW ten_years AS (ORDER BY event_date ROWS BETWEEN 120 PRECEDING AND 1 PRECEDING)
)
SELECT event_date, price / nullif(earnings, 0) AS pe,
  CASE WHEN known = 120 AND real_price > 0 THEN real_price / mean END AS pe10
FROM before
"""
WITH_THE_MONTH = ("120 PRECEDING AND 1 PRECEDING", "119 PRECEDING AND CURRENT ROW")


def answers(folder: Path, data: bytes, sql: str = SQL) -> dict[dt.date, tuple[float | None, float | None]]:
    """P/E and PE10 by month; the newer half of them lands before the older one, and some come twice."""
    own = {"index_months/pipeline.yaml": PIPELINE, "index_months/gold/index_pe.sql": sql}
    lake = ShippedLake(folder, own=own)
    header, *lines = data.splitlines()
    for part in (lines[900:], lines[:910]):
        lake.land("index_months", (f"index_months/{len(part)}.csv", b"\n".join([header, *part, b""])))
        lake.build("index_months")
    return {row[0]: row[1:] for row in lake.rows("SELECT event_date, pe, pe10 FROM index_months.index_pe")}


@pytest.mark.integration
@pytest.mark.parametrize(("edit", "right"), [(("", ""), 1_710), (WITH_THE_MONTH, 416)])
def test_ten_years_of_earnings_before_a_month_give_the_published_ratio(
    tmp_path: Path, shared_facts: Path, edit: tuple[str, str], right: int
) -> None:
    header, *lines = (shared_facts / "shiller_sp500_monthly.csv").read_text().splitlines()
    # A century later: times before 1900 are none that events may have.
    data = "\n".join([header, *(f"{int(line[:4]) + 100}{line[4:]}" for line in lines)]).encode()
    computed = answers(tmp_path, data, SQL.replace(*edit) if edit[0] else SQL)

    rows = list(csv.DictReader(data.decode().splitlines()))
    published = {
        dt.date.fromisoformat(row["Date"]): float(row["PE10"])
        for row in rows
        if float(row["PE10"]) and float(row["Earnings"])
    }
    within = [
        month for month, ratio in published.items() if (own := computed[month][1]) and abs(own / ratio - 1) < 0.001
    ]
    unknown = [dt.date.fromisoformat(row["Date"]) for row in rows if not float(row["Earnings"])]

    assert (len(computed), len(published), len(within)) == (1_866, 1_710, right)
    # No earnings are no infinite ratio.
    assert (len(unknown), {computed[month][0] for month in unknown}) == (36, {None})
