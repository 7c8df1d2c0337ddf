"""Simulates a market as landed objects: daily prices of four fictitious companies, and their filings.

It contains cases that samples of real data lack: restated earnings, a split between a filing and later prices, a loss,
a filing that lands days late, a corrected price, duplicates, unordered prices, and a malformed line. The expected
results are counted day by day during the simulation, from the facts known on each day, without a join.
"""

from __future__ import annotations

import gzip
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from random import Random
from typing import Any

import orjson

from generator.delivery import Delivery
from generator.trading_days import Session, sessions

#: Fictitious companies, also in `companies.csv` of pipeline `filings`: SEC number, name, first close.
COMPANIES = {
    "DWAA": (9_900_001, "Delta Works Alpha", Decimal("180.00")),
    "DWBB": (9_900_002, "Delta Works Beta", Decimal("42.00")),
    "DWCC": (9_900_003, "Delta Works Gamma", Decimal("96.00")),
    "DWDD": (9_900_004, "Delta Works Delta", Decimal("11.00")),
}
#: Splits, also in `splits.csv` of pipeline `stocks`.
SPLITS = {("DWAA", date(2024, 5, 20)): 4, ("DWCC", date(2024, 8, 12)): 3}
#: The company whose price jumps at the end, with `final_jump`.
JUMPING = "DWDD"
STALE_DAYS = 400
_HEADER = "Date,Open,High,Low,Close,Volume,Adj Close"
_CENT = Decimal("0.01")
_GZIP_LEVEL = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketSettings:
    """All settings that determine the emitted bytes. `first` and `last` should span the splits in 2024.

    Args:
        final_jump: relative rise of the price of `JUMPING` in each of the last two sessions.
    """

    seed: int = 1
    first: date = date(2024, 1, 2)
    last: date = date(2024, 12, 31)
    price_prefix: str = "stocks/"
    filing_prefix: str = "filings/"
    final_jump: float = 0.0


@dataclass(frozen=True, slots=True)
class Fact:
    """Earnings of a period in one filing. `basis` is the share basis at that time: how many shares one initial share
    has become through splits.
    """

    ticker: str
    start: date
    end: date
    eps: Decimal
    form: str
    filed: date
    accession: str
    basis: int

    @property
    def is_annual(self) -> bool:
        """Whether the period is a year."""
        return (self.end - self.start).days > 300


@dataclass(frozen=True, slots=True)
class PriceTruth:
    """Expected values of a share in a session, from facts published before it opened."""

    close: Decimal
    eps_annual: Decimal | None
    pe_annual: float | None
    pe_twelve_months: float | None


@dataclass(slots=True)
class MarketTruth:
    """The expected results, complete after the last object."""

    days: dict[tuple[date, str], PriceTruth] = field(default_factory=dict)
    quarantined_rows: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    sent_objects: Counter[str] = field(default_factory=Counter)
    facts: int = 0
    restated_facts: int = 0
    _closes: defaultdict[str, list[tuple[Decimal, int]]] = field(default_factory=lambda: defaultdict(list))

    def count_close(self, ticker: str, close: Decimal, shares: int) -> None:
        """Records the close of a session; `shares` is the share basis: how many shares one initial share has become."""
        self._closes[ticker].append((close, shares))

    def to_json(self) -> bytes:
        """Returns the expected results as JSON: totals, averages, and values of each share by day."""
        plain = {
            "objects": self.sent_objects,
            "quarantined": self.quarantined_rows,
            "facts": self.facts,
            "restated": self.restated_facts,
            "average_close": self.average_closes(),
            "pe_daily": [
                [day, ticker, str(truth.close), truth.pe_annual, truth.pe_twelve_months]
                for (day, ticker), truth in sorted(self.days.items())
            ],
        }
        return orjson.dumps(plain, option=orjson.OPT_INDENT_2)

    def average_closes(self) -> dict[str, tuple[float, float]]:
        """Returns the average close of each share, both as traded and adjusted to the latest share basis."""
        return {
            ticker: (
                float(sum(close for close, _ in closes)) / len(closes),
                sum(float(close) * shares / closes[-1][1] for close, shares in closes) / len(closes),
            )
            for ticker, closes in self._closes.items()
        }


