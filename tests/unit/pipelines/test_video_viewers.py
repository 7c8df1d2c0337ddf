"""Who had a problem: a broken OS, buffering against its baseline, the cohort as a feed; what real players report."""

from __future__ import annotations

import datetime as dt
import gzip
from collections import Counter, defaultdict
from pathlib import Path

import duckdb
import pytest

from deltaworks.control.objects import open_objects
from deltaworks.feeds.process import Feed
from deltaworks.specs.catalog import PROJECT_ROOT
from generator.qos_truth import ViewersTruth
from generator.viewers import ViewersSettings, viewer_deliveries
from tests.unit.feeds.feed_harness import Receiver, applied
from tests.unit.pipelines.shipped_lake import ShippedLake
from tests.unit.pipelines.test_video_known_answers import players

BUFFERING = (PROJECT_ROOT / "include/pipelines/video_qos/views/buffering_by_region.sql").read_text()


@pytest.fixture(scope="module")
def updated(tmp_path_factory: pytest.TempPathFactory) -> tuple[ShippedLake, ViewersTruth]:
    """Views of which those on iOS 17.4 fail."""
    truth = ViewersTruth()
    lake = ShippedLake(tmp_path_factory.mktemp("updated"), "cdn_logs", "video_qos")
    deliveries = viewer_deliveries(ViewersSettings(views=150, seed=5, broken_os_version="17.4"), truth)
    objects = [(item.key, gzip.decompress(item.body)) for item in deliveries if item.key.startswith("video_qos/")]
    lake.land("video_qos", *objects)
    lake.build("video_qos", "views", "problem_viewers")
    return lake, truth


def test_an_update_that_broke_playback_stands_out(updated: tuple[ShippedLake, ViewersTruth]) -> None:
    lake, truth = updated
    rows = lake.rows(
        "SELECT os, os_version, sum(problem_viewers) / sum(viewers) FROM video_qos.problems_by_os GROUP BY ALL"
    )
    shares = {(os, version): share for os, version, share in rows}
    started = [view for view in truth.views.values() if view.first_frame_ms is not None]
    broken = [view for view in started if view.first_report.viewer.client.os_version == "17.4"]

    assert len(broken) > 10
    assert all(view.has_problem for view in broken)
    assert max(shares, key=lambda name: shares[name]) == ("iOS", "17.4")
    assert shares["iOS", "17.4"] > 0.8
    assert max(share for name, share in shares.items() if name != ("iOS", "17.4")) < 0.5


def test_the_cohort_is_delivered_by_token_and_changes_with_late_reports(
    updated: tuple[ShippedLake, ViewersTruth],
) -> None:
    lake, truth = updated
    spec = lake.catalog.pipeline("video_qos")
    (declaration,) = spec.feeds
    receiver, objects = Receiver(), open_objects(lake.catalog.environment.lake)
    all_rows = declaration.model_copy(update={"start": "all"})

    Feed(lake.catalog, spec, all_rows, objects, receiver).run_once()

    members: defaultdict[tuple[dt.date, str], list[bool]] = defaultdict(list)
    for view in truth.views.values():
        day = dt.datetime.fromtimestamp(view.started_ms / 1000, dt.UTC).date()
        members[day, view.first_report.viewer.user_id].append(view.has_problem)
    rows = applied(receiver.messages, ["event_date", "user_id"]).values()
    counted = Counter((day.isoformat(), sum(problems)) for (day, _), problems in members.items() if any(problems))
    assert Counter((row["event_date"], int(row["problem_views"])) for row in rows) == counted
    assert all(row["user_id"].startswith("p1_") for row in rows)


def test_buffering_is_compared_with_the_same_hour_of_past_dates() -> None:
    start = dt.datetime(2026, 3, 1, 20, tzinfo=dt.UTC)
    rows = [
        (start + dt.timedelta(days=day, hours=hour), isp, "HE", 60_000, stalled)
        for day, usual in enumerate([600, 1_200, 900, 6_000])
        for hour in (0, 1)
        for isp, stalled in (("A", usual if hour == 0 else 300), ("B", 600))
    ]
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(
            "CREATE TABLE qos_minute "
            "(minute TIMESTAMPTZ, isp VARCHAR, region VARCHAR, played_ms BIGINT, stalled_ms BIGINT)"
        )
        connection.executemany("INSERT INTO qos_minute VALUES (?, ?, ?, ?, ?)", rows)
        compared = connection.execute(
            "SELECT isp, extract(HOUR FROM hour), days, rebuffer_ratio, usual, usual_low, usual_high "
            f"FROM ({BUFFERING}) WHERE hour >= ? ORDER BY 1, 2",
            [start + dt.timedelta(days=3)],
        ).fetchall()
        early = connection.execute(f"SELECT count(usual) FROM ({BUFFERING}) WHERE days < 3").fetchall()

    def ratio(stalled: int) -> float:
        return stalled / (60_000 + stalled)

    expected = (ratio(6_000), ratio(900), ratio(600), ratio(1_200))
    assert compared[0][:3] == ("A", 20, 3)
    assert compared[0][3:] == pytest.approx(expected)
    assert compared[1][3:] == pytest.approx([ratio(300)] * 4)
    assert compared[2][3:] == pytest.approx([ratio(600)] * 4)
    assert early == [(0,)], "no baseline from fewer than three dates"


def test_real_players_say_their_browser_version_and_resolution(tmp_path: Path, shared_players: Path) -> None:
    lake = players(tmp_path, shared_players)

    browsers = dict(lake.rows("SELECT browser, count(*) FROM video_qos.player_events GROUP BY 1"))
    systems = dict(lake.rows("SELECT os, count(*) FROM video_qos.player_events GROUP BY 1"))
    assert browsers == {"Firefox": 151, "Safari": 66, "Chrome": 31}
    assert systems == {"Mac OS X": 241, "Linux": 7}
    assert lake.rows("SELECT DISTINCT app_version FROM video_qos.views") == [("js-3.2.3",)]
    assert lake.rows("SELECT height, count(*) FROM video_qos.player_events GROUP BY 1 ORDER BY 1") == [
        (720, 33),
        (None, 215),
    ]
    # They measure no round trip and show no ads: nothing is made up.
    assert lake.rows("SELECT sum(rtts), sum(frames), sum(ads), count(connection) FROM video_qos.views") == [
        (0, 0, 0, 0)
    ]
    assert lake.one("SELECT count(*) FROM video_qos.problem_viewers") == 0
