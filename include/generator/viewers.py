"""Simulates video viewers as landed objects: reports of their players, and the logs of the CDN that serves them.

Faults at configured rates:

- Reports: repeated, truncated, with values out of bounds, without a time, with a message in place of an id, and views
  that are reopened.
- Logs: delivered again under another name, a day late, unordered, with truncated lines, missing addresses,
  double-encoded user agents, and disconnected clients.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from random import Random
from urllib.parse import quote

import orjson

from deltaworks.errors import ConfigError
from generator.delivery import Delivery
from generator.qos_truth import ViewersTruth
from generator.viewing import Report, Request, Viewer, view_events

#: Fields of a standard log, in CloudFront's order.
LOG_FIELDS = [
    "date",
    "time",
    "x-edge-location",
    "sc-bytes",
    "c-ip",
    "cs-method",
    "cs(Host)",
    "cs-uri-stem",
    "sc-status",
    "cs(Referer)",
    "cs(User-Agent)",
    "cs-uri-query",
    "cs(Cookie)",
    "x-edge-result-type",
    "x-edge-request-id",
    "x-host-header",
    "cs-protocol",
    "cs-bytes",
    "time-taken",
    "x-forwarded-for",
    "ssl-protocol",
    "ssl-cipher",
    "x-edge-response-result-type",
    "cs-protocol-version",
    "fle-status",
    "fle-encrypted-fields",
    "c-port",
    "time-to-first-byte",
    "x-edge-detailed-result-type",
    "sc-content-type",
    "sc-content-len",
    "sc-range-start",
    "sc-range-end",
]
_HEADER = f"#Version: 1.0\n#Fields: {' '.join(LOG_FIELDS)}\n"
_HOST = "d111111abcdef8.cloudfront.net"
_BOT = "Mozilla/5.0 (compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm)"
#: Placeholders for a missing address.
_MISSING_ADDRESSES = ("x.x.x.x", "-")
_GZIP_LEVEL = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewerFaults:
    """Shares between 0 and 1.

    Attributes:
        repeated_reports: reports sent again in a later object.
        malformed: additional truncated records.
        out_of_bounds: additional reports that violate a rule.
        without_time: additional reports without a time.
        reopened_views: views reopened with the same id in another session.
        bot_requests: views with concurrent requests of a bot without an address.
        double_encoded: lines whose user agent and query are encoded twice.
        duplicate_logs: log objects delivered again under another name.
        late_objects: objects of either kind delivered after all others.
    """

    repeated_reports: float = 0.02
    malformed: float = 0.003
    out_of_bounds: float = 0.003
    without_time: float = 0.002
    reopened_views: float = 0.03
    bot_requests: float = 0.4
    double_encoded: float = 0.3
    duplicate_logs: float = 0.1
    late_objects: float = 0.1

    def __post_init__(self) -> None:
        for rate in fields(self):
            if not 0 <= getattr(self, rate.name) <= 1:
                raise ConfigError(
                    "GENERATOR_SETTING_INVALID",
                    f"The generator's settings are wrong: the rate {rate.name} is {getattr(self, rate.name)}.",
                    hint="A rate lies between 0 and 1.",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewersSettings:
    """All settings that determine the emitted bytes. Views begin within `minutes` after `start`, around midnight; some
    have not ended when the simulation ends. Playback fails on `broken_os_version`, such as 17.4, as after an update.
    """

    seed: int = 1
    views: int = 300
    start: datetime = datetime(2024, 3, 1, 23, 30, tzinfo=UTC)
    minutes: int = 45
    reports_per_object: int = 400
    lines_per_object: int = 800
    player_prefix: str = "video_qos/"
    log_prefix: str = "cdn_logs/cdn=cloudfront/"
    broken_os_version: str | None = None
    faults: ViewerFaults = field(default_factory=ViewerFaults)


def viewer_deliveries(settings: ViewersSettings, truth: ViewersTruth) -> Iterator[Delivery]:
    """Yields the objects of both pipelines in order of delivery, byte-identical for the same settings.

    Args:
        truth: collects the expected results during the simulation; complete after the last object.
    """
    rng = Random(f"viewers/{settings.seed}")
    reports, requests = _generate_events(settings, rng, truth)
    players = _ReportWriter(settings, rng, truth)
    logs = _LogWriter(settings, rng, truth)
    objects = [*players.objects(reports), *logs.objects(requests)]
    on_time: list[Delivery] = []
    late: list[Delivery] = []
    for delivery in objects:
        (late if rng.random() < settings.faults.late_objects else on_time).append(delivery)
    # Shuffles objects slightly: neither log lines nor log objects are ordered.
    for delivery in sorted(on_time, key=lambda delivery: delivery.delivered_at.timestamp() + rng.uniform(0, 600)):
        yield delivery
    for delivery in late:
        yield replace(delivery, delivered_at=delivery.delivered_at + timedelta(days=1))


def _generate_events(settings: ViewersSettings, rng: Random, truth: ViewersTruth) -> tuple[list[Report], list[Request]]:
    """Returns all reports and requests until the end of the simulation, in order of time, and counts them."""
    begin_ms = int(settings.start.timestamp() * 1000)
    end_ms = begin_ms + settings.minutes * 60_000
    reports: list[Report] = []
    requests: list[Request] = []
    for number in range(settings.views):
        viewer = Viewer.random(rng, number)
        at_ms = begin_ms + rng.randrange(settings.minutes * 60_000)
        last_ms = at_ms
        for event in view_events(viewer, rng, at_ms, broken_os_version=settings.broken_os_version):
            last_ms = max(last_ms, event.at_ms)
            if event.at_ms >= end_ms:
                continue
            if isinstance(event, Report):
                truth.count_report(event)
                reports.append(event)
            else:
                truth.count_request(event)
                requests.append(event)
        if rng.random() < settings.faults.reopened_views:
            reports += (report for report in _reopened_view(viewer, last_ms) if report.at_ms < end_ms)
        if rng.random() < settings.faults.bot_requests:
            requests += _bot_requests(rng, at_ms, truth)
    for landed_report in reports:
        truth.record_last_report(landed_report)
    reports.sort(key=lambda report: (report.at_ms, report.viewer.number))
    requests.sort(key=lambda request: request.at_ms)
    return reports, requests


def _reopened_view(viewer: Viewer, last_ms: int) -> Iterator[Report]:
    """Yields reports of the same page later, in another session; they do not count as part of the view."""
    fields = {"played_ms": 4_000, "bitrate_kbps": 800}
    yield Report(last_ms + 60_000, "play", viewer, {}, f"{viewer.session_id}-2", is_counted=False)
    yield Report(last_ms + 64_000, "heartbeat", viewer, fields, f"{viewer.session_id}-2", is_counted=False)


def _bot_requests(rng: Random, at_ms: int, truth: ViewersTruth) -> Iterator[Request]:
    """Yields requests of a bot without an address in the log."""
    address = rng.choice(_MISSING_ADDRESSES)
    for number in range(rng.randrange(1, 5)):
        request = Request(
            at_ms + number * 500, "FRA56-C1", None, address, _BOT, "/robots.txt", "", "404", "Error", 500, 0.01, 9
        )
        truth.count_request(request)
        yield request


class _ReportWriter:
    """Writes reports as objects of JSON lines."""

    def __init__(self, settings: ViewersSettings, rng: Random, truth: ViewersTruth) -> None:
        self._settings, self._rng, self._truth = settings, rng, truth
        self._sent_count = 0

    def objects(self, reports: Sequence[Report]) -> Iterator[Delivery]:
        """Yields the objects; each repeats some reports of the previous one."""
        size = self._settings.reports_per_object
        repeated: list[bytes] = []
        for number, begin in enumerate(range(0, len(reports), size)):
            batch = reports[begin : begin + size]
            pieces = list(repeated)
            repeated = []
            for report in batch:
                line = self._line(report)
                pieces.append(line)
                if self._rng.random() < self._settings.faults.repeated_reports:
                    repeated.append(line)
                pieces += self._faulty_lines(report, line)
            self._truth.sent_objects["video_qos"] += 1
            at = datetime.fromtimestamp(batch[-1].at_ms / 1000, UTC)
            key = f"{self._settings.player_prefix}{at:%Y/%m/%d/%H}/players-{number:05}.json.gz"
            yield _delivery(key, b"\n".join(pieces) + b"\n", len(pieces), at)

    def _line(self, report: Report, **overrides: object) -> bytes:
        viewer, client = report.viewer, report.viewer.client
        self._sent_count += 1
        fields = {
            "event_id": f"{viewer.play_id}-{self._sent_count:x}",
            "type": report.kind,
            "received_at": _iso_text(report.at_ms),
            # Some clients' clocks were never set; the pipeline computes nothing from `client_time`.
            "client_time": "1970-01-01T00:00:07Z" if viewer.number % 10 == 0 else _iso_text(report.at_ms - 300),
            "play_id": viewer.play_id,
            "media_id": viewer.media_id,
            "session_id": report.session_id,
            "user_id": viewer.user_id,
            "sid": viewer.sid,
            "player": "deltaworks-sample",
            "cdn": "cloudfront",
            "device": viewer.device,
            "ip": viewer.address,
            "os": client.os,
            "os_version": client.os_version,
            "app_version": client.app_version,
            "browser": client.browser,
            "connection": client.connection,
        }
        return orjson.dumps(fields | report.fields | overrides)

    def _faulty_lines(self, report: Report, line: bytes) -> Iterator[bytes]:
        """Yields additional lines that must be quarantined."""
        faults, quarantined_rows = self._settings.faults, self._truth.quarantined_rows["video_qos"]
        chance = self._rng.random()
        if chance < faults.malformed:
            quarantined_rows["malformed"] += 1
            yield line[: len(line) // 2]
        elif chance < faults.malformed + faults.out_of_bounds:
            quarantined_rows["rule"] += 1
            # A stall duration in epoch time, or a message instead of an id.
            invalid_fields = (
                {"stalled_ms": report.at_ms} if self._rng.random() < 0.5 else {"sid": "Failed to load: 404"}
            )
            yield self._line(report, **invalid_fields)
        elif chance < faults.malformed + faults.out_of_bounds + faults.without_time:
            quarantined_rows["missing_required"] += 1
            yield self._line(report, received_at=None)


class _LogWriter:
    """Writes requests as log objects with a header line."""

    def __init__(self, settings: ViewersSettings, rng: Random, truth: ViewersTruth) -> None:
        self._settings, self._rng, self._truth = settings, rng, truth

    def objects(self, requests: Sequence[Request]) -> Iterator[Delivery]:
        """Yields the objects; some are repeated under another name."""
        size = self._settings.lines_per_object
        for number, begin in enumerate(range(0, len(requests), size)):
            batch = list(requests[begin : begin + size])
            at = datetime.fromtimestamp(batch[-1].at_ms / 1000, UTC)
            self._rng.shuffle(batch)
            lines = [self._line(request) for request in batch]
            truncated_lines = [
                line.rsplit("\t", 3)[0] for line in lines if self._rng.random() < self._settings.faults.malformed
            ]
            body = (_HEADER + "\n".join([*lines, *truncated_lines]) + "\n").encode()
            copies = 2 if self._rng.random() < self._settings.faults.duplicate_logs else 1
            for copy in range(copies):
                self._truth.sent_objects["cdn_logs"] += 1
                self._truth.quarantined_rows["cdn_logs"]["malformed"] += len(truncated_lines)
                key = f"{self._settings.log_prefix}E2EXAMPLE.{at:%Y-%m-%d-%H}.{number:04}{'b' * copy}.gz"
                yield _delivery(key, body, len(lines) + len(truncated_lines), at)

    def _line(self, request: Request) -> str:
        at = datetime.fromtimestamp(request.at_ms // 1000, UTC)
        times = 2 if self._rng.random() < self._settings.faults.double_encoded else 1
        query = f"CMCD={_percent_encode(request.query, times)}" if request.query else "-"
        first_byte = "-" if request.first_byte_ms is None else f"{request.first_byte_ms / 1000:.3f}"
        values = {
            "date": f"{at:%Y-%m-%d}",
            "time": f"{at:%H:%M:%S}",
            "x-edge-location": request.edge,
            "sc-bytes": str(request.size_bytes),
            "c-ip": request.address,
            "cs-method": "GET",
            "cs(Host)": _HOST,
            "cs-uri-stem": request.uri,
            "sc-status": request.status,
            "cs(User-Agent)": _percent_encode(request.user_agent, times),
            "cs-uri-query": query,
            "x-edge-result-type": request.result,
            "x-edge-request-id": f"{self._rng.getrandbits(128):032x}==",
            "x-host-header": _HOST,
            "cs-protocol": "https",
            "cs-bytes": "330",
            "time-taken": f"{request.seconds:.3f}",
            "x-edge-response-result-type": request.result,
            "cs-protocol-version": "HTTP/2.0",
            "time-to-first-byte": first_byte,
            "x-edge-detailed-result-type": request.result,
        }
        return "\t".join(values.get(name, "-") for name in LOG_FIELDS)


def _percent_encode(text: str, times: int) -> str:
    for _ in range(times):
        text = quote(text, safe="/.()_-")
    return text


def _iso_text(at_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03}Z"


def _delivery(key: str, body: bytes, pieces: int, at: datetime) -> Delivery:
    return Delivery(key, gzip.compress(body, _GZIP_LEVEL, mtime=0), pieces, at)
