"""One view of a video, lived through: what its player reports and what it asks the CDN for, second by second.

A view is an attempt that fails, is given up, or plays. While it plays, it reports every ten seconds, stalls now and
then, seeks, meets errors that end it or do not, and asks for a segment of four seconds after another.
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


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who watches what, and from where: what all events of a view have."""

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
        """Somebody, by chance."""
        network = rng.choices(NETWORKS, (5, 3, 4, 2, 2, 1))[0]
        edge = rng.choice(NETWORKS).edge if rng.random() < _REMOTE_EDGE_SHARE else network.edge
        return cls(
            number=number,
            play_id=f"p-{rng.getrandbits(64):016x}",
            media_id=f"film-{rng.randrange(12)}",
            session_id=f"s-{rng.getrandbits(64):016x}",
            user_id=f"u-{rng.randrange(300)}",
            # Two ids that differ in case alone are two ids.
            sid="".join(rng.choice("abcdefABCDEF0123456789") for _ in range(16)),
            device=rng.choice(tuple(_DEVICES)),
            network=network,
            address=network.random_address(rng),
            edge=edge,
        )

    @property
    def user_agent(self) -> str:
        """What its player calls itself."""
        return _DEVICES[self.device]

    @property
    def dimensions(self) -> tuple[str, str, str, str, str]:
        """CDN, provider, country, region and device, as gold groups by them."""
        return CDN, self.network.isp, self.network.country, self.network.region, self.device


@dataclass(frozen=True, slots=True)
class Report:
    """An event of a player. `counts` says that it is part of the view: of its first session, and within bounds."""

    at_ms: int
    kind: str
    viewer: Viewer
    fields: dict[str, Any]
    session_id: str
    is_counted: bool = True


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked of an edge, and how it went. Of what is no player's, `viewer` is None."""

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


def view_events(viewer: Viewer, rng: Random, at_ms: int) -> Iterator[Report | Request]:
    """A view from its intent to its end, in order of time."""

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
    yield report("first_frame", at_ms + startup_ms)
    yield from _playback_events(viewer, rng, at_ms + startup_ms)


def _playback_events(viewer: Viewer, rng: Random, at_ms: int) -> Iterator[Report | Request]:
    """Reports of ten seconds each until somebody or something ends it."""

    def report(kind: str, at: int, **fields: Any) -> Report:
        return Report(at, kind, viewer, fields, viewer.session_id)

    level, is_starved = rng.randrange(len(_LADDER_KBPS)), False
    for _ in range(max(1, int(rng.expovariate(1 / 18)))):
        for offset in range(0, REPORT_MS, SEGMENT_MS):
            yield _segment(viewer, rng, at_ms + offset, _LADDER_KBPS[level], is_starved)
            is_starved = False
        at_ms += REPORT_MS
        yield report("heartbeat", at_ms, played_ms=REPORT_MS, bitrate_kbps=_LADDER_KBPS[level])
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
    yield report("heartbeat", at_ms + remaining_ms, played_ms=remaining_ms, bitrate_kbps=_LADDER_KBPS[level])
    yield report("end", at_ms + remaining_ms + 1)


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
    """A segment of media: most come from the cache; some fail, and some viewers are gone before they have it."""
    size, chance = kbps * SEGMENT_MS // 8, rng.random()
    status, result, speed = "200", "Hit", 3.2
    if chance < 0.02:
        status, result, size = rng.choice((("503", "Error", 300), ("502", "Error", 300), ("000", "Error", 0)))
    elif chance < 0.1:
        result, speed = "Miss", 5.0
    elif chance < 0.15:
        result = rng.choice(("RefreshHit", "OriginShieldHit"))
    elif chance < 0.16:
        result = "Error"  # with 200: the viewer left while it came
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
    """Milliseconds. Whole powers of ten are where buckets begin, which logarithms of floats are not exact about."""
    milliseconds = max(2, int(rng.lognormvariate(speed, 0.6)))
    return milliseconds + 1 if milliseconds in (10, 100, 1_000) else milliseconds
