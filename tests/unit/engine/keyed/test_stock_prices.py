"""Real stock prices, in two batches that arrive in the wrong order and are repeated."""

from __future__ import annotations

import csv
import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.shared_data import SHARED_DATA
from tests.unit.engine.keyed.keyed_harness import KeyedHarness, declared

PRICES = SHARED_DATA / "stock_prices" / "stockdata2.csv"
pytestmark = pytest.mark.skipif(
    not PRICES.exists(), reason=f"no prices of shares at {PRICES}; name the data's folder in DELTAWORKS_SHARED_DATA"
)


def prices() -> list[dict[str, Any]]:
    with PRICES.open(newline="") as file:
        return [
            {
                "symbol": row["stock"],
                "day": dt.date.fromisoformat(row["Date"]),
                "price": Decimal(row["value"]).quantize(Decimal("0.0001")),
                "event_date": dt.date(int(row["Date"][:4]), 1, 1),
            }
            for row in csv.DictReader(file)
        ]


@pytest.mark.parametrize(("by", "keys"), [(["symbol"], 5), (["symbol", "day"], 11_525)])
def test_the_last_price_of_each_key_is_that_of_the_file(tmp_path: Path, by: list[str], keys: int) -> None:
    rows = prices()
    harness = KeyedHarness(tmp_path, declared(by=by, newest_by="day"))
    older = [row for row in rows if row["day"].year < 2012]
    newer = [row for row in rows if row["day"].year >= 2012]
    tables = harness.tables()
    for batch in (newer, older):
        number = harness.append(batch)
        harness.follow(tables)
        harness.append(batch, batch=number)
        harness.follow(tables)

    latest = harness.latest()
    assert len(latest) == keys
    assert latest == harness.expected()
    last = {tuple(row[name] for name in by): row["price"] for row in sorted(rows, key=lambda row: row["day"])}
    assert {tuple(row[name] for name in by): row["price"] for row in latest} == last
