"""Records of CloudFront's real-time logs give rows, a latency histogram, and notices of the rules that read them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from deltaworks.events.chunks import Payload
from deltaworks.rules.backtest import backtest, with_overrides
from deltaworks.rules.evaluation import minute_text
from tests.unit.pipelines.shipped_lake import INGESTED_AT_US, ShippedLake

START = dt.datetime(2026, 3, 2, 10, tzinfo=dt.UTC)


def record(at: float, number: int, *, status: str = "200", first_byte: str = "0.020", result: str = "Hit") -> bytes:
    """A record as CloudFront sends it: `at` in seconds after START."""
    fields = [
        f"{START.timestamp() + at:.3f}",
        "81.2.69.142",
        first_byte,
        status,
        "90000",
        "GET",
        "/film/1.m4s",
        "FRA60-P3",
    ]
    fields += [f"id{number}==", "0.120", result, "GB"]
    return "\t".join(fields).encode() + b"\n"


def land(lake: ShippedLake, *records: bytes) -> None:
    payloads = [
        Payload(seq, f"kinesis://deltaworks-cdn-realtime/{seq}", data, arrived_at_us=INGESTED_AT_US)
        for seq, data in enumerate(records)
    ]
    lake.land_payloads("cdn_realtime", payloads)


def test_a_record_is_a_request_without_the_address_of_its_client(tmp_path: Path) -> None:
    lake = ShippedLake(tmp_path, "cdn_realtime")
    land(
        lake,
        record(0.25, 1),
        record(61, 2, status="000", first_byte="-", result="Error"),
        b"1772445600.000\t81.2.69.142\t0.020\n",
    )

    assert lake.rows(
        "SELECT strftime(event_time, '%H:%M:%S.%g'), event_id, edge, network, country, status, bytes, "
        "first_byte_seconds FROM cdn_realtime.requests ORDER BY event_time"
    ) == [
        ("10:00:00.250", "id1==", "FRA60-P3", "81.2.69.0", "GB", "200", 90000, 0.02),
        ("10:01:01.000", "id2==", "FRA60-P3", "81.2.69.0", "GB", "000", 90000, None),
    ]
    assert lake.reasons("cdn_realtime") == {"malformed": 1}
    assert lake.rows("SELECT raw FROM cdn_realtime.quarantine") == [("",)]


def test_a_record_that_comes_twice_counts_once_in_gold(tmp_path: Path) -> None:
    lake = ShippedLake(tmp_path, "cdn_realtime")
    land(lake, record(1, 1), record(1, 1), record(2, 2, first_byte="0.050"), record(3, 3, result="Miss"))
    lake.build("cdn_realtime")

    assert lake.rows("SELECT edge, bucket, media_hits FROM cdn_realtime.latency_histogram ORDER BY bucket") == [
        ("FRA", 130, 1),
        ("FRA", 169, 1),
    ]


def test_errors_of_the_origin_fire_in_their_minute(tmp_path: Path) -> None:
    lake = ShippedLake(tmp_path, "cdn_realtime")
    records = [
        record(60 * minute + number / 2, 1_000 * minute + number, status="503" if number < bad else "200")
        for minute, bad in enumerate((1, 0, 2, 0, 0))
        for number in range(20)
    ]
    # A client that aborts is no answer: with it, two of 20 would be below a tenth.
    land(lake, *records, record(130, 9_000, status="000", result="Error"))
    rule = {rule.name: rule for rule in lake.catalog.pipeline("cdn_realtime").rules}["origin_errors"]

    result = backtest(
        lake.catalog,
        "cdn_realtime",
        with_overrides(rule, ["min_samples=20", "fire.above=0.096"]),
        since=START,
        until=START + dt.timedelta(minutes=5),
    )

    (episode,) = result.episodes
    assert (minute_text(episode.fired)[11:16], episode.labels, episode.worst) == ("10:02", ("cloudfront",), 0.1)
