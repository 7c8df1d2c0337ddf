"""Simulates one video view: the reports of its player and its requests to the CDN.

A view fails to start, is abandoned, or plays. A playing view reports every ten seconds, requests one four-second
segment after another, and sometimes stalls, seeks, or has recoverable or fatal errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from generator.networks import NETWORKS, Network

REPORT_MS = 10_000
SEGMENT_MS = 4_000
CDN = "cloudfront"
ERROR_CLASSES = ("network", "decode", "drm", "manifest")
_LADDER_KBPS = (800, 1_800, 3_200, 5_600)
_DEVICES = {
    "tv": "Mozilla/5.0 (SMART-TV; Linux; Tizen 6.0) AppleWebKit/538.1 (KHTML, like Gecko) Version/6.0 TV Safari/538.1",
    "phone": "Mozilla/5.0 (iPhone; CPU iPhone OS 16_3 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko)",
    "browser": "Mozilla/5.0 (X11; Linux x86_64; rv:109.0) Gecko/20100101 Firefox/115.0",
}
_REMOTE_EDGE_SHARE = 0.1
#: Operating system, its versions, and the browser of each device; the phone's newest version came with an update.
_SYSTEMS = {
    "tv": ("Tizen", ("6.0", "6.5"), "TV Safari"),
    "phone": ("iOS", ("16.3", "17.4"), "Safari"),
    "browser": ("Linux", ("6.1",), "Firefox"),
}
_APP_VERSIONS = ("5.1.0", "5.2.0")
#: Round-trip time in milliseconds, and dropped frames in a thousand, by connection.
_CONNECTIONS = {"ethernet": (9, 0), "wifi": (24, 4), "cellular": (62, 11)}
_FRAMES_PER_SECOND = 25
_LINES = {800: 480, 1_800: 720, 3_200: 1_080, 5_600: 2_160}
_AD_MS = 6_000


@dataclass(frozen=True, slots=True)
class Client:
    """A player and its connection. Derived from the play's id alone, so that it changes no other random value."""

    os: str
    os_version: str
    app_version: str
    browser: str
    connection: str
    has_ad: bool
    ad_fails: bool

    @classmethod
    def of_play(cls, play_id: str, device: str) -> Client:
        """Returns the client of a play."""
        rng = Random(f"client/{play_id}")
        os, versions, browser = _SYSTEMS[device]
        return cls(
            os=os,
            os_version=rng.choice(versions),
            app_version=rng.choice(_APP_VERSIONS),
            browser=browser,
            connection=rng.choice(tuple(_CONNECTIONS)),
            has_ad=rng.random() < 0.5,
            ad_fails=rng.random() < 0.1,
        )

    def playback(self, at_ms: int, played_ms: int, kbps: int) -> dict[str, int]:
        """Returns what a heartbeat reports of the time since the one before."""
        rtt_ms, dropped_per_thousand = _CONNECTIONS[self.connection]
        frames = played_ms * _FRAMES_PER_SECOND // 1_000
        return {
            "played_ms": played_ms,
            "bitrate_kbps": kbps,
            "rtt_ms": rtt_ms + at_ms % 7,
            "height": _LINES[kbps],
            "frames": frames,
            "dropped_frames": frames * dropped_per_thousand // 1_000,
        }


@dataclass(frozen=True, slots=True)
class Viewer:
    """A viewer, device and network: the fields shared by all events of a view."""

    number: int
    play_id: str
    media_id: str
    session_id: str
    user_id: str
    sid: str
    device: str
    network: Network
    address: str
    edge: str

    @classmethod
    def random(cls, rng: Random, number: int) -> Viewer:
        """Returns a random viewer."""
        network = rng.choices(NETWORKS, (5, 3, 4, 2, 2, 1))[0]
        edge = rng.choice(NETWORKS).edge if rng.random() < _REMOTE_EDGE_SHARE else network.edge
        return cls(
            number=number,
            play_id=f"p-{rng.getrandbits(64):016x}",
            media_id=f"film-{rng.randrange(12)}",
            session_id=f"s-{rng.getrandbits(64):016x}",
            user_id=f"u-{rng.randrange(300)}",
            # Ids are case-sensitive.
            sid="".join(rng.choice("abcdefABCDEF0123456789") for _ in range(16)),
            device=rng.choice(tuple(_DEVICES)),
            network=network,
            address=network.random_address(rng),
            edge=edge,
        )

    @property
    def user_agent(self) -> str:
        """The user agent of the player."""
        return _DEVICES[self.device]

    @property
    def client(self) -> Client:
        """The player and its connection."""
        return Client.of_play(self.play_id, self.device)

    @property
    def dimensions(self) -> tuple[str, str, str, str, str]:
        """CDN, provider, country, region and device: the grouping of the gold tables."""
        return CDN, self.network.isp, self.network.country, self.network.region, self.device


@dataclass(frozen=True, slots=True)
class Report:
    """A player event. `is_counted` is true if it counts as part of the view: in the view's first session and within
    bounds.
    """

    at_ms: int
    kind: str
    viewer: Viewer
    fields: dict[str, Any]
    session_id: str
    is_counted: bool = True


@dataclass(frozen=True, slots=True)
class Request:
    """A request to an edge location and its result. `viewer` is None for requests of other clients."""

    at_ms: int
    edge: str
    viewer: Viewer | None
    address: str
    user_agent: str
    uri: str
    query: str
    status: str
    result: str
    size_bytes: int
    seconds: float
    first_byte_ms: int | None
    is_starved: bool = False