@dataclass(slots=True)
class _Company:
    """The state of a company on a day: its price and published filings."""

    ticker: str
    price: Decimal
    shares: int = 1
    public_facts: list[Fact] = field(default_factory=list)

    def latest_annual(self) -> Fact | None:
        """Returns the latest filing of the latest year."""
        years = [fact for fact in self.public_facts if fact.is_annual]
        return max(years, key=lambda fact: (fact.end, fact.filed, fact.accession), default=None)

    def trailing_twelve_months(self) -> tuple[float, date] | None:
        """Returns the sum of the latest four consecutive quarters, on the current share basis, and the latest filing
        date.
        """
        newest: dict[date, Fact] = {}
        for fact in sorted(self.public_facts, key=lambda fact: (fact.filed, fact.accession)):
            if not fact.is_annual:
                newest[fact.end] = fact
        quarters = [newest[end] for end in sorted(newest)]
        for number in range(len(quarters) - 4, -1, -1):
            four = quarters[number : number + 4]
            if 350 <= (four[-1].end - four[0].start).days + 1 <= 380:
                total = sum(float(fact.eps) * fact.basis / self.shares for fact in four)
                return total, max(fact.filed for fact in four)
        return None


def market_deliveries(settings: MarketSettings, truth: MarketTruth) -> Iterator[Delivery]:
    """Yields the objects of both pipelines in order of delivery, byte-identical for the same settings.

    Args:
        truth: collects the expected results during the simulation; complete after the last object.
    """
    rng = Random(f"market/{settings.seed}")
    companies = [_Company(ticker, first) for ticker, (_, _, first) in COMPANIES.items()]
    filings = sorted(
        (fact for company in companies for fact in _generate_facts(company.ticker, rng, settings.last.year)),
        key=_filing_order,
    )
    lines: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    late: list[Delivery] = []
    all_sessions = list(sessions(settings.first, settings.last))
    for session in all_sessions:
        for company in companies:
            # Filings of earlier days are known to the market; filings of today are known from the next session on.
            due = [fact for fact in filings if fact.ticker == company.ticker and fact.filed < session.day]
            if len(due) > len(company.public_facts):
                company.public_facts = due
                delivery = _company_facts_object(settings, company, truth)
                if due[-1].form.endswith("/A"):
                    late.append(delivery)  # an amended filing lands after the prices it affects
                else:
                    yield delivery
            jumps = company.ticker == JUMPING and session in all_sessions[-2:]
            _trade_session(company, session, rng, truth, jump=settings.final_jump if jumps else 0.0)
            month = f"{session.day:%Y-%m}"
            lines[company.ticker, month].append(_price_line(session.day, company.price))
    yield from _price_objects(settings, lines, rng, truth)
    yield from late
    truth.facts = sum(len(company.public_facts) for company in companies)
    truth.restated_facts = sum(fact.form.endswith("/A") for company in companies for fact in company.public_facts)


def _filing_order(fact: Fact) -> tuple[date, str, str]:
    return fact.filed, fact.ticker, fact.accession


