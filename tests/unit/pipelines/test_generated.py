"""Generated viewer and market events, parsed and aggregated, give the generator's counts."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from deltaworks.errors import ConfigError
from deltaworks.tables.query import connect
from generator.delivery import Delivery
from generator.market import COMPANIES, SPLITS, MarketSettings, MarketTruth, market_deliveries
from generator.qos_truth import ViewersTruth
from generator.viewers import ViewerFaults, ViewersSettings, viewer_deliveries
from sandbox.demo.answers import Answer, AnswerSheet
from sandbox.demo.dashboards import DashboardPage, write_dashboards
from sandbox.demo.market_answers import answer_filings, answer_stocks
from sandbox.demo.video_answers import answer_cdn, answer_delivery, answer_video
from tests.unit.pipelines.shipped_lake import ShippedLake, without_dedupe

VIDEO, MARKET = ("cdn_logs", "video_qos"), ("filings", "stocks")
BY_OLDEST = ("f.period_end DESC, f.filed DESC", "f.period_end DESC, f.filed")
#: One of a kind is held by every run of the tests; the others differ in their SQL, not in their way.
LONG = pytest.mark.integration
Edit = Callable[[str, str], str]
BY_PERIOD = (
    "f.filed >= c.session_before AND f.filed <",
    "f.period_end >= c.session_before AND f.period_end <",
)


def taking_away(file: str, protection: str, off: str | None) -> Edit:
    """Replaces a text of one file; None takes away its deduplication."""

    def edit(path: str, text: str) -> str:
        if path != file:
            return text
        assert protection in text
        return without_dedupe(text) if off is None else text.replace(protection, off)

    return edit


def viewers(**options: Any) -> tuple[list[Delivery], ViewersTruth]:
    truth = ViewersTruth()
    settings = ViewersSettings(**{"views": 120, "seed": 3, **options})
    return list(viewer_deliveries(settings, truth)), truth


def market(**options: Any) -> tuple[list[Delivery], MarketTruth]:
    truth = MarketTruth()
    return list(market_deliveries(MarketSettings(**options), truth)), truth


def land(lake: ShippedLake, deliveries: Sequence[Delivery], *pipelines: str) -> None:
    for pipeline in pipelines:
        objects = [(each.key, gzip.decompress(each.body)) for each in deliveries if each.key.startswith(f"{pipeline}/")]
        if objects:
            lake.land(pipeline, *objects)


def video_answers(lake: ShippedLake, truth: ViewersTruth) -> list[Answer]:
    sheet = AnswerSheet(*connect(lake.catalog))
    answer_cdn(sheet, truth)
    answer_video(sheet, truth)
    answer_delivery(sheet, truth)
    return sheet.answers


def market_answers(lake: ShippedLake, truth: MarketTruth) -> list[Answer]:
    sheet = AnswerSheet(*connect(lake.catalog))
    answer_filings(sheet, truth)
    answer_stocks(sheet, truth)
    return sheet.answers


def dashboards(lake: ShippedLake, folder: Path, *pipelines: str) -> list[DashboardPage]:
    connection, _ = connect(lake.catalog)
    with connection:
        pages = write_dashboards(lake.catalog, pipelines, connection, folder / "dashboards")
    assert all("<svg" in page.path.read_text() for page in pages)
    return pages


def wrong(answers: Sequence[Answer]) -> list[str]:
    return [f"{answer.question}: {answer.computed}, not {answer.truth}" for answer in answers if not answer.is_right]


def test_views_their_quality_and_their_delivery_are_what_was_counted(tmp_path: Path) -> None:
    deliveries, truth = viewers()
    lake = ShippedLake(tmp_path, *VIDEO)
    land(lake, deliveries, *VIDEO)
    for pipeline in VIDEO:
        lake.build(pipeline)

    answers = video_answers(lake, truth)

    assert wrong(answers) == []
    assert len(answers) == 21
    assert {view.started_ms // 86_400_000 for view in truth.views.values()} == {19_783, 19_784}
    assert all(truth.quarantined_rows[pipeline] for pipeline in VIDEO)
    assert sum(view.stalls for view in truth.views.values()) > 20
    # Every panel of every dashboard has something to draw.
    pages = dashboards(lake, tmp_path, *VIDEO)
    assert [(page.name, page.panels - page.panels_with_rows, page.failed_panels) for page in pages] == [
        ("delivery", 0, ()),
        ("noc", 2, ()),  # so few viewers are too few samples for its two rules
    ]


def test_gold_built_step_by_step_is_that_of_everything_at_once(tmp_path: Path) -> None:
    """Objects come a day late, twice and in no order; after each few, gold builds what it says has changed."""
    deliveries, truth = viewers(views=60, lines_per_object=600, reports_per_object=300)
    lake = ShippedLake(tmp_path, *VIDEO)
    rebuilt = []
    for start in range(0, len(deliveries), 3):
        land(lake, deliveries[start : start + 3], *VIDEO)
        for pipeline in VIDEO:
            rebuilt.append(lake.build(pipeline))

    assert wrong(video_answers(lake, truth)) == []
    # Whole once, and from then on by the hours that were touched.
    minutes = [built["cdn_minute"] for built in rebuilt if "cdn_minute" in built]
    assert len(minutes) > 3
    assert minutes.count(None) == 1
    assert all("T" in hour for built in minutes for hour in built or ())


@cache
def repeating_viewers() -> tuple[list[Delivery], ViewersTruth]:
    """Viewers whose logs often come again, so that some object of these few does."""
    return viewers(faults=ViewerFaults(duplicate_logs=0.5))


@pytest.mark.parametrize(
    ("file", "protection", "off", "question"),
    [
        ("cdn_logs/pipeline.yaml", "dedupe", None, "requests, errors, hits"),
        pytest.param(
            "cdn_logs/gold/cdn_sessions.sql",
            "AS sid,",
            "AS upper_sid, lower(event_id) AS sid,",
            "each view",
            marks=LONG,
        ),
        pytest.param("video_qos/pipeline.yaml", "dedupe", None, "views, start-up", marks=LONG),
        pytest.param(
            "video_qos/gold/views.sql",
            "WHERE coalesce(session_id, '') = first_session",
            "",
            "views, start-up",
            marks=LONG,
        ),
        ("video_qos/gold/qos_minute.sql", "AND NOT coalesce(e.after_seek, false)", "", "views, start-up"),
        ("video_qos/pipeline.yaml", '"stalled_ms BETWEEN 0 AND 300000"', '"stalled_ms >= 0"', "quarantined"),
    ],
)
def test_without_a_protection_the_answer_is_another(
    tmp_path: Path, file: str, protection: str, off: str | None, question: str
) -> None:
    deliveries, truth = repeating_viewers()
    lake = ShippedLake(tmp_path, *VIDEO, edit=taking_away(file, protection, off))
    land(lake, deliveries, *VIDEO)
    seen_by_check = False
    try:
        for pipeline in VIDEO:
            lake.build(pipeline)
    except AssertionError:  # a check of the gold table itself
        seen_by_check = True

    assert seen_by_check or any(text.startswith(question) for text in wrong(video_answers(lake, truth)))


def test_prices_over_earnings_are_those_known_on_each_day(tmp_path: Path) -> None:
    # The demo ends its market yesterday, long after the splits.
    deliveries, truth = market(last=date(2026, 6, 30))
    lake = ShippedLake(tmp_path, *MARKET)
    land(lake, deliveries, *MARKET)
    for pipeline in MARKET:
        lake.build(pipeline)

    answers = market_answers(lake, truth)

    assert wrong(answers) == []
    assert len(answers) == 7
    assert truth.restated_facts == 1
    (page,) = dashboards(lake, tmp_path, *MARKET)
    assert (page.name, page.failed_panels, page.panels - page.panels_with_rows) == (
        "market",
        (),
        1,
    )  # no session is missing
    # Sessions that are still to come are no data.
    assert re.search(r"newest data</dt><dd>202[67]-", page.path.read_text())
    assert sum(day.pe_annual is None for day in truth.days.values()) > 100  # a year of losses


def test_filings_that_land_after_the_prices_they_are_about_change_what_follows(tmp_path: Path) -> None:
    deliveries, truth = market()
    filings = [delivery for delivery in deliveries if delivery.key.startswith("filings/")]
    late, on_time = [filings[-1], filings[5]], [each for each in filings if each not in (filings[-1], filings[5])]
    lake = ShippedLake(tmp_path, *MARKET)
    land(lake, [each for each in deliveries if each.key.startswith("stocks/")], "stocks")
    for part in (on_time, late[:1], late[1:]):
        land(lake, part, "filings")
        lake.build("filings")
        lake.build("stocks")

    assert wrong(market_answers(lake, truth)) == []


@pytest.mark.parametrize(
    ("file", "protection", "off", "question"),
    [
        # Earnings of a period as if they were known at its end.
        ("stocks/gold/eps_known.sql", *BY_PERIOD, "P/E"),
        # The share basis of prices for earnings as they were filed.
        pytest.param("stocks/gold/pe_daily.sql", "s.ex_date >= j.annual_available_on", "false", "P/E", marks=LONG),
        pytest.param("stocks/gold/pe_daily.sql", "s.ex_date >= j.valid_from", "false", "P/E", marks=LONG),
        pytest.param("stocks/gold/eps_known.sql", "s.ex_date >= q.available_on", "false", "P/E", marks=LONG),
        # The oldest filing in place of the newest: no restatement.
        pytest.param("stocks/gold/eps_known.sql", *BY_OLDEST, "P/E", marks=LONG),
        ("stocks/gold/average_close.sql", "_ingested_at DESC, _seq DESC, _position DESC", "_seq", "average close"),
        pytest.param("filings/pipeline.yaml", "dedupe", None, "figures", marks=LONG),
    ],
)  # fmt: skip
def test_without_point_in_time_the_answer_is_another(
    tmp_path: Path, file: str, protection: str, off: str | None, question: str
) -> None:
    deliveries, truth = market()
    lake = ShippedLake(tmp_path, *MARKET, edit=taking_away(file, protection, off))
    land(lake, deliveries, *MARKET)
    for pipeline in MARKET:
        lake.build(pipeline)

    assert any(text.startswith(question) for text in wrong(market_answers(lake, truth)))


def test_the_same_settings_emit_the_same_bytes() -> None:
    assert viewers()[0] == viewers()[0]
    assert viewers(seed=4)[0] != viewers()[0]
    assert market()[0] == market()[0]
    with pytest.raises(ConfigError, match="the rate duplicate_logs is 2"):
        ViewerFaults(duplicate_logs=2)


def test_the_invented_companies_are_in_the_reference_files(tmp_path: Path) -> None:
    lake = ShippedLake(tmp_path, *MARKET)
    folder = lake.catalog.folder("filings").parent
    companies = (folder / "filings" / "reference" / "companies.csv").read_text().splitlines()
    splits = (folder / "stocks" / "reference" / "splits.csv").read_text().splitlines()

    for ticker, (cik, _, _) in COMPANIES.items():
        assert any(line.startswith(f"{cik},{ticker},") for line in companies)
    for (ticker, ex_date), ratio in SPLITS.items():
        assert any(line.startswith(f"{ticker},{ex_date},{ratio},") for line in splits)
