"""Test data of a market: prices joined with the earnings known at the time, with DuckDB's ASOF join as the oracle.

Facts come from 10-K forms in `shared/data/fundamentals`, prices are Apple's; late and restated facts are invented.
"""

from __future__ import annotations

import csv
import datetime as dt
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Protocol

import duckdb
import pyarrow as pa

from tests.shared_data import SHARED_DATA

FIRST, LAST = dt.date(2010, 10, 20), dt.date(2011, 12, 20)
MARKET = """\
pipeline: market
description: prices, and the earnings that were known
owner: tests
source: {kind: s3_sqs, relay: landing, bucket: landing}
event: {name: {path: name}, time: {path: time}}
tables:
  - name: prices
    when: {name: price}
    columns:
      - {name: ticker, path: ticker, type: string}
      - {name: close, path: close, type: "decimal(18,4)"}
  - name: facts
    when: {name: fact}
    columns:
      - {name: ticker, path: ticker, type: string}
      - {name: accession, path: accession, type: string}
      - {name: filed, path: filed, type: date}
      - {name: period_end, path: period_end, type: date}
      - {name: eps, path: eps, type: "decimal(18,4)"}
references:
  - name: splits
    file: reference/splits.csv
    key: [ticker, ex_date]
    effective_date: ex_date
    columns:
      - {name: ticker, type: string}
      - {name: ex_date, type: date}
      - {name: ratio, type: "decimal(9,4)"}
gold:
  tables:
    - name: eps_known
      sql: gold/eps_known.sql
      reads: [facts]
      partition_by: valid_year
      affects: all
      checks: {intervals: {by: ticker, from: valid_from, to: valid_to}}
    - name: price_with_eps
      sql: gold/price_with_eps.sql
      reads: [prices, eps_known, splits]
      partition_by: price_date
      affects: {prices: {days: [0]}, eps_known: onwards, splits: onwards}
      checks: {unique: [ticker, price_date]}
"""
EPS_KNOWN = """\
WITH known AS (
  SELECT ticker, CAST(date_add(filed, 1) AS DATE) AS valid_from,
    max(named_struct('period_end', period_end, 'filed', filed, 'accession', accession, 'eps', eps))
      OVER (PARTITION BY ticker ORDER BY filed) AS fact
  FROM facts WHERE filed IS NOT NULL
), points AS (SELECT ticker, valid_from, max(fact) AS fact FROM known GROUP BY ticker, valid_from)
SELECT ticker, valid_from, lead(valid_from) OVER (PARTITION BY ticker ORDER BY valid_from) AS valid_to,
  year(valid_from) AS valid_year, fact.eps, fact.filed
FROM points
"""
PRICE_WITH_EPS = """\
SELECT p.event_date AS price_date, p.ticker, p.close, e.eps, e.filed,
  CASE WHEN e.eps > 0 AND datediff(p.event_date, e.filed) <= 400
    THEN CAST(p.close AS DOUBLE) * coalesce(s.ratio, 1) / CAST(e.eps AS DOUBLE) END AS pe
FROM prices p
LEFT JOIN eps_known e
  ON e.ticker = p.ticker AND e.valid_from <= p.event_date AND (e.valid_to IS NULL OR p.event_date < e.valid_to)
LEFT JOIN (
  SELECT q.ticker, q.event_date, exp(sum(ln(CAST(r.ratio AS DOUBLE)))) AS ratio
  FROM prices q JOIN splits r ON r.ticker = q.ticker AND r.ex_date <= q.event_date GROUP BY q.ticker, q.event_date
) s ON s.ticker = p.ticker AND s.event_date = p.event_date
"""
SPLITS = "ticker,ex_date,ratio\nOTHER,2011-01-03,2\n"
#: A native ASOF join over the newest fact of each time, independent of intervals.
ORACLE = """
WITH points AS (
  SELECT a.ticker, a.filed + 1 AS known_from, arg_max(b.eps, (b.period_end, b.filed, b.accession)) AS eps,
    arg_max(b.filed, (b.period_end, b.filed, b.accession)) AS filed
  FROM facts a JOIN facts b ON a.ticker = b.ticker AND b.filed <= a.filed GROUP BY a.ticker, a.filed
), adjusted AS (
  SELECT p.ticker, p.day, coalesce(product(s.ratio), 1) AS ratio
  FROM prices p LEFT JOIN splits s ON s.ticker = p.ticker AND s.ex_date <= p.day GROUP BY ALL
)
SELECT p.day, p.ticker, p.close, e.eps, e.filed,
  CASE WHEN e.eps > 0 AND p.day - e.filed <= 400 THEN p.close::DOUBLE * ratio / e.eps::DOUBLE END AS pe
FROM prices p JOIN adjusted USING (ticker, day) ASOF LEFT JOIN points e
  ON p.ticker = e.ticker AND p.day >= e.known_from
"""
Fact = dict[str, Any]
#: By date and ticker: close, EPS, filing date, P/E ratio.
Answer = dict[tuple[Any, ...], tuple[Any, ...]]


def apple_prices() -> list[dict[str, Any]]:
    with (SHARED_DATA / "stock_prices" / "AAPL.csv").open() as file:
        rows = [(dt.date.fromisoformat(row["Date"]), Decimal(row["Close"])) for row in csv.DictReader(file)]
    return [price("AAPL", day, close) for day, close in rows if FIRST <= day <= LAST]


