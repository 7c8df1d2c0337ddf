"""The pipelines `stocks` and `filings` on real prices, filings and earnings: answers computed by other means."""

from __future__ import annotations

import csv
import datetime as dt
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from deltaworks.testing import declare_pipeline, declare_table
from tests.unit.pipelines.shipped_lake import ShippedLake

Edit = Callable[[str, str], str]
TICKERS = ("FB", "MSFT", "IBM", "AAPL", "GOOG")
STALE = "AND datediff(j.price_date, j.annual_filed) <= 400"


def fact_rows(facts: Path) -> list[dict[str, str]]:
    with (facts / "sec_eps_basic.csv").open() as file:
        return list(csv.DictReader(file))


def documents(facts: Path) -> list[tuple[str, bytes]]:
    """The figures of all companies in the form of the SEC's company facts. Some have no filing date."""
    by_company: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in fact_rows(facts):
        fact = {
            "start": row["period_start"],
            "end": row["period_end"],
            "val": float(row["eps_basic_net"]),
            "accn": row["accession_no"] or row["source_file"],
            "form": row["form"],
        }
        by_company[int(row["cik"])].append(fact | ({"filed": row["filing_date"]} if row["filing_date"] else {}))
    return [document(cik, entries) for cik, entries in by_company.items()]


def document(cik: int, entries: list[dict[str, Any]]) -> tuple[str, bytes]:
    concept = {"EarningsPerShareBasic": {"units": {"USD/shares": entries}}}
    text = {"cik": cik, "entityName": str(cik), "facts": {"us-gaap": concept}}
    return f"filings/CIK{cik:010}.json", json.dumps(text).encode()


def prices(folder: Path, *tickers: str, since: str = "") -> list[tuple[str, bytes]]:
    objects = []
    for ticker in tickers:
        header, *lines = (folder / f"{ticker}.csv").read_text().splitlines()
        text = "\n".join([header, *(line for line in lines if line >= since), ""])
        objects.append((f"stocks/ticker={ticker}/all.csv", text.encode()))
    return objects


def market(
    folder: Path, filings: list[tuple[str, bytes]], traded: list[tuple[str, bytes]], edit: Edit | None = None
) -> ShippedLake:
    lake = ShippedLake(folder, "filings", "stocks", edit=edit)
    lake.land("filings", *filings)
    lake.land("stocks", *traded)
    lake.build("filings")
    lake.build("stocks")
    return lake


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, shared_prices: Path, shared_facts: Path) -> ShippedLake:
    """The years that earnings are known of."""
    traded = prices(shared_prices, *TICKERS, since="2010-09")
    return market(tmp_path_factory.mktemp("market"), documents(shared_facts), traded)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, shared_prices: Path) -> ShippedLake:
    """All prices, and their averages."""
    lake = ShippedLake(tmp_path_factory.mktemp("whole"), "filings", "stocks")
    lake.land("stocks", *prices(shared_prices, *TICKERS))
    lake.build("stocks", "average_close")
    return lake


@pytest.mark.integration
def test_a_share_has_a_price_on_every_session_and_on_no_other_day(whole: ShippedLake, lake: ShippedLake) -> None:
    traded: dict[str, list[dt.date]] = defaultdict(list)
    for ticker, day in whole.rows("SELECT ticker, event_date FROM stocks.prices ORDER BY ALL"):
        traded[ticker].append(day)
    calendar = [day for (day,) in whole.rows("SELECT session_date FROM stocks.sessions ORDER BY 1")]

    counts = {ticker: len(days) for ticker, days in traded.items()}
    assert counts == {"FB": 196, "MSFT": 3_270, "IBM": 3_270, "AAPL": 3_270, "GOOG": 2_148}
    for days in traded.values():
        assert days == [day for day in calendar if days[0] <= day <= days[-1]]
    assert lake.one("SELECT count(*) FROM stocks.missing_sessions") == 0
    assert lake.one("SELECT count(*) FROM stocks.pe_daily WHERE closes_at IS NULL") == 0


def test_a_missing_session_is_told_and_filled_in_a_view_alone(tmp_path: Path) -> None:
    lake = ShippedLake(tmp_path, "filings", "stocks")
    lake.land("stocks", ("stocks/ticker=AAPL/a.csv", b"Date,Close\n2024-07-02,7.25\n2024-07-08,8\n"))
    lake.build("filings")
    lake.build("stocks")

    days = [dt.date(2024, 7, day) for day in (2, 3, 5, 8)]  # the fourth was a holiday
    assert lake.rows("SELECT session_date FROM stocks.missing_sessions ORDER BY 1") == [(day,) for day in days[1:3]]
    filled = lake.rows("SELECT session_date, close::DOUBLE, days_stale FROM stocks.close_filled ORDER BY 1")
    assert filled == [(days[0], 7.25, 0), (days[1], 7.25, 1), (days[2], 7.25, 3), (days[3], 8.0, 0)]


