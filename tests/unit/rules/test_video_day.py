"""A generated day with three incidents and a stopped table: each raises one timely alert, without false alarms, and a
backtest gives the same episodes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from deltaworks.control import paths
from deltaworks.rules.backtest import backtest
from deltaworks.rules.evaluation import minute_start, parse_minute
from generator.viewing import Report, Viewer, view_events
from tests.unit.pipelines.shipped_lake import ShippedLake
from tests.unit.rules.rule_harness import RuleHarness

pytestmark = pytest.mark.integration

DAY = dt.datetime(2026, 3, 2, tzinfo=dt.UTC)
VIEWS = 12_000
LOOK_MINUTES = 10
#: Device, first minute, and duration in which three of five reports are followed by a fatal error.
INCIDENTS = (("tv", 6 * 60, 20), ("phone", 12 * 60, 15), ("browser", 20 * 60, 20))
#: The table gets no rows for this long, then all of them.
STOP = (16 * 60, 40)
#: Five minutes until the 15-minute window is out of bounds, three to fire, the delay, and the interval of rounds.
PROMISED_MINUTES = 5 + 3 + 2.5 + LOOK_MINUTES
SCHEMA = pa.schema(
    {
        "event_date": pa.date32(),
        "event_time": pa.timestamp("us", tz="UTC"),
        "event_name": pa.string(),
        "play_id": pa.string(),
        "media_id": pa.string(),
        "device": pa.string(),
        "fatal": pa.bool_(),
    }
)


def fewer_samples(path: str, text: str) -> str:
    """The rule for few viewers: 15-minute windows, with bounds beyond chance."""
    if path != "video_qos/pipeline.yaml":
        return text
    return text.replace("min_samples: 200", "min_samples: 100").replace(
        "fire: {above: 0.05}\n    clear: {above: 0.04}", "fire: {above: 0.2}\n    clear: {above: 0.1}"
    )


def row(at_ms: int, viewer: Viewer, name: str, *, fatal: bool) -> dict[str, Any]:
    at = dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC)
    values = (at.date(), at, name, viewer.play_id, viewer.media_id, viewer.device, fatal)
    return dict(zip(SCHEMA.names, values, strict=True))


def traffic(seed: int) -> Iterator[dict[str, Any]]:
    rng = Random(f"video-day/{seed}")
    begin_ms = int(DAY.timestamp() * 1000)
    for number in range(VIEWS):
        viewer = Viewer.random(rng, number)
        for happening in view_events(viewer, rng, begin_ms + rng.randrange(24 * 3_600_000)):
            if not isinstance(happening, Report):
                continue
            at_ms = happening.at_ms
            yield row(at_ms, viewer, happening.kind, fatal=bool(happening.fields.get("fatal")))
            minute = (at_ms - begin_ms) / 60_000
            for device, first, minutes in INCIDENTS:
                if viewer.device == device and first <= minute < first + minutes and rng.random() < 0.6:
                    yield row(at_ms, viewer, "error", fatal=True)


def test_each_incident_raises_one_timely_alert(tmp_path: Path) -> None:
    lake = ShippedLake(tmp_path, "video_qos", "cdn_logs", edit=fewer_samples)
    harness = RuleHarness(lake.catalog, "video_qos")
    rows = sorted(traffic(1), key=lambda item: item["event_time"])
    uri = lake.catalog.environment.lake.uri(paths.table("video_qos", "player_events"))
    at, told_at, unknown_at = 0, {}, None
    for minute in range(LOOK_MINUTES, 24 * 60, LOOK_MINUTES):
        until = DAY + dt.timedelta(minutes=minute)
        if not STOP[0] <= minute < sum(STOP):
            end = next((place for place in range(at, len(rows)) if rows[place]["event_time"] >= until), len(rows))
            new, at = rows[at:end], end
            data = pa.Table.from_pylist(new, schema=SCHEMA)
            write_deltalake(uri, data, mode="append", partition_by=["event_date"])
        harness.evaluator._tables.mark_stale()
        harness.evaluator.evaluate(until)
        for subject in harness.open_subjects():
            told_at.setdefault(subject, minute)
        if unknown_at is None and harness.open_subjects("RULE_UNKNOWN"):
            unknown_at = minute

    live = sorted(
        (item.labels, item.began, item.fired, item.ended) for item in harness.state("playback_errors").episodes
    )
    assert [labels for labels, *_ in live] == [("browser",), ("phone",), ("tv",)], live
    for device, first, minutes in INCIDENTS:
        delay = told_at[f"video_qos.playback_errors{{device={device}}}"] - first
        assert 0 < delay <= PROMISED_MINUTES, (device, delay)
        (began,) = [began for labels, began, *_ in live if labels == (device,)]
        assert (
            DAY + dt.timedelta(minutes=first)
            <= minute_start(parse_minute(began))
            <= DAY + dt.timedelta(minutes=first + minutes)
        )
    assert unknown_at is not None
    assert STOP[0] < unknown_at <= STOP[0] + 20

    rule = {item.name: item for item in lake.catalog.pipeline("video_qos").rules}["playback_errors"]
    result = backtest(lake.catalog, "video_qos", rule, since=DAY, until=DAY + dt.timedelta(days=1), keep_points=False)
    again = sorted((item.labels, item.began, item.fired, item.ended) for item in result.episodes)
    minutes_of = [
        (labels, parse_minute(began), parse_minute(fired), None if ended is None else parse_minute(ended))
        for labels, began, fired, ended in live
    ]
    assert again == minutes_of
    assert [notification.kind for notification in result.notifications] == ["raised", "resolved"] * 3
