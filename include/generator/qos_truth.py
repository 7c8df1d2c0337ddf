"""Counts the expected contents of the tables of `video_qos` and `cdn_logs` while views are generated.

Reads no emitted bytes and shares no code with the pipelines.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

from generator.percentiles import percentile
from generator.viewing import CDN, ERROR_CLASSES, Report, Request

_HIT_RESULTS = frozenset({"Hit", "RefreshHit", "OriginShieldHit"})
_MINUTE_MS = 60_000
#: Minute, CDN, provider, country, region, device.
QosKey = tuple[datetime, str, str, str, str, str]
#: Minute, CDN, edge, ASN, provider, country, region.
CdnKey = tuple[datetime, str, str, int | None, str | None, str | None, str | None]


def minute_of(at_ms: int) -> datetime:
    """Returns the minute of a time in epoch milliseconds."""
    return datetime.fromtimestamp(at_ms // _MINUTE_MS * 60, UTC)


@dataclass(slots=True)
class ViewTruth:
    """The expected values of one view. Times are epoch milliseconds."""

    first_report: Report
    started_ms: int
    ended_ms: int
    intent_ms: int | None = None
    first_frame_ms: int | None = None
    played_ms: int = 0
    bitrate_played: int = 0
    stalled_ms: int = 0
    stalls: int = 0
    seeks: int = 0
    fatal_errors: int = 0
    rtts_ms: list[int] = field(default_factory=list)
    height_played: int = 0
    frames: int = 0
    dropped_frames: int = 0
    ads: int = 0
    ad_errors: int = 0
    ad_ms: int = 0
    requests: int = 0
    starved_requests: int = 0
    bytes: int = 0
    edge: str | None = None

    def count_playback(self, fields: dict[str, Any]) -> None:
        """Counts what a heartbeat reports of the connection and the picture."""
        self.rtts_ms.append(fields["rtt_ms"])
        self.height_played += fields["played_ms"] * fields["height"]
        self.frames += fields["frames"]
        self.dropped_frames += fields["dropped_frames"]

    def count_ad(self, report: Report) -> None:
        """Counts the start, the failure or the end of an ad."""
        self.ads += report.kind == "ad_start"
        self.ad_errors += report.kind == "ad_error"
        self.ad_ms += report.fields.get("ad_ms", 0)

    @property
    def has_problem(self) -> bool:
        """Whether it failed, or stalled for more than a twentieth of its time after the first frame."""
        share = self.stalled_ms / (self.played_ms + self.stalled_ms) if self.played_ms + self.stalled_ms else 0.0
        return self.fatal_errors > 0 or (self.first_frame_ms is not None and share > 0.05)

    @property
    def startup_ms(self) -> int | None:
        """Startup time; None if the view did not start."""
        return None if self.first_frame_ms is None or self.intent_ms is None else self.first_frame_ms - self.intent_ms


@dataclass(slots=True)
class QosMinute:
    """Quality of service for one minute and its dimensions."""

    active_views: int = 0
    attempts: int = 0
    plays: int = 0
    start_failures: int = 0
    exits_before_start: int = 0
    playback_failures: int = 0
    startups: list[int] = field(default_factory=list)
    played_ms: int = 0
    bitrate_played: int = 0
    stalled_ms: int = 0
    stalls: int = 0

    def row(self) -> tuple[Any, ...]:
        """Returns the values in the order of the gold table, with percentiles rounded to microseconds."""
        shares = (percentile(self.startups, share) for share in (0.5, 0.95))
        return (
            self.active_views,
            self.attempts,
            self.plays,
            self.start_failures,
            self.exits_before_start,
            self.playback_failures,
            sum(self.startups),
            *(None if value is None else round(value, 3) for value in shares),
            self.played_ms,
            self.bitrate_played,
            self.stalled_ms,
            self.stalls,
        )


@dataclass(slots=True)
class Traffic:
    """Requests of one minute and its dimensions."""

    counts: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    hit_ms: list[int] = field(default_factory=list)


@dataclass(slots=True)
class ViewersTruth:
    """The expected results, complete after the last object. Duplicates count once."""

    views: dict[str, ViewTruth] = field(default_factory=dict)
    errors: Counter[tuple[datetime, str]] = field(default_factory=Counter)
    fatal_errors: Counter[tuple[datetime, str]] = field(default_factory=Counter)
    traffic: defaultdict[CdnKey, Traffic] = field(default_factory=lambda: defaultdict(Traffic))
    latency: defaultdict[tuple[datetime, str, str], list[int]] = field(default_factory=lambda: defaultdict(list))
    histogram: Counter[int] = field(default_factory=Counter)
    quarantined_rows: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    sent_objects: Counter[str] = field(default_factory=Counter)
    last_report_ms: dict[str, int] = field(default_factory=dict)
    users: dict[str, str] = field(default_factory=dict)
    _playback: defaultdict[QosKey, QosMinute] = field(default_factory=lambda: defaultdict(QosMinute))

    def record_last_report(self, report: Report) -> None:
        """Records the last report time and the user of a view, from any landed report."""
        play_id = report.viewer.play_id
        self.last_report_ms[play_id] = max(report.at_ms, self.last_report_ms.get(play_id, report.at_ms))
        self.users[play_id] = report.viewer.user_id

    def count_report(self, report: Report) -> None:
        """Counts a valid player event at its first emission; events of a view must be in order of time."""
        at, fields = report.at_ms, report.fields
        if report.kind == "error":
            kind = str(fields["error_class"]).lower()
            key = (minute_of(at), kind if kind in ERROR_CLASSES else "other")
            self.errors[key] += 1
            self.fatal_errors[key] += bool(fields["fatal"])
        if not report.is_counted:
            return
        view = self.views.setdefault(report.viewer.play_id, ViewTruth(report, at, at))
        view.ended_ms = max(view.ended_ms, at)
        minute = self._playback[(minute_of(at), *report.viewer.dimensions)]
        match report.kind:
            case "intent":
                view.intent_ms = at
            case "first_frame":
                view.first_frame_ms = at
            case "heartbeat":
                weighted = fields["played_ms"] * fields["bitrate_kbps"]
                view.played_ms += fields["played_ms"]
                view.bitrate_played += weighted
                view.count_playback(fields)
                minute.played_ms += fields["played_ms"]
                minute.bitrate_played += weighted
            case "stall" if not fields["after_seek"]:
                view.stalled_ms += fields["stalled_ms"]
                view.stalls += 1
                minute.stalled_ms += fields["stalled_ms"]
                minute.stalls += 1
            case "seek":
                view.seeks += 1
            case "ad_start" | "ad_error" | "ad_end":
                view.count_ad(report)
            case "error":
                view.fatal_errors += bool(fields["fatal"])

    def count_request(self, request: Request) -> None:
        """Counts a request at its first emission."""
        at = request.at_ms // 1000 * 1000
        network = request.viewer.network if request.viewer else None
        location = (network.asn, network.isp, network.country, network.region) if network else (None, None, None, None)
        edge = request.edge[:3]
        traffic = self.traffic[(minute_of(at), CDN, edge, *location)]
        is_hit = request.result in _HIT_RESULTS
        traffic.bytes += request.size_bytes
        traffic.counts["requests"] += 1
        traffic.counts["answered"] += request.status != "000"
        traffic.counts["errors_5xx"] += request.status[0] == "5"
        traffic.counts["clients_left"] += request.status == "000" or (request.status, request.result) == (
            "200",
            "Error",
        )
        traffic.counts["cacheable"] += is_hit or request.result == "Miss"
        traffic.counts["hits"] += is_hit
        traffic.counts["player_requests"] += bool(request.query)
        traffic.counts["starved_requests"] += request.is_starved
        if is_hit and request.uri.endswith(".m4s") and request.first_byte_ms is not None:
            self._count_hit(minute_of(at), edge, traffic, request)
        if request.viewer is not None and request.query:
            view = self.views[request.viewer.play_id]
            view.requests += 1
            view.starved_requests += request.is_starved
            view.bytes += request.size_bytes
            view.edge = edge

    def _count_hit(self, minute: datetime, edge: str, traffic: Traffic, request: Request) -> None:
        latency_ms = request.first_byte_ms or 0
        traffic.hit_ms.append(latency_ms)
        self.histogram[math.floor(100 * math.log10(latency_ms))] += 1
        self.latency[minute, "cdn", CDN].append(latency_ms)
        self.latency[minute, "edge", edge].append(latency_ms)
        if request.viewer is not None:
            network = request.viewer.network
            self.latency[minute, "isp", network.isp].append(latency_ms)
            self.latency[minute, "region", f"{network.country}-{network.region}"].append(latency_ms)

    def to_json(self) -> bytes:
        """Returns the expected results as JSON: totals, and expected rows by minute."""
        plain = {
            "objects": self.sent_objects,
            "quarantined": self.quarantined_rows,
            "views": len(self.views),
            "plays": sum(view.first_frame_ms is not None for view in self.views.values()),
            "qos_minute": [[*key, *minute.row()] for key, minute in sorted(self.minutes().items())],
            "error_minute": [[*key, n, self.fatal_errors[key]] for key, n in sorted(self.errors.items())],
            "cdn_minute": [[*key, traffic.bytes, traffic.counts] for key, traffic in self.traffic.items()],
        }
        return orjson.dumps(plain, option=orjson.OPT_INDENT_2)

    def minutes(self) -> dict[QosKey, QosMinute]:
        """Returns quality of service by minute and dimensions; a view is active in every minute it overlaps."""
        result: defaultdict[QosKey, QosMinute] = defaultdict(QosMinute)
        for key, playback in self._playback.items():
            minute = result[key]
            minute.played_ms, minute.bitrate_played = playback.played_ms, playback.bitrate_played
            minute.stalled_ms, minute.stalls = playback.stalled_ms, playback.stalls
        for view in self.views.values():
            dimensions = view.first_report.viewer.dimensions
            for start in minutes_of_view(view):
                result[(start, *dimensions)].active_views += 1
            if view.intent_ms is not None:
                minute = result[(minute_of(view.intent_ms), *dimensions)]
                minute.attempts += 1
                minute.playback_failures += view.fatal_errors > 0
                if view.startup_ms is not None:
                    minute.plays += 1
                    minute.startups.append(view.startup_ms)
                elif view.fatal_errors:
                    minute.start_failures += 1
                else:
                    minute.exits_before_start += 1
        return dict(result)


def minutes_of_view(view: ViewTruth) -> Iterator[datetime]:
    """Yields the minutes from a view's first event to its last."""
    for minute in range(view.started_ms // _MINUTE_MS, view.ended_ms // _MINUTE_MS + 1):
        yield minute_of(minute * _MINUTE_MS)
