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
_MAX_CACHED_HEADERS = 10_000


class TokenBucket:
    """Events that may come now. It may fall below nothing by one request, whose events nobody had counted before."""

    def __init__(self, spec: RateSpec, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = spec.events_per_second
        self._burst = float(spec.burst)
        self._clock = clock
        self._tokens = self._burst
        self._refilled_at = clock()

    def wait_seconds(self) -> float:
        """How long until an event may come; 0 where one may come now."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._refilled_at) * self._rate)
        self._refilled_at = now
        return 0.0 if self._tokens > 0 else (1 - self._tokens) / self._rate

    def consume(self, events: int) -> None:
        """Count events that have come."""
        self._tokens -= events


class InFlightBytes:
    """Bytes of all bodies under way, up to a limit. Used by one thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.in_use = 0

    def acquire(self, size_bytes: int) -> bool:
        """Count bytes; False, and none counted, where they would be too many."""
        if self.in_use + size_bytes > self._max_bytes:
            return False
        self.in_use += size_bytes
        return True

    def release(self, size_bytes: int) -> None:
        """They are no longer under way."""
        self.in_use -= size_bytes


class ByteReservation:
    """What one request has of the bytes under way."""

    __slots__ = ("_in_flight", "_reserved")

    def __init__(self, in_flight: InFlightBytes) -> None:
        self._in_flight = in_flight
        self._reserved = 0

    def grow_to(self, size_bytes: int) -> bool:
        """Have so many in all; False, and no more than before, where they would be too many."""
        more = size_bytes - self._reserved
        if more > 0:
            if not self._in_flight.acquire(more):
                return False
            self._reserved = size_bytes
        return True

    def release(self) -> None:
        """Give them all back."""
        self._in_flight.release(self._reserved)
        self._reserved = 0


@dataclass(slots=True)
class SourceKey:
    """A key of a source: its digest, its rate."""

    source: str
    digest: bytes
    spec: KeySpec
    source_spec: CollectorSourceSpec
    rate_limit: TokenBucket | None

    def allows_origin(self, origin: str) -> bool:
        """Whether scripts of a page may send with this key."""
        return ANY_ORIGIN in self.source_spec.origins or origin.lower() in self.source_spec.origins


class KeyRegistry:
    """The keys of all sources. A key is never kept: what comes is digested, and the digest looked up."""

    def __init__(self, spec: CollectorSpec, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._by_digest = {
            key.sha256: SourceKey(
                name, bytes.fromhex(key.sha256), key, source, TokenBucket(source.rate) if source.rate else None
            )
            for name, source in spec.sources.items()
            for key in source.keys
        }
        self._by_header: dict[bytes, SourceKey] = {}
        self._origins = {origin for source in spec.sources.values() for origin in source.origins}

    def find_key(self, key: str) -> SourceKey | None:
        """Whose key it is, where it is taken now."""
        holder = self._by_digest.get(hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest())
        return holder if holder is not None and holder.spec.is_valid_at(self._clock()) else None

    def authenticate(self, authorization: bytes | None, query: bytes) -> tuple[SourceKey | None, bool]:
        """Whose key a request's head has, and whether it has one at all: the user of Basic, else `writeKey`."""
        if authorization:
            holder = self._by_header.get(authorization)
            if holder is not None:
                return (holder, True) if holder.spec.is_valid_at(self._clock()) else (None, True)
            key = _basic_auth_user(authorization)
            if key:
                holder = self.find_key(key)
                if holder is not None and len(self._by_header) < _MAX_CACHED_HEADERS:
                    self._by_header[authorization] = holder
                return holder, True
        if b"writeKey" in query:
            key = dict(parse_qsl(query.decode("latin-1"))).get("writeKey", "")
            if key:
                return self.find_key(key), True
        return None, False

    def is_known_origin(self, origin: str) -> bool:
        """Whether scripts of a page may send to any source: what can be said before the key is read."""
        return ANY_ORIGIN in self._origins or origin.lower() in self._origins


def _basic_auth_user(authorization: bytes) -> str:
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
