"""The pipeline `video_qos` on real events of players, against the answers that were published with them."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.pipelines.shipped_lake import ShippedLake

Edit = Callable[[str, str], str]
#: What the players called their events, and what the pipeline does.
KINDS = {"seek": "seek", "seeked": "seek", "play": "play", "ended": "end"}
FIRST_SESSION = "WHERE coalesce(session_id, '') = first_session"


def context(row: dict[str, str], *names: str) -> dict[str, Any]:
    for name in names:
        if row[name]:
            return dict(json.loads(row[name])[0])
    raise AssertionError(f"no {names}")


def player_event(row: dict[str, str]) -> dict[str, Any]:
    """A line of the sample as the pipeline's players would send it."""
    media = context(row, "contexts_com_youtube_youtube_1_0_0", "contexts_org_whatwg_media_element_1_0_0")
    kind = context(row, "unstruct_event_com_snowplowanalytics_snowplow_media_player_event_1_0_0")["type"]
    return {
        "event_id": row["event_id"],
        "type": KINDS.get(kind, kind),
        "received_at": row["derived_tstamp"].replace(" ", "T") + "Z",
        "play_id": context(row, "contexts_com_snowplowanalytics_snowplow_web_page_1_0_0")["id"],
        "media_id": media.get("player_id") or media["html_id"],
        "session_id": row["domain_sessionid"],
        "user_id": row["domain_userid"],
        "device": row["dvce_type"],
        "ip": row["user_ipaddress"],
        "provider": row["ip_isp"],
        "browser": row["br_family"],
        "os": row["os_family"],
        "app_version": row["v_tracker"],
        "height": lines_of_picture(row),
    }


def lines_of_picture(row: dict[str, str]) -> int | None:
    """The height of an HTML5 video; YouTube's players do not say theirs."""
    element = row["contexts_org_whatwg_video_element_1_0_0"]
    return int(json.loads(element)[0]["video_height"]) if element else None


def with_provider(path: str, text: str) -> str:
    """The addresses of the sample are digests, and the provider is beside them."""
    return text.replace("path: _net.isp", "path: provider") if path == "video_qos/pipeline.yaml" else text


def players(folder: Path, shared_players: Path, edit: Edit = with_provider) -> ShippedLake:
    csv.field_size_limit(1 << 24)
    with (shared_players / "source" / "snowplow_media_player_events.csv").open() as file:
        events = [player_event(row) for row in csv.DictReader(file)]
    lake = ShippedLake(folder, "cdn_logs", "video_qos", edit=edit)
    lake.land("video_qos", ("video_qos/a.json", b"\n".join(json.dumps(event).encode() for event in events)))
    lake.build("cdn_logs")
    lake.build("video_qos")
    return lake


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, shared_players: Path) -> ShippedLake:
    return players(tmp_path_factory.mktemp("players"), shared_players)


def published(shared_players: Path) -> dict[tuple[str, str], dict[str, str]]:
    path = shared_players / "expected" / "postgres" / "snowplow_media_player_base_expected.csv"
    with path.open() as file:
        return {(row["page_view_id"], row["media_id"]): row for row in csv.DictReader(file)}


def test_events_views_users_and_sessions(lake: ShippedLake) -> None:
    counts = lake.rows(
        "SELECT count(*), count(DISTINCT (play_id, media_id)), count(DISTINCT user_id), count(DISTINCT session_id), "
        "count(network) FROM video_qos.player_events"
    )

    assert counts == [(248, 44, 9, 21, 0)]
    assert lake.one("SELECT count(*) FROM video_qos.views") == 44


def test_every_view_begins_ends_plays_and_seeks_as_published(lake: ShippedLake, shared_players: Path) -> None:
    views = {
        (row[0], row[1]): row[2:]
        for row in lake.rows(
            "SELECT play_id, media_id, strftime(started_at, '%Y-%m-%d %H:%M:%S.%g'), "
            "strftime(ended_at, '%Y-%m-%d %H:%M:%S.%g'), is_played, seeks::INT FROM video_qos.views"
        )
    }
    answers = published(shared_players)

    assert views.keys() == answers.keys()
    for place, (started, ended, is_played, seeks) in views.items():
        row = answers[place]
        assert (started, ended, is_played) == (row["start_tstamp"], row["end_tstamp"], row["is_played"] == "true")
        assert seeks == int(row["seeks"] or 0)
    assert sum(view[3] for view in views.values()) == 42


def test_plays_by_medium_and_views_at_once(lake: ShippedLake) -> None:
    plays = dict(lake.rows("SELECT media_id, count_if(is_played)::INT FROM video_qos.views GROUP BY 1"))

    assert sorted(plays.values()) == [0, 4, 37]
    assert lake.one("SELECT max(most_at_once) FROM video_qos.concurrent_views") == 2
    assert lake.one("SELECT max(concurrent_viewers) FROM video_qos.noc") == 3  # in a minute, not at once


def test_with_all_sessions_of_a_page_there_would_be_more(tmp_path: Path, shared_players: Path) -> None:
    def edit(path: str, text: str) -> str:
        return (
            with_provider(path, text).replace(FIRST_SESSION, "")
            if path.endswith("views.sql")
            else with_provider(path, text)
        )

    lake = players(tmp_path, shared_players, edit)

    assert lake.one("SELECT count_if(is_played)::INT FROM video_qos.views") == 42
    assert lake.one("SELECT max(most_at_once) FROM video_qos.concurrent_views") == 3


def test_a_view_has_the_network_it_began_in(lake: ShippedLake) -> None:
    by_event = Counter(
        dict(lake.rows("SELECT isp, count(DISTINCT (play_id, media_id)) FROM video_qos.player_events GROUP BY 1"))
    )
    by_view = Counter(dict(lake.rows("SELECT isp, count(*) FROM video_qos.views GROUP BY 1")))

    assert sorted(by_event.values(), reverse=True) == [31, 5, 4, 2, 2, 1]
    assert (by_event.total(), by_view.total()) == (45, 44)


def test_figures_that_players_do_not_send_are_null_and_no_zero(lake: ShippedLake) -> None:
    assert lake.one("SELECT count(startup_ms) FROM video_qos.views") == 0
    assert lake.one("SELECT count(rebuffer_ratio) + count(bitrate_kbps) FROM video_qos.noc") == 0
    assert lake.one("SELECT count(*) FROM video_qos.error_minute") == 0
