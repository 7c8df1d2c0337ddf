"""Compares the tables of `video_qos` and `cdn_logs` with the truth that the generator counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, date, datetime
from typing import Any

from generator.percentiles import percentile
from generator.qos_truth import ViewersTruth
from sandbox.demo.answers import AnswerSheet

_LOCATION = "minute, cdn, edge, asn, isp, country, region"
_TRAFFIC = (
    "requests",
    "answered",
    "errors_5xx",
    "clients_left",
    "cacheable",
    "hits",
    "player_requests",
    "starved_requests",
)
_DIMENSIONS = "minute, cdn, isp, country, region, device"
_PERCENTILES = (0.5, 0.95, 0.99)
#: Maximum relative error: buckets are 2.3 % wide, and each value counts as the middle of its bucket.
_BUCKET_ERROR = 0.024
#: Retention of a view in the live table, and activity window, as declared by the pipeline.
_RETENTION_MS, _ACTIVE_MS = 30 * 60_000, 5 * 60_000


def answer_cdn(sheet: AnswerSheet, truth: ViewersTruth) -> None:
    """Compares the tables of pipeline `cdn_logs` with the truth."""
    _quarantine(sheet, truth, "cdn_logs")
    columns = ", ".join(f"{name}::BIGINT" for name in _TRAFFIC)
    minutes = {
        (_utc(row[0]), *row[1:7]): tuple(row[7:])
        for row in sheet.fetch_rows(f"SELECT {_LOCATION}, bytes::BIGINT, {columns} FROM cdn_logs.cdn_minute")
    }
    traffic = {
        key: (requests.bytes, *(requests.counts[name] for name in _TRAFFIC)) for key, requests in truth.traffic.items()
    }
    sheet.check_rows("cdn_logs", "requests, errors, hits by minute, edge, ISP, region", minutes, traffic)
    exact = {
        (_utc(row[0]), *row[1:7]): tuple(row[7:])
        for row in sheet.fetch_rows(
            f"SELECT {_LOCATION}, {_rounded('first_byte_ms')} FROM cdn_logs.cdn_minute WHERE media_hits > 0"
        )
    }
    expected = {key: _percentiles(requests.hit_ms) for key, requests in truth.traffic.items() if requests.hit_ms}
    sheet.check_rows("cdn_logs", "latency p50, p95, p99 by minute and all of them", exact, expected)
    by_dimension = {
        (_utc(row[0]), row[1], row[2]): tuple(row[3:])
        for row in sheet.fetch_rows(
            f"SELECT minute, dimension, value, {_rounded('first_byte_ms')} FROM cdn_logs.cdn_latency"
        )
    }
    sheet.check_rows(
        "cdn_logs",
        "latency p50, p95, p99 by CDN, edge, ISP, region",
        by_dimension,
        {key: _percentiles(taken) for key, taken in truth.latency.items()},
    )
    buckets = dict(
        sheet.fetch_rows("SELECT bucket, sum(media_hits)::BIGINT FROM cdn_logs.latency_histogram GROUP BY bucket")
    )
    sheet.check_rows("cdn_logs", "histogram of latency, all minutes added", buckets, dict(truth.histogram))
    _answer_rolled_up(sheet, truth)
    cacheable = sum(requests.counts["cacheable"] for requests in truth.traffic.values())
    hits = sum(requests.counts["hits"] for requests in truth.traffic.values())
    ratio = sheet.fetch_one("SELECT round(sum(hits) / sum(cacheable), 9) FROM cdn_logs.cdn_minute")
    sheet.check_equal("cdn_logs", "hit ratio", ratio, round(hits / cacheable, 9))


def _answer_rolled_up(sheet: AnswerSheet, truth: ViewersTruth) -> None:
    """Checks that the p95 from histogram buckets differs from the exact value by at most one bucket."""
    every = sorted(taken for requests in truth.traffic.values() for taken in requests.hit_ms)
    at_place = every[max(0, -(-95 * len(every) // 100) - 1)]
    rolled = sheet.fetch_one(
        "SELECT 10 ** ((min(bucket) + 0.5) / 100) FROM ("
        "SELECT bucket, sum(sum(media_hits)) OVER (ORDER BY bucket) AS upto, sum(sum(media_hits)) OVER () AS total "
        "FROM cdn_logs.latency_histogram GROUP BY bucket) WHERE upto >= 0.95 * total"
    )
    right = abs(rolled / at_place - 1) <= _BUCKET_ERROR
    sheet.check_equal("cdn_logs", "p95 of all from buckets, within 2.4 %", right, True)


def answer_video(sheet: AnswerSheet, truth: ViewersTruth) -> None:
    """Compares with the truth those tables of `video_qos` that depend only on player events."""
    _quarantine(sheet, truth, "video_qos")
    minutes = {
        (_utc(row[0]), *row[1:6]): tuple(row[6:])
        for row in sheet.fetch_rows(
            f"SELECT {_DIMENSIONS}, active_views, attempts, plays, start_failures, exits_before_start, "
            "playback_failures, "
            "startup_ms::BIGINT, round(startup_ms_p50, 3), round(startup_ms_p95, 3), played_ms::BIGINT, "
            "bitrate_played::BIGINT, stalled_ms::BIGINT, stalls FROM video_qos.qos_minute"
        )
    }
    sheet.check_rows(
        "video_qos",
        "views, start-up, stalls, bitrate by minute and all dimensions",
        minutes,
        {key: minute.row() for key, minute in truth.minutes().items()},
    )
    errors = {
        (_utc(minute), kind): (int(errors), int(fatal))
        for minute, kind, errors, fatal in sheet.fetch_rows(
            "SELECT minute, error_class, sum(errors), sum(fatal_errors) FROM video_qos.error_minute GROUP BY ALL"
        )
    }
    sheet.check_rows(
        "video_qos",
        "errors by minute and class",
        errors,
        {key: (count, truth.fatal_errors[key]) for key, count in truth.errors.items()},
    )
    played = sum(view.played_ms for view in truth.views.values())
    stalled = sum(view.stalled_ms for view in truth.views.values())
    weighted = sum(view.bitrate_played for view in truth.views.values())
    ratio = sheet.fetch_one("SELECT sum(stalled_ms) / (sum(played_ms) + sum(stalled_ms)) FROM video_qos.qos_minute")
    sheet.check_equal("video_qos", "rebuffer ratio", round(ratio, 9), round(stalled / (played + stalled), 9))
    bitrate = sheet.fetch_one("SELECT sum(bitrate_played) / sum(bitrate_played_ms) FROM video_qos.qos_minute")
    sheet.check_equal("video_qos", "bitrate while played, kbit/s", round(bitrate, 6), round(weighted / played, 6))
    startups = Counter(int(view.startup_ms) for view in truth.views.values() if view.startup_ms is not None)
    plays = sheet.fetch_one("SELECT sum(plays)::BIGINT FROM video_qos.startup_histogram")
    sheet.check_equal("video_qos", "plays in the histogram of start-up", plays, startups.total())
    most = sheet.fetch_one("SELECT max(most_at_once) FROM video_qos.concurrent_views")
    sheet.check_equal("video_qos", "most concurrent viewers", most, _max_concurrent(truth))
    _answer_clients(sheet, truth)
    answer_viewers_now(sheet, truth)


def _answer_clients(sheet: AnswerSheet, truth: ViewersTruth) -> None:
    """Compares what players report of themselves, and who had a problem."""
    views = {
        row[0]: tuple(row[1:])
        for row in sheet.fetch_rows(
            "SELECT play_id, connection, browser, rtt_ms::BIGINT, rtts::BIGINT, height_played::BIGINT, frames::BIGINT, "
            "dropped_frames::BIGINT, ads::BIGINT, ad_errors::BIGINT, ad_ms::BIGINT FROM video_qos.views"
        )
    }
    expected = {}
    viewers: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    with_problem: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    cohort: defaultdict[tuple[date, str], list[bool]] = defaultdict(list)
    for play_id, view in truth.views.items():
        viewer = view.first_report.viewer
        client = viewer.client
        rtts = (sum(view.rtts_ms), len(view.rtts_ms))
        measured = (*rtts, view.height_played, view.frames, view.dropped_frames, view.ads, view.ad_errors, view.ad_ms)
        expected[play_id] = (client.connection, client.browser, *measured)
        day = datetime.fromtimestamp(view.started_ms / 1000, UTC).date()
        key = (day.isoformat(), viewer.device, client.os, client.os_version, client.app_version)
        viewers[key].add(viewer.user_id)
        if view.has_problem:
            with_problem[key].add(viewer.user_id)
        cohort[day, viewer.user_id].append(view.has_problem)
    sheet.check_rows("video_qos", "round trips, resolution, frames, ads by view", views, expected)
    shares = {
        tuple(row[:5]): tuple(row[5:])
        for row in sheet.fetch_rows(
            "SELECT event_date::VARCHAR, device, os, os_version, app_version, viewers, problem_viewers "
            "FROM video_qos.problems_by_os"
        )
    }
    counted = {key: (len(users), len(with_problem[key])) for key, users in viewers.items()}
    sheet.check_rows("video_qos", "viewers with a problem by device, OS and version", shares, counted)
    # Users are tokens in the lake, so the cohort is compared by its numbers of views.
    listed = Counter(
        (day, int(views_), int(problems))
        for day, views_, problems in sheet.fetch_rows(
            "SELECT event_date, views, problem_views FROM video_qos.problem_viewers"
        )
    )
    members = Counter((day, len(watched), sum(watched)) for (day, _), watched in cohort.items() if any(watched))
    sheet.check_rows("video_qos", "cohort of viewers with a problem", dict(listed), dict(members))


def answer_viewers_now(sheet: AnswerSheet, truth: ViewersTruth) -> None:
    """Checks the live table: the latest report of each view in the last half hour, and the active viewers at
    the end."""
    newest = max(truth.last_report_ms.values())
    recent = {play_id: at for play_id, at in truth.last_report_ms.items() if at >= newest - _RETENTION_MS}
    merged = dict(
        sheet.fetch_rows(
            "SELECT play_id, epoch_ms(event_time) FROM video_qos.views_now "
            "WHERE event_time >= (SELECT max(event_time) FROM video_qos.views_now) - INTERVAL 30 MINUTE"
        )
    )
    sheet.check_rows("video_qos", "live: newest report of each view", merged, recent)
    users = {truth.users[play_id] for play_id, at in recent.items() if at >= newest - _ACTIVE_MS}
    active = sheet.fetch_rows("SELECT active_users FROM video_qos.viewers_now")
    sheet.check_equal("video_qos", "live: users active within 5 minutes", active[0][0] if active else None, len(users))


def answer_delivery(sheet: AnswerSheet, truth: ViewersTruth) -> None:
    """Checks the join of player events with CDN logs for each view."""
    joined = {
        row[0]: tuple(row[1:])
        for row in sheet.fetch_rows(
            "SELECT play_id, edge, requests::BIGINT, starved_requests::BIGINT, bytes::BIGINT, stalls, "
            "stalled_ms::BIGINT FROM video_qos.view_delivery"
        )
    }
    views = {
        play_id: (view.edge, view.requests, view.starved_requests, view.bytes, view.stalls, view.stalled_ms)
        for play_id, view in truth.views.items()
    }
    sheet.check_rows("video_qos", "each view with its requests to the CDN", joined, views)
    startups: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
    for view in truth.views.values():
        if view.startup_ms is not None and view.edge is not None:
            day = datetime.fromtimestamp(view.started_ms / 1000, UTC).date().isoformat()
            startups[day, view.edge, view.first_report.viewer.client.app_version].append(view.startup_ms)
    by_edge = {
        tuple(row[:3]): tuple(row[3:])
        for row in sheet.fetch_rows(
            "SELECT event_date::VARCHAR, edge, app_version, plays, round(startup_ms_p50, 3), round(startup_ms_p95, 3) "
            "FROM video_qos.startup_by_edge"
        )
    }
    expected = {
        key: (
            len(times),
            *(None if (value := percentile(times, share)) is None else round(value, 3) for share in (0.5, 0.95)),
        )
        for key, times in startups.items()
    }
    sheet.check_rows("video_qos", "time to the first frame by edge and version", by_edge, expected)


def _quarantine(sheet: AnswerSheet, truth: ViewersTruth, pipeline: str) -> None:
    expected = {reason: rows for reason, rows in truth.quarantined_rows[pipeline].items() if rows}
    rows = (
        sheet.fetch_rows(f"SELECT reasons[1].code, count(*) FROM {pipeline}.quarantine GROUP BY 1")
        if sheet.has_table(f"{pipeline}.quarantine")
        else []
    )
    sheet.check_rows(pipeline, "quarantined rows by reason", dict(rows), expected)


def _max_concurrent(truth: ViewersTruth) -> int:
    """Returns the maximum number of concurrent views. It is reached at the start of a view."""
    spans = sorted((view.started_ms, view.ended_ms) for view in truth.views.values())
    return max(sum(begin <= at <= end for begin, end in spans) for at, _ in spans)


def _percentiles(values: list[int]) -> tuple[float | None, ...]:
    return tuple(None if (value := percentile(values, share)) is None else round(value, 3) for share in _PERCENTILES)


def _rounded(column: str) -> str:
    return ", ".join(f"round({column}_p{share}, 3)" for share in (50, 95, 99))


def _utc(value: Any) -> datetime:
    at: datetime = value
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
