"""Compares the tables of `stocks` and `filings` with the truth, which is counted per day."""

from __future__ import annotations

from datetime import date
from typing import Any

from deltaworks.control.objects import open_objects
from deltaworks.rules.stored_state import read_rule_state
from deltaworks.specs.catalog import Catalog
from generator.market import JUMPING, MarketTruth
from sandbox.demo.answers import AnswerSheet
from sandbox.stack.supervisor import wait_until

#: Digits to round to, because pipeline and truth divide floats in a different order.
_DIGITS = 6
_ALERT_RULE = "price_jump"
_ALERT_SECONDS = 120.0


def answer_filings(sheet: AnswerSheet, truth: MarketTruth) -> None:
    """Compares the tables of pipeline `filings` with the truth."""
    sheet.check_equal(
        "filings", "figures, once each", sheet.fetch_one("SELECT count(*) FROM filings.eps_facts"), truth.facts
    )
    restated = sheet.fetch_one("SELECT count(*) FROM filings.eps_facts WHERE form LIKE '%/A'")
    sheet.check_equal("filings", "figures that were restated", restated, truth.restated_facts)


def answer_stocks(sheet: AnswerSheet, truth: MarketTruth) -> None:
    """Compares the tables of pipeline `stocks` with the truth."""
    expected = {reason: rows for reason, rows in truth.quarantined_rows["stocks"].items() if rows}
    reasons = dict(sheet.fetch_rows("SELECT reasons[1].code, count(*) FROM stocks.quarantine GROUP BY 1"))
    sheet.check_rows("stocks", "quarantined rows by reason", reasons, expected)
    averages = {
        ticker: (round(raw, _DIGITS), round(adjusted, _DIGITS))
        for ticker, raw, adjusted in sheet.fetch_rows(
            "SELECT ticker, average_close, average_close_adjusted FROM stocks.average_close"
        )
    }
    true_averages = {
        ticker: (round(raw, _DIGITS), round(adjusted, _DIGITS))
        for ticker, (raw, adjusted) in truth.average_closes().items()
    }
    sheet.check_rows("stocks", "average close, as traded and split-adjusted", averages, true_averages)
    days = {
        (row[0], row[1]): (row[2], row[3], _rounded(row[4]), _rounded(row[5]))
        for row in sheet.fetch_rows(
            "SELECT price_date, ticker, close, eps_annual, pe_annual, pe_twelve_months FROM stocks.pe_daily"
        )
    }
    true_days = _days(truth)
    sheet.check_rows("stocks", "P/E as known on each day, annual and twelve months", days, true_days)
    newest = max(day for day, _ in truth.days)
    live = {
        row[0]: (row[1], row[2], _rounded(row[3]), _rounded(row[4]))
        for row in sheet.fetch_rows("SELECT ticker, close, eps_annual, pe_annual, pe_twelve_months FROM stocks.live_pe")
    }
    sheet.check_rows(
        "stocks",
        "live P/E, of the newest price",
        live,
        {ticker: answer for (day, ticker), answer in true_days.items() if day == newest},
    )
    missing = sheet.fetch_one("SELECT count(*) FROM stocks.missing_sessions")
    sheet.check_equal("stocks", "sessions without a price", missing, 0)


def answer_alert(sheet: AnswerSheet, catalog: Catalog) -> None:
    """Compares the shares for which the rule on jumps of prices has fired with the one whose price jumps at the end.

    Waits until it fires: minutes of arrival are evaluated when they are over.
    """
    objects = open_objects(catalog.environment.lake)

    def has_fired() -> bool:
        state = read_rule_state(objects, "stocks", _ALERT_RULE)
        return state is not None and bool(state.alerts)

    wait_until(has_fired, seconds=_ALERT_SECONDS, poll_seconds=1)
    state = read_rule_state(objects, "stocks", _ALERT_RULE)
    fired = [] if state is None else sorted({str(label) for alert in state.alerts for label in alert.labels.values()})
    sheet.check_equal("stocks", f"shares for which rule {_ALERT_RULE} alerts", fired, [JUMPING])


def _days(truth: MarketTruth) -> dict[tuple[date, str], tuple[Any, ...]]:
    return {
        place: (day.close, day.eps_annual, _rounded(day.pe_annual), _rounded(day.pe_twelve_months))
        for place, day in truth.days.items()
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