@pytest.mark.integration
def test_average_closes_as_traded_and_on_one_share_basis(whole: ShippedLake) -> None:
    rows = whole.rows(
        "SELECT ticker, round(average_close, 6), round(average_close_adjusted, 6), sessions FROM stocks.average_close"
    )
    raw, adjusted = {row[0]: row[1] for row in rows}, {row[0]: row[2] for row in rows}

    assert raw == {"FB": 25.626276, "MSFT": 34.800450, "IBM": 114.067734, "AAPL": 151.108138, "GOOG": 475.478212}
    assert (adjusted["AAPL"], adjusted["MSFT"], adjusted["FB"]) == (144.297501, 27.779512, 25.626276)


@pytest.mark.integration
def test_the_splits_are_those_that_prices_show(whole: ShippedLake, shared_prices: Path) -> None:
    """Where the vendor's adjusted close parts from the close by more than a fifth from one session to the next."""
    jumps = {}
    for ticker in TICKERS:
        with (shared_prices / f"{ticker}.csv").open() as file:
            rows = [(row["Date"], float(row["Close"]) / float(row["Adj Close"])) for row in csv.DictReader(file)]
        for (_, before), (day, after) in pairwise(rows):
            if abs(before / after - 1) > 0.2:
                jumps[ticker, dt.date.fromisoformat(day)] = round(before / after)
    declared = whole.rows("SELECT ticker, ex_date, ratio::INT FROM stocks.splits WHERE ex_date < '2013-03-01'")

    assert jumps == {(ticker, day): ratio for ticker, day, ratio in declared}
    assert len(jumps) == 3


def test_earnings_count_from_the_session_after_their_filing(lake: ShippedLake) -> None:
    rows = lake.rows(
        "SELECT price_date, pe_annual FROM stocks.pe_daily WHERE ticker = 'AAPL' AND pe_annual IS NOT NULL ORDER BY 1"
    )
    ratios = [ratio for _, ratio in rows]

    assert (rows[0][0], round(ratios[0], 4)) == (dt.date(2010, 10, 28), 19.8079)
    assert (len(ratios), round(min(ratios), 4), round(max(ratios), 4)) == (277, 19.5003, 27.4004)
    assert round(sum(ratios) / 277, 4) == 22.9791
    assert lake.one("SELECT count(eps_annual) FROM stocks.pe_daily WHERE ticker = 'AAPL'") == 588


def test_by_the_end_of_the_period_earnings_would_be_used_that_nobody_had(
    tmp_path: Path, shared_prices: Path, shared_facts: Path
) -> None:
    def edit(path: str, text: str) -> str:
        if path == "stocks/gold/eps_known.sql":
            return text.replace(
                "f.filed >= c.session_before AND f.filed <", "f.period_end >= c.session_before AND f.period_end <"
            )
        return text

    lake = market(tmp_path, documents(shared_facts), prices(shared_prices, "AAPL", since="2008-09"), edit)

    (row,) = lake.rows(
        "SELECT count(eps_annual), count(eps_annual) FILTER (WHERE price_date <= '2010-10-27') FROM stocks.pe_daily"
    )
    assert row == (1_113, 525)


def test_without_a_bound_earnings_of_long_ago_would_count(
    tmp_path: Path, shared_prices: Path, shared_facts: Path
) -> None:
    def edit(path: str, text: str) -> str:
        return text.replace(STALE, "") if path == "stocks/gold/pe_daily.sql" else text

    lake = market(tmp_path, documents(shared_facts), prices(shared_prices, "AAPL", since="2012-09"), edit)

    day = "SELECT round(pe_annual, 2) FROM stocks.pe_daily WHERE price_date = '2012-09-19'"
    assert lake.one(day) == 45.56


