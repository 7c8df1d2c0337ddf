"""The tables and values of trend charts."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from deltaworks.maintenance.table_health.snapshots import small_file_share, worst_tables, write_trend_chart

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


def snapshot(table: str, day: int, score: int | None, **found: Any) -> dict[str, Any]:
    known = {"files": 10, "small_files": 4, "bytes": 5 << 20}
    at = NOON + dt.timedelta(days=day)
    return {"owner": "shop", "table_name": table, "taken_at": at, "score": score, **known, **found}


def test_the_worst_tables_have_the_lowest_newest_score() -> None:
    rows = [snapshot("a", 0, 10), snapshot("b", 0, 90), snapshot("c", 0, 95), snapshot("d", 0, None)]
    rows += [snapshot("a", 1, 80), snapshot("b", 1, 30), snapshot("c", 1, None), snapshot("d", 1, None)]

    found = worst_tables(rows, 3)

    assert list(found) == ["shop.b", "shop.a", "shop.c"]
    assert [row["score"] for row in found["shop.c"]] == [95, None]


def test_small_file_share_needs_files() -> None:
    assert small_file_share(snapshot("a", 0, 1)) == 0.4
    assert small_file_share(snapshot("a", 0, 1, files=0, small_files=0)) is None
    assert small_file_share(snapshot("a", 0, 1, files=None, small_files=None)) is None


def test_a_page_of_no_tables_says_so(tmp_path: Path) -> None:
    assert "0 tables." in write_trend_chart(tmp_path / "none.html", {}).read_text()


def test_more_tables_than_colours_are_in_charts_of_their_own(tmp_path: Path) -> None:
    by_table = {f"shop.t{number}": [snapshot(f"t{number}", day, 50) for day in range(3)] for number in range(11)}

    page = write_trend_chart(tmp_path / "many.html", by_table).read_text()

    assert page.count("<svg") == 4 * 2
    assert "Score, tables 1 to 8" in page
    assert "Score, tables 9 to 11" in page
    assert page.count("</i>shop.t10</li>") == 4
    assert "2026-01-02 12:00: shop.t10  50" in page