def annual_facts() -> list[Fact]:
    with (SHARED_DATA / "fundamentals" / "sec_eps_basic.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["filing_date"] and row["form"].startswith("10-K")]
    return [
        fact(row["ticker"], row["filing_date"], row["period_end"], row["eps_basic_net"], row["accession_no"])
        for row in rows
        if 350 <= int(row["period_days"]) <= 380
    ]


def price(ticker: str, day: dt.date, close: Decimal) -> dict[str, Any]:
    return {"event_time": dt.datetime.combine(day, dt.time(21), dt.UTC), "ticker": ticker, "close": close}


def fact(ticker: str, filed: str, period_end: str, eps: str, accession: str) -> Fact:
    day = dt.date.fromisoformat(filed)
    return {
        "event_time": dt.datetime.combine(day, dt.time(12), dt.UTC),
        "ticker": ticker,
        "accession": accession,
        "filed": day,
        "period_end": dt.date.fromisoformat(period_end),
        "eps": Decimal(eps),
    }


class Rows:
    """The landed rows as lists, and the expected join."""

    def __init__(self) -> None:
        self.prices: list[dict[str, Any]] = []
        self.facts: list[Fact] = []
        self.splits = SPLITS

    def oracle(self) -> Answer:
        prices = [row | {"day": row["event_time"].date()} for row in self.prices]
        splits = [line.split(",") for line in self.splits.splitlines()[1:]]
        with duckdb.connect(":memory:") as connection:
            connection.register("prices", pa.Table.from_pylist(prices))
            connection.register("facts", pa.Table.from_pylist(self.facts))
            connection.execute("CREATE TABLE splits (ticker VARCHAR, ex_date DATE, ratio DOUBLE)")
            connection.executemany("INSERT INTO splits VALUES (?, ?, ?)", splits)
            return {(row[0], row[1]): row[2:] for row in connection.execute(ORACLE).fetchall()}

    def hold(self, answer: Answer) -> None:
        """Compares an answer with the oracle, row by row."""
        oracle = self.oracle()
        assert answer.keys() == oracle.keys()
        for place, (close, eps, filed, pe) in oracle.items():
            assert answer[place][:3] == (close, eps, filed), place
            assert (answer[place][3] is None) == (pe is None), place
            assert pe is None or math.isclose(answer[place][3], pe, rel_tol=1e-9), place


def answer_of(rows: list[dict[str, Any]]) -> Answer:
    """Returns the rows of the gold table by date and ticker."""
    columns = ("close", "eps", "filed", "pe")
    answer = {(row["price_date"], row["ticker"]): tuple(row[name] for name in columns) for row in rows}
    assert len(answer) == len(rows)
    return answer


def facts_of(answer: Answer) -> Answer:
    """Returns joined values (close, EPS, filing date) by date and ticker."""
    return {place: row[:3] for place, row in answer.items()}


class Market(Protocol):
    """A project with the pipeline, and how to land rows and build gold."""

    rows: Rows

    def land(self, *, prices: Sequence[dict[str, Any]] = (), facts: Sequence[Fact] = ()) -> None:
        """Lands rows."""

    def split(self, line: str) -> None:
        """Adds a line to the file of splits."""

    def build(self) -> tuple[str, ...] | None:
        """Builds all gold tables; returns the rebuilt partitions of `price_with_eps`."""

    def answer(self) -> Answer:
        """Returns the current gold table."""


def open_market(market: Market, *, every: int = 1) -> None:
    """Lands the first prices and filings and a late price; compares each build with the oracle.

    Args:
        every: only every n-th date has prices, since a build writes a file per date.
    """
    late = dt.date(2011, 1, 11)
    prices = [row for row in apple_prices() if row["event_time"].date() != late][::every]
    market.land(prices=prices, facts=annual_facts())
    _holds_after(market, None)
    market.land(prices=[row for row in apple_prices() if row["event_time"].date() == late])
    _holds_after(market, ("2011-01-11",))
    _holds_after(market, ())


def _holds_after(market: Market, expected: tuple[str, ...] | None) -> None:
    assert market.build() == expected
    market.rows.hold(market.answer())


def live_through(market: Market) -> None:
    """Runs all scenarios on an open market; compares each build with the oracle."""

    def holds_after(*expected: str) -> None:
        _holds_after(market, expected)

    market.land(facts=[fact("AAPL", "2011-02-01", "2010-12-25", "16.00", "late")])
    holds_after("2010-10-28..")  # the previous interval now has an end
    same_time = [fact("AAPL", "2011-02-01", "2010-12-25", eps, name) for eps, name in (("16.5", "a"), ("17", "z"))]
    market.land(facts=same_time)
    holds_after("2011-02-02..")
    market.land(facts=[fact("AAPL", "2011-06-01", "2010-12-25", "15.50", "restated")])
    holds_after("2011-02-02..")
    market.land(facts=[fact("AAPL", "2011-05-01", "2009-12-25", "1.00", "of an older period")])
    holds_after("2011-02-02..")
    market.land(facts=[fact("AAPL", "2011-09-01", "2011-06-25", "-1.00", "a loss")])
    holds_after("2011-06-02..")
    market.split("AAPL,2011-08-15,7\n")
    holds_after("2011-08-15..")
    market.land(facts=[fact("ZZZ", "2011-09-05", "2011-06-25", "3.00", "of a company without prices")])
    holds_after("2011-09-06..")