@pytest.mark.parametrize(("without", "ratio"), [(("AAPL,2014", STALE), 8.30), ((STALE,), 58.07), ((), None)])
def test_earnings_are_brought_to_the_share_basis_of_the_price(
    tmp_path: Path, shared_prices: Path, shared_facts: Path, without: tuple[str, ...], ratio: float | None
) -> None:
    """Apple in 2015 by its earnings of 2010: between them lies a split of seven to one."""

    def edit(path: str, text: str) -> str:
        if path == "stocks/reference/splits.csv" and "AAPL,2014" in without:
            return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("AAPL,2014"))
        return text.replace(STALE, "") if path == "stocks/gold/pe_daily.sql" and STALE in without else text

    # Its fields are called like the share in this file.
    header, first, *_ = (shared_prices / "finance-charts-apple.csv").read_text().splitlines()
    data = "\n".join([header.replace("AAPL.", ""), first, ""]).encode()
    lake = market(tmp_path, documents(shared_facts), [("stocks/ticker=AAPL/all.csv", data)], edit)

    day = "SELECT round(pe_annual, 2) FROM stocks.pe_daily WHERE price_date = '2015-02-17'"
    assert lake.one(day) == ratio


def test_twelve_months_need_all_four_quarters(lake: ShippedLake) -> None:
    known = {
        (row[0], row[1]): row[2:]
        for row in lake.rows(
            "SELECT ticker, valid_from, eps_annual::DOUBLE, round(eps_twelve_months, 4) FROM stocks.eps_known"
        )
    }

    assert known["AAPL", dt.date(2010, 10, 28)] == (15.41, 15.41)
    assert known["MSFT", dt.date(2015, 8, 3)] == (1.49, 1.47)  # the filing was on a Friday
    # A year with a 53rd week is one, of 371 days. The newest four quarters are of 2010, on the share basis of 2023.
    assert known["AAPL", dt.date(2023, 11, 6)] == (6.16, round(15.41 / 28, 4))


def test_facts_without_a_filing_date_join_nothing(lake: ShippedLake) -> None:
    (row,) = lake.rows("SELECT count(*), count(filed) FROM filings.facts")

    assert row == (79, 42)
    assert lake.one("SELECT count(*) FROM filings.eps_facts") == lake.one(
        "SELECT count(*) FROM filings.facts f JOIN filings.companies USING (cik) WHERE filed IS NOT NULL"
    )


def test_joined_by_equal_dates_prices_would_meet_one_filing(lake: ShippedLake) -> None:
    filed = Counter(lake.rows("SELECT ticker, filed FROM filings.eps_facts"))
    closes = {row[:2]: row[2] for row in lake.rows("SELECT ticker, event_date, close::DOUBLE FROM stocks.prices")}

    met = {place: (closes[place], figures) for place, figures in filed.items() if place in closes}
    assert met == {("AAPL", dt.date(2010, 10, 27)): (307.83, 11)}


def test_losses_have_no_price_over_earnings_and_copies_change_nothing(tmp_path: Path, shared_facts: Path) -> None:
    data = (shared_facts / "snow_facts.json").read_bytes()
    days = [dt.date(2021, 1, 4) + dt.timedelta(days=day) for day in range(0, 1_000, 7)]
    csv_file = "\n".join(["Date,Close", *(f"{day},200" for day in days)]) + "\n"

    def edit(path: str, text: str) -> str:
        return text.replace("not_null: [closes_at]", "not_null: [close]")  # some of these Mondays are holidays

    lake = market(
        tmp_path,
        [("filings/a.json", data), ("filings/b.json", data)],
        [("stocks/ticker=SNOW/a.csv", csv_file.encode())],
        edit,
    )

    facts = lake.rows(
        "SELECT count(*), count(DISTINCT (period_start, period_end)), max(eps) < 0 FROM filings.eps_facts"
    )
    repeated = lake.rows(
        "SELECT count(*), count_if(figures > 1) FROM (SELECT count(DISTINCT eps) AS figures FROM filings.eps_facts "
        "GROUP BY period_start, period_end HAVING count(*) > 1)"
    )
    assert facts == [(52, 31, True)]
    assert repeated == [(19, 0)]
    assert lake.one("SELECT count(*) FROM filings.facts") == 104
    assert lake.rows(
        "SELECT count(eps_annual) > 0, count(pe_annual), count(pe_twelve_months) FROM stocks.pe_daily"
    ) == [(True, 0, 0)]


