"""What is watched most now, and what each edge delivers now, against counts of the generated traffic."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter, defaultdict
from pathlib import Path

import duckdb
import pytest

from deltaworks.events.chunks import Payload
from generator.alert_traffic import AlertTraffic, World
from generator.percentiles import percentile
from tests.unit.pipelines.shipped_lake import INGESTED_AT_US, ShippedLake

START = dt.datetime(2026, 3, 2, 23, 56, tzinfo=dt.UTC)
MINUTES = 8


def traffic(world: World, columns: str, events_per_minute: int, incident: str = "") -> list[tuple[object, ...]]:
    """The generated rows in order of time, with their time in epoch milliseconds first."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        settings = AlertTraffic(
            world=world, seed=4, events_per_minute=events_per_minute, incident=incident, incident_at=START
        )
        settings.generate(connection, START, MINUTES)
        return connection.execute(f"SELECT epoch_ms(event_time), {columns} FROM traffic ORDER BY ALL").fetchall()


def test_most_popular_now_counts_the_active_views_of_each_medium(tmp_path: Path) -> None:
    rows = traffic("video_qos", "event_name, play_id, media_id, fatal", 2_000, incident="playback_errors")
    lake = ShippedLake(tmp_path, "cdn_logs", "video_qos")
    events = [
        {
            "event_id": f"e{number}",
            "type": kind,
            "received_at": at,
            "play_id": play,
            "media_id": medium,
            "fatal": fatal,
        }
        for number, (at, kind, play, medium, fatal) in enumerate(rows)
    ]
    for event in events:
        at = dt.datetime.fromtimestamp(int(str(event["received_at"])) / 1000, dt.UTC)
        event["received_at"] = at.isoformat(timespec="milliseconds")
    copies = events[-50:]  # players resend what was not acknowledged
    lake.land("video_qos", ("video_qos/a.json", b"\n".join(json.dumps(event).encode() for event in events + copies)))

    newest = {play: (int(str(at)), medium, fatal) for at, _, play, medium, fatal in rows}
    now = max(at for at, _, _ in newest.values())
    active = [medium for at, medium, fatal in newest.values() if at >= now - 20_000 and not fatal]
    expected = sorted(Counter(map(str, active)).items(), key=lambda item: (-item[1], item[0]))
    statement = "SELECT media_id, concurrent_viewers FROM video_qos.most_popular_now"
    assert lake.rows(statement) == expected
    assert (len(expected), len(active) > 100) == (12, True)
    assert lake.one("SELECT concurrent_viewers FROM video_qos.viewers_now") == len(active)
    assert len(active) < sum(at >= now - 20_000 for at, _, _ in newest.values()), "some have failed"


@pytest.mark.parametrize("incident", ["", "origin_errors"])
def test_delivery_by_edge_counts_the_last_five_minutes(tmp_path: Path, incident: str) -> None:
    rows = traffic("cdn_realtime", "event_id, edge, status, first_byte_seconds, result, uri", 400, incident)
    records = [
        f"{int(str(at)) / 1000:.3f}\t81.2.69.142\t{seconds:.3f}\t{status}\t90000\tGET\t{uri}\t{edge}\t{name}\t0.120"
        f"\t{result}\tGB\n".encode()
        for at, name, edge, status, seconds, result, uri in rows
    ]
    lake = ShippedLake(tmp_path, "cdn_realtime")
    payloads = [
        Payload(seq, f"kinesis://deltaworks-cdn-realtime/{seq}", data, arrived_at_us=INGESTED_AT_US)
        for seq, data in enumerate([*records, *records[-80:]])  # Kinesis and its producers retry
    ]
    lake.land_payloads("cdn_realtime", payloads)

    since = max(int(str(row[0])) for row in rows) - 300_000
    by_edge: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)
    for at, _, edge, status, seconds, *_ in rows:
        if int(str(at)) > since:
            by_edge[str(edge)].append((str(status), round(1000 * round(float(str(seconds)), 3), 3)))
    expected = []
    for edge, requests in by_edge.items():
        answers = [status for status, _ in requests if status != "000"]
        share = sum(status.startswith("5") for status in answers) / len(answers)
        latencies = [milliseconds for _, milliseconds in requests]
        expected.append((edge, len(requests), share, percentile(latencies, 0.5), percentile(latencies, 0.95)))
    expected.sort(key=lambda item: (-item[1], item[0]))

    computed = lake.rows("SELECT * FROM cdn_realtime.delivery_by_edge")
    assert [row[:2] for row in computed] == [row[:2] for row in expected]
    for row, answer in zip(computed, expected, strict=True):
        assert row[2:] == pytest.approx(answer[2:])
    assert len(expected) == 4
    assert (max(row[2] for row in computed) > 0.05) == bool(incident)
