"""Gold of the shipped video and stocks pipelines, built by Spark, matches the generators' counts."""

from __future__ import annotations

import gzip
from datetime import date
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltaworks.gold.build import rebuild_gold
from deltaworks.tables.query import connect
from generator.delivery import Delivery
from generator.market import MarketSettings, MarketTruth, market_deliveries
from generator.qos_truth import ViewersTruth
from generator.viewers import ViewersSettings, viewer_deliveries
from sandbox.demo.answers import AnswerSheet
from sandbox.demo.market_answers import answer_filings, answer_stocks
from sandbox.demo.video_answers import answer_cdn, answer_delivery, answer_video
from tests.unit.pipelines.shipped_lake import ShippedLake

pytestmark = pytest.mark.integration


def build(spark: SparkSession, lake: ShippedLake, deliveries: list[Delivery], *pipelines: str) -> AnswerSheet:
    """Lands all events and builds the gold of these pipelines in order."""
    for pipeline in pipelines:
        own = [delivery for delivery in deliveries if delivery.key.startswith(f"{pipeline}/")]
        lake.land(pipeline, *((delivery.key, gzip.decompress(delivery.body)) for delivery in own))
        rebuild_gold(spark, lake.catalog, pipeline)
    return AnswerSheet(*connect(lake.catalog))


def wrong(sheet: AnswerSheet) -> list[str]:
    return [f"{each.question}: {each.computed}, not {each.truth}" for each in sheet.answers if not each.is_right]


def test_quality_of_video_and_its_delivery(spark: SparkSession, tmp_path: Path) -> None:
    truth = ViewersTruth()
    deliveries = list(viewer_deliveries(ViewersSettings(views=60, seed=2), truth))

    sheet = build(spark, ShippedLake(tmp_path, "cdn_logs", "video_qos"), deliveries, "cdn_logs", "video_qos")
    answer_cdn(sheet, truth)
    answer_video(sheet, truth)
    answer_delivery(sheet, truth)

    assert wrong(sheet) == []
    assert len(sheet.answers) == 17


def test_prices_over_earnings_as_known_on_each_day(spark: SparkSession, tmp_path: Path) -> None:
    truth = MarketTruth()
    # Around both splits and the restatement.
    settings = MarketSettings(first=date(2024, 4, 1), last=date(2024, 8, 30))
    deliveries = list(market_deliveries(settings, truth))

    sheet = build(spark, ShippedLake(tmp_path, "filings", "stocks"), deliveries, "filings", "stocks")
    answer_filings(sheet, truth)
    answer_stocks(sheet, truth)

    assert wrong(sheet) == []
    assert len(sheet.answers) == 7