def test_price_over_earnings_of_an_index_is_the_published_one(tmp_path: Path, shared_facts: Path) -> None:
    """Each company of a snapshot, with its earnings filed the day before its price."""
    with (shared_facts / "constituents-financials.csv").open() as file:
        rows = list(csv.DictReader(file))
    day, filed = dt.date(2018, 2, 8), dt.date(2018, 2, 7)
    companies = ["cik,ticker", *(f"{number},{row['Symbol']}" for number, row in enumerate(rows, 1))]

    def edit(path: str, text: str) -> str:
        return "\n".join([*companies, ""]) if path == "filings/reference/companies.csv" else text

    period = {"start": "2017-01-01", "end": "2017-12-31", "form": "10-K", "filed": str(filed), "accn": "a"}
    filings = [
        document(number, [period | {"val": float(row["Earnings/Share"])}])
        for number, row in enumerate(rows, 1)
        if row["Earnings/Share"]
    ]
    traded = [(f"stocks/ticker={row['Symbol']}/a.csv", f"Date,Close\n{day},{row['Price']}\n".encode()) for row in rows]
    lake = market(tmp_path, filings, traded, edit)

    ratios = dict(lake.rows("SELECT ticker, pe_annual FROM stocks.pe_daily"))
    published = {row["Symbol"]: row for row in rows if row["Earnings/Share"] and float(row["Earnings/Share"]) > 0}
    close = [
        abs(ratios[symbol] / float(row["Price/Earnings"]) - 1) < 1.4e-7
        for symbol, row in published.items()
        if row["Price/Earnings"]
    ]
    losses = [row["Symbol"] for row in rows if row["Earnings/Share"] and float(row["Earnings/Share"]) <= 0]
    unknown = [row["Symbol"] for row in rows if not row["Earnings/Share"]]
    assert (len(close), all(close)) == (456, True)
    assert (len(losses), len(unknown)) == (30, 17)
    # Some without earnings have no price either.
    assert [ratios.get(symbol) for symbol in losses + unknown] == [None] * 47


def test_the_newest_price_has_the_ratio_of_its_session(lake: ShippedLake) -> None:
    live = {
        row[0]: row[1:]
        for row in lake.rows("SELECT ticker, price_date, close, eps_annual, pe_annual FROM stocks.live_pe")
    }
    daily = {
        row[0]: row[1:]
        for row in lake.rows(
            "SELECT ticker, price_date, close, eps_annual, pe_annual FROM stocks.pe_daily "
            "QUALIFY row_number() OVER (PARTITION BY ticker ORDER BY price_date DESC) = 1"
        )
    }

    assert live == daily
    assert len(live) == 5
    newer = b"Date,Close\n2013-03-04,420.05\n"
    lake.land("stocks", ("stocks/ticker=AAPL/live.csv", newer))
    assert lake.one("SELECT price_date FROM stocks.live_pe WHERE ticker = 'AAPL'") == dt.date(2013, 3, 4)
    (row,) = lake.rows(
        "SELECT l.average_close, (a.close_sum::DOUBLE + 420.05) / (a.sessions + 1) FROM stocks.live_average l "
        "JOIN stocks.average_close a USING (ticker) WHERE ticker = 'AAPL'"
    )
    assert row[0] == pytest.approx(row[1])


def test_a_file_with_other_fields_lands_where_it_has_what_is_needed(tmp_path: Path, shared_prices: Path) -> None:
    lake = ShippedLake(tmp_path, "filings", "stocks")
    lake.land(
        "stocks",
        ("stocks/ticker=AAPL/fields.csv", (shared_prices / "finance-charts-apple.csv").read_bytes()),
        ("stocks/ticker=AAPL/order.csv", b"Volume,Close,Date\n5,7.25,2024-01-03\n"),
        ("stocks/AAPL.csv", b"Date,Close\n2024-01-04,7.5\n"),
        ("stocks/ticker=AAPL/short.csv", b"Date,Close\n2024-01-04\n"),
        ("stocks/ticker=AAPL/nothing.csv", b"Date,Close\n2024-01-05,-3\n"),
    )

    assert lake.reasons("stocks") == {"missing_required": 507, "malformed": 1, "rule": 1}
    assert lake.rows("SELECT event_date, close::DOUBLE, volume FROM stocks.prices") == [(dt.date(2024, 1, 3), 7.25, 5)]


def test_a_price_of_a_day_without_a_session_is_not_published(tmp_path: Path) -> None:
    lake = ShippedLake(tmp_path, "filings", "stocks")
    lake.land("stocks", ("stocks/ticker=AAPL/a.csv", b"Date,Close\n2024-07-04,7.25\n"))
    lake.build("filings")

    with pytest.raises(AssertionError, match="closes_at is null"):
        lake.build("stocks")


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