def view_events(
    viewer: Viewer, rng: Random, at_ms: int, *, broken_os_version: str | None = None
) -> Iterator[Report | Request]:
    """Yields a view from its intent to its end, in order of time.

    Args:
        broken_os_version: the version of an operating system on which playback fails after the first frame.
    """

    def report(kind: str, at: int, **fields: Any) -> Report:
        return Report(at, kind, viewer, fields, viewer.session_id)

    yield report("intent", at_ms)
    yield _manifest(viewer, rng, at_ms)
    outcome, startup_ms = rng.random(), int(rng.lognormvariate(7.2, 0.6))
    if outcome < 0.05:
        kind = rng.choice(ERROR_CLASSES)
        yield report("error", at_ms + startup_ms, fatal=True, error_class=kind, error_code=f"{kind}-1")
        return
    if outcome < 0.11:
        yield report("end", at_ms + startup_ms)
        return
    at_ms += startup_ms
    yield report("first_frame", at_ms)
    client = viewer.client
    if client.os_version == broken_os_version:
        yield report("error", at_ms + 1, fatal=True, error_class="decode", error_code="decode-os")
        return
    if client.has_ad:
        yield report("ad_start", at_ms + 1, ad_id="pre-roll")
        if client.ad_fails:
            yield report("ad_error", at_ms + 2, ad_id="pre-roll")
        else:
            yield report("ad_end", at_ms + 1 + _AD_MS, ad_id="pre-roll", ad_ms=_AD_MS)
    yield from _playback_events(viewer, rng, at_ms)


def _playback_events(viewer: Viewer, rng: Random, at_ms: int) -> Iterator[Report | Request]:
    """Yields reports every ten seconds until the viewer stops or a fatal error occurs."""

    def report(kind: str, at: int, **fields: Any) -> Report:
        return Report(at, kind, viewer, fields, viewer.session_id)

    client, level, is_starved = viewer.client, rng.randrange(len(_LADDER_KBPS)), False
    for _ in range(max(1, int(rng.expovariate(1 / 18)))):
        for offset in range(0, REPORT_MS, SEGMENT_MS):
            yield _segment(viewer, rng, at_ms + offset, _LADDER_KBPS[level], is_starved)
            is_starved = False
        at_ms += REPORT_MS
        yield report("heartbeat", at_ms, **client.playback(at_ms, REPORT_MS, _LADDER_KBPS[level]))
        chance = rng.random()
        if chance < 0.06:
            stalled_ms = int(rng.lognormvariate(7.5, 0.7))
            at_ms += stalled_ms
            is_starved, level = True, max(0, level - 1)
            yield report("stall", at_ms, stalled_ms=stalled_ms, after_seek=False)
        elif chance < 0.09:
            yield report("seek", at_ms + 1)
            at_ms += 700
            yield report("stall", at_ms, stalled_ms=600, after_seek=True)
        elif chance < 0.11:
            yield report("error", at_ms + 2, fatal=False, error_class="Network", error_code="retry")
        elif chance < 0.115:
            yield report("error", at_ms + 3, fatal=True, error_class="unheard of", error_code="x")
            return
        elif chance < 0.2:
            level = min(len(_LADDER_KBPS) - 1, level + 1)
    remaining_ms = rng.randrange(1, REPORT_MS)
    at_ms += remaining_ms
    yield report("heartbeat", at_ms, **client.playback(at_ms, remaining_ms, _LADDER_KBPS[level]))
    yield report("end", at_ms + 1)


def _manifest(viewer: Viewer, rng: Random, at_ms: int) -> Request:
    uri = f"/{viewer.media_id}/main.m3u8"
    return Request(
        at_ms,
        viewer.edge,
        viewer,
        viewer.address,
        viewer.user_agent,
        uri,
        "",
        "200",
        "Hit",
        2_048,
        0.02,
        _first_byte_ms(rng, 2.5),
    )


def _segment(viewer: Viewer, rng: Random, at_ms: int, kbps: int, is_starved: bool) -> Request:
    """Requests a media segment: most are cache hits; some fail, and some viewers disconnect during the transfer."""
    size, chance = kbps * SEGMENT_MS // 8, rng.random()
    status, result, speed = "200", "Hit", 3.2
    if chance < 0.02:
        status, result, size = rng.choice((("503", "Error", 300), ("502", "Error", 300), ("000", "Error", 0)))
    elif chance < 0.1:
        result, speed = "Miss", 5.0
    elif chance < 0.15:
        result = rng.choice(("RefreshHit", "OriginShieldHit"))
    elif chance < 0.16:
        result = "Error"  # status 200 although the viewer disconnected during the transfer
    first_byte_ms = None if status == "000" else _first_byte_ms(rng, speed)
    seconds = round((first_byte_ms or 0) / 1000 + size / 3e6, 3)
    cmcd = f'br={kbps},{"bs," if is_starved else ""}ot=v,sid="{viewer.sid}"'
    return Request(
        at_ms,
        viewer.edge,
        viewer,
        viewer.address,
        viewer.user_agent,
        f"/{viewer.media_id}/{kbps}/seg-{at_ms // SEGMENT_MS}.m4s",
        cmcd,
        status,
        result,
        size,
        seconds,
        first_byte_ms,
        is_starved,
    )


def _first_byte_ms(rng: Random, speed: float) -> int:
    """Returns the time to first byte in milliseconds. Avoids powers of ten: they are histogram bounds, where logarithms
    of floats are inexact.
    """
    milliseconds = max(2, int(rng.lognormvariate(speed, 0.6)))
    return milliseconds + 1 if milliseconds in (10, 100, 1_000) else milliseconds