def _generate_facts(ticker: str, rng: Random, last_year: int) -> Iterator[Fact]:
    """Yields facts for each quarter and year of a company. The fourth quarter is filed together with the year."""
    number = tuple(COMPANIES).index(ticker)
    quarters: list[tuple[date, date, Decimal]] = []
    for year in range(2022, last_year + 1):
        for month in (1, 4, 7, 10):
            start = date(year, month, 1)
            end = date(year + month // 10, (month + 3) % 12, 1) - timedelta(days=1)
            eps = Decimal(rng.randrange(40, 180)) / 100 * (-1 if ticker == "DWDD" and year == 2023 else 1)
            filed = end + timedelta(days=30 + number)
            shares = _share_multiple(ticker, filed)
            quarters.append((start, end, (eps / shares).quantize(_CENT)))
            form = "10-K" if month == 10 else "10-Q"
            accession = f"99{number:08}-{filed:%y}-{filed:%m%d}00"
            yield Fact(ticker, start, end, quarters[-1][2], form, filed, accession, shares)
            if month == 10:
                # New shares are issued during the year, so annual earnings per share differ from the sum of the
                # quarters.
                annual = sum((value for _, _, value in quarters[-4:]), Decimal(0)) + Decimal("0.01")
                yield Fact(ticker, quarters[-4][0], end, annual, form, filed, accession, shares)
                if ticker == "DWBB" and year == 2023:
                    amended_on = filed + timedelta(days=70)
                    yield Fact(
                        ticker,
                        quarters[-4][0],
                        end,
                        annual - Decimal("0.35"),
                        "10-K/A",
                        amended_on,
                        f"{accession}a",
                        shares,
                    )


def _share_multiple(ticker: str, day: date) -> int:
    """Returns the number of shares that one initial share has become on a day."""
    total = 1
    for (split, ex_date), ratio in SPLITS.items():
        total *= ratio if split == ticker and ex_date <= day else 1
    return total


def _trade_session(company: _Company, session: Session, rng: Random, truth: MarketTruth, *, jump: float) -> None:
    """Simulates a session: moves the price, applies a split, and records the expected ratios."""
    ratio = SPLITS.get((company.ticker, session.day), 1)
    company.shares *= ratio
    moved = float(company.price) / ratio * rng.uniform(0.98, 1.0205) * (1 + jump)
    company.price = max(_CENT, Decimal(str(moved)).quantize(_CENT))
    truth.count_close(company.ticker, company.price, company.shares)
    annual, twelve = company.latest_annual(), company.trailing_twelve_months()
    pe_annual = None
    if annual is not None and annual.eps > 0 and (session.day - annual.filed).days <= STALE_DAYS:
        pe_annual = float(company.price) * company.shares / annual.basis / float(annual.eps)
    pe_twelve = None
    if twelve is not None and twelve[0] > 0 and (session.day - twelve[1]).days <= STALE_DAYS:
        pe_twelve = float(company.price) / twelve[0]
    truth.days[session.day, company.ticker] = PriceTruth(
        company.price, annual.eps if annual else None, pe_annual, pe_twelve
    )


def _price_line(day: date, close: Decimal) -> str:
    return f"{day},{close},{close},{close},{close},1000,{close}"


def _price_objects(
    settings: MarketSettings, lines: dict[tuple[str, str], list[str]], rng: Random, truth: MarketTruth
) -> Iterator[Delivery]:
    """Yields one file per share and month, shuffled, with duplicates, a corrected price and a renamed header."""
    landed_at = datetime.combine(settings.last, time.min, UTC) + timedelta(days=2)
    land = partial(_price_file, truth=truth, landed_at=landed_at)
    files = list(lines.items())
    rng.shuffle(files)
    corrected: Delivery | None = None
    for number, ((ticker, month), rows) in enumerate(files):
        header, body = _HEADER, list(rows)
        name = f"{settings.price_prefix}ticker={ticker}/{month}"
        if number == 0:
            # The correction must land last, regardless of the order in which other objects are announced.
            corrected = land(f"{name}.csv.gz", header, body)
            wrong_rows = [",".join([rows[0].split(",")[0], *["999999.99"] * 4, "1", "1"]), *rows[1:]]
            yield land(f"{name}-before.csv.gz", header, wrong_rows)
            continue
        if number == 1:
            header = "Volume,Close,Date"
            body = [",".join((row.split(",")[5], row.split(",")[4], row.split(",")[0])) for row in rows]
        if number == 2:
            body.append("not,a,line")
            truth.quarantined_rows["stocks"]["malformed"] += 1
        if number == 3:
            body.append(f"{date(2024, 2, 1)},1,1,1,-5.00,1,1")
            truth.quarantined_rows["stocks"]["rule"] += 1
        yield land(f"{name}.csv.gz", header, body)
        if number % 7 == 4:
            yield land(f"{name}-again.csv.gz", header, body)
    if corrected is not None:
        yield corrected


def _price_file(key: str, header: str, rows: list[str], *, truth: MarketTruth, landed_at: datetime) -> Delivery:
    truth.sent_objects["stocks"] += 1
    body = gzip.compress("\n".join([header, *rows, ""]).encode(), _GZIP_LEVEL, mtime=0)
    return Delivery(key, body, len(rows), landed_at)


def _company_facts_object(settings: MarketSettings, company: _Company, truth: MarketTruth) -> Delivery:
    """Returns all filings of a company in the format of SEC company facts, which repeats earlier facts in each
    filing."""
    cik, name, _ = COMPANIES[company.ticker]
    truth.sent_objects["filings"] += 1
    units: list[dict[str, Any]] = [
        {
            "start": str(fact.start),
            "end": str(fact.end),
            "val": float(fact.eps),
            "accn": fact.accession,
            "fy": fact.end.year,
            "fp": "FY" if fact.is_annual else f"Q{(fact.end.month + 2) // 3}",
            "form": fact.form,
            "filed": str(fact.filed),
        }
        for fact in company.public_facts
    ]
    concept = {"label": "Earnings Per Share, Basic", "units": {"USD/shares": units}}
    document = {"cik": cik, "entityName": name, "facts": {"us-gaap": {"EarningsPerShareBasic": concept}}}
    filed = company.public_facts[-1].filed
    body = gzip.compress(orjson.dumps(document), _GZIP_LEVEL, mtime=0)
    key = f"{settings.filing_prefix}CIK{cik:010}-{filed}.json.gz"
    return Delivery(key, body, len(units), datetime(filed.year, filed.month, filed.day, tzinfo=UTC))
