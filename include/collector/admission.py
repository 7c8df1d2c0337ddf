"""Who may send, and how much: keys and origins of sources, rates of keys, bytes in flight, addresses behind proxies."""

from __future__ import annotations

import base64
import binascii
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

from deltaworks.specs.collector import ANY_ORIGIN, CollectorSourceSpec, CollectorSpec, KeySpec, RateSpec

#: Keys as they were sent whose source is remembered: a client sends the same header with every request.
_MOST_REMEMBERED = 10_000


class TokenBucket:
    """Events that may come now. It may fall below nothing by one request, whose events nobody had counted before."""

    def __init__(self, spec: RateSpec, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = spec.events_per_second
        self._most = float(spec.burst)
        self._clock = clock
        self._left = self._most
        self._at = clock()

    def wait_seconds(self) -> float:
        """How long until an event may come; 0 where one may come now."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._rate)
        self._at = now
        return 0.0 if self._left > 0 else (1 - self._left) / self._rate

    def take(self, events: int) -> None:
        """Count events that have come."""
        self._left -= events


class FlightBytes:
    """Bytes of all bodies under way, up to a limit. Used by one thread."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self.taken = 0

    def take(self, size_bytes: int) -> bool:
        """Count bytes; False, and none counted, where they would be too many."""
        if self.taken + size_bytes > self._most:
            return False
        self.taken += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """They are no longer under way."""
        self.taken -= size_bytes


class Hold:
    """What one request has of the bytes under way."""

    __slots__ = ("_flight", "_held")

    def __init__(self, flight: FlightBytes) -> None:
        self._flight = flight
        self._held = 0

    def up_to(self, size_bytes: int) -> bool:
        """Have so many in all; False, and no more than before, where they would be too many."""
        more = size_bytes - self._held
        if more > 0:
            if not self._flight.take(more):
                return False
            self._held = size_bytes
        return True

    def release(self) -> None:
        """Give them all back."""
        self._flight.give_back(self._held)
        self._held = 0


@dataclass(slots=True)
class KeyHolder:
    """A key of a source: its digest, its rate."""

    source: str
    digest: bytes
    spec: KeySpec
    declared: CollectorSourceSpec
    bucket: TokenBucket | None

    def takes_origin(self, origin: str) -> bool:
        """Whether scripts of a page may send with this key."""
        return ANY_ORIGIN in self.declared.origins or origin.lower() in self.declared.origins


class Keys:
    """The keys of all sources. A key is never kept: what comes is digested, and the digest looked up."""

    def __init__(self, spec: CollectorSpec, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._holders = {
            key.sha256: KeyHolder(
                name, bytes.fromhex(key.sha256), key, source, TokenBucket(source.rate) if source.rate else None
            )
            for name, source in spec.sources.items()
            for key in source.keys
        }
        self._by_header: dict[bytes, KeyHolder] = {}
        self._origins = {origin for source in spec.sources.values() for origin in source.origins}

    def of_key(self, key: str) -> KeyHolder | None:
        """Whose key it is, where it is taken now."""
        holder = self._holders.get(hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest())
        return holder if holder is not None and holder.spec.is_valid_at(self._clock()) else None

    def of_request(self, authorization: bytes | None, query: bytes) -> tuple[KeyHolder | None, bool]:
        """Whose key a request's head has, and whether it has one at all: the user of Basic, else `writeKey`."""
        if authorization:
            holder = self._by_header.get(authorization)
            if holder is not None:
                return (holder, True) if holder.spec.is_valid_at(self._clock()) else (None, True)
            key = _user_of(authorization)
            if key:
                holder = self.of_key(key)
                if holder is not None and len(self._by_header) < _MOST_REMEMBERED:
                    self._by_header[authorization] = holder
                return holder, True
        if b"writeKey" in query:
            key = dict(parse_qsl(query.decode("latin-1"))).get("writeKey", "")
            if key:
                return self.of_key(key), True
        return None, False

    def anyone_takes_origin(self, origin: str) -> bool:
        """Whether scripts of a page may send to any source: what can be said before the key is read."""
        return ANY_ORIGIN in self._origins or origin.lower() in self._origins


def _user_of(authorization: bytes) -> str:
    scheme, _, credentials = authorization.partition(b" ")
    if scheme.lower() != b"basic":
        return ""
    try:
        return base64.b64decode(credentials.strip(), validate=True).decode("utf-8", "replace").partition(":")[0]
    except (binascii.Error, ValueError):
        return ""


def client_address(peer: str, headers: Mapping[bytes, bytes], *, trusted_hops: int) -> str:
    """The address of a client behind `trusted_hops` proxies, each of which has added the address it was called from.

    What stands before those in `X-Forwarded-For` the client has written itself.
    """
    forwarded = headers.get(b"x-forwarded-for") if trusted_hops else None
    if not forwarded:
        return peer
    hops = forwarded.decode("latin-1").split(",")
    return hops[-trusted_hops].strip() if len(hops) >= trusted_hops else hops[0].strip()


def cors_headers(origin: bytes, *, preflight: bool = False) -> list[tuple[bytes, bytes]]:
    """What lets scripts of a page read an answer, refusals too: else a browser reports 429 as a failure of CORS."""
    headers = [
        (b"access-control-allow-origin", origin),
        (b"vary", b"Origin"),
        (b"access-control-expose-headers", b"Retry-After"),
    ]
    if preflight:
        headers += [
            (b"access-control-allow-methods", b"POST, GET, OPTIONS"),
            (b"access-control-allow-headers", b"authorization, content-type, content-encoding, x-retry-count"),
            (b"access-control-max-age", b"7200"),
        ]
    return headers
