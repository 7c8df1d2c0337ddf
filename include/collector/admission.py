"""Admission of requests: write keys and origins of sources, rate limits, bytes in flight, client addresses behind
proxies.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

from deltaworks.specs.collector import ANY_ORIGIN, CollectorSourceSpec, CollectorSpec, KeySpec, RateSpec

#: Authorization headers whose source is cached, as a client sends the same header with every request. Longer ones are
#: not cached, because their sender chooses their length.
_MAX_CACHED_HEADERS, _MAX_CACHED_HEADER_BYTES = 4096, 256
#: Requests up to this size use all bytes in flight.
_SMALL_BYTES = 64 << 10
#: The longest notation of an address, an IPv6 one with a zone. Longer ones are not addresses.
_MAX_ADDRESS_LENGTH = 64


class TokenBucket:
    """A rate limit of events per source. Can become negative by one request, because a request's events are counted
    after it is admitted.
    """

    def __init__(self, spec: RateSpec, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = spec.events_per_second
        self._burst = float(spec.burst)
        self._clock = clock
        self._tokens = self._burst
        self._refilled_at = clock()

    def wait_seconds(self) -> float:
        """Returns the time until an event is allowed; 0 if one is allowed now."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._refilled_at) * self._rate)
        self._refilled_at = now
        return 0.0 if self._tokens > 0 else (1 - self._tokens) / self._rate

    def consume(self, events: int) -> None:
        """Consumes tokens for received events."""
        self._tokens -= events


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds on requests, independent of what senders declare. They are not in the spec, as no sender needs more.

    Attributes:
        head_bytes, headers: size and number of headers of a request; above, 431.
        framing_factor: bytes of chunk sizes, extensions and trailers, relative to the body.
        requests_ahead: requests that a connection may send before it is answered, or behind one in a packet.
        keyless_bytes, keyless_events: limits of a request without a valid key in its head, as its body may hold none.
        growth_factor: how often its limit a request may become once its events have their context and stamp.
        gzip_members: members of a compressed body; SDKs send one.
        grace_seconds, bytes_per_second: a body that is slower after this time is rejected.
        answer_seconds: time without progress after which an unanswered connection is closed.
        rest_seconds: time for which a connection is not read after a rejection.
        closing_seconds: time for which the end of a rejected body is awaited, so that its client reads the response.
    """

    head_bytes: int = 32 << 10
    headers: int = 100
    framing_factor: int = 8
    requests_ahead: int = 8
    keyless_bytes: int = 64 << 10
    keyless_events: int = 1000
    growth_factor: int = 8
    gzip_members: int = 1000
    grace_seconds: float = 5.0
    bytes_per_second: float = 1024.0
    answer_seconds: float = 120.0
    rest_seconds: float = 0.25
    closing_seconds: float = 2.0


class InFlightBytes:
    """The bytes of all requests in flight, up to a limit. Not thread-safe.

    A request without a valid key in its head can use an eighth of the limit. Larger ones with a key can use three
    quarters, and half per peer, so that a few large bodies never lock out small requests.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.in_use = 0
        self._keyless_bytes = 0
        self._by_peer: dict[str, int] = {}

    def acquire(self, size_bytes: int, *, total_bytes: int, counted_bytes: int, peer: str, has_key: bool) -> bool:
        """Counts bytes of a large request, or of one without a key; returns False, and counts none, if a limit would be
        exceeded.

        Args:
            total_bytes: all bytes of the request.
            counted_bytes: bytes of the request that its peer is charged with already.
        """
        in_use, added = self.in_use + size_bytes, total_bytes - counted_bytes
        of_peer = self._by_peer.get(peer, 0) + added
        if in_use > self.max_bytes or (not has_key and self._keyless_bytes + added > self.max_bytes // 8):
            return False
        if total_bytes > _SMALL_BYTES and (in_use > self.max_bytes * 3 // 4 or of_peer > self.max_bytes // 2):
            return False
        self.in_use = in_use
        self._by_peer[peer] = of_peer
        if not has_key:
            self._keyless_bytes += added
        return True

    def release(self, size_bytes: int, *, counted_bytes: int, peer: str, has_key: bool) -> None:
        """Releases the bytes of a request."""
        self.in_use -= size_bytes
        if not counted_bytes:
            return
        remaining = self._by_peer.get(peer, 0) - counted_bytes
        if remaining > 0:
            self._by_peer[peer] = remaining
        else:
            self._by_peer.pop(peer, None)
        if not has_key:
            self._keyless_bytes -= counted_bytes


class ByteReservation:
    """One request's share of the bytes in flight."""

    __slots__ = ("_counted", "_has_key", "_in_flight", "_peer", "_reserved")

    def __init__(self, in_flight: InFlightBytes, peer: str = "", has_key: bool = True) -> None:
        self._in_flight = in_flight
        self._peer = peer
        self._has_key = has_key
        self._reserved = self._counted = 0

    def grow_to(self, size_bytes: int) -> bool:
        """Grows the reservation to this size; returns False, without a change, if a limit would be exceeded."""
        in_flight, added = self._in_flight, size_bytes - self._reserved
        if added <= 0:
            return True
        if size_bytes <= _SMALL_BYTES and self._has_key:  # only the total limit applies
            if in_flight.in_use + added > in_flight.max_bytes:
                return False
            in_flight.in_use += added
        elif in_flight.acquire(
            added, total_bytes=size_bytes, counted_bytes=self._counted, peer=self._peer, has_key=self._has_key
        ):
            self._counted = size_bytes
        else:
            return False
        self._reserved = size_bytes
        return True

    def release(self) -> None:
        """Releases all bytes."""
        if self._reserved:
            self._in_flight.release(self._reserved, counted_bytes=self._counted, peer=self._peer, has_key=self._has_key)
            self._reserved = self._counted = 0


@dataclass(slots=True)
class SourceKey:
    """A write key of a source: its digest and its rate limit."""

    source: str
    digest: bytes
    spec: KeySpec
    source_spec: CollectorSourceSpec
    rate_limit: TokenBucket | None

    def allows_origin(self, origin: str) -> bool:
        """Returns whether scripts of this origin may send with the key."""
        return ANY_ORIGIN in self.source_spec.origins or origin.lower() in self.source_spec.origins


class KeyRegistry:
    """The write keys of all sources. Keys are not stored: a received key is hashed and its digest looked up."""

    def __init__(self, spec: CollectorSpec, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._by_digest = {
            digest: SourceKey(
                name, bytes.fromhex(digest), key, source, TokenBucket(source.rate) if source.rate else None
            )
            for name, source in spec.sources.items()
            for key in source.keys
            for digest in [key.digest()]
        }
        self._by_header: dict[bytes, SourceKey] = {}
        self._origins = {origin for source in spec.sources.values() for origin in source.origins}

    def find_key(self, key: str) -> SourceKey | None:
        """Returns the source key, if it is valid now."""
        holder = self._by_digest.get(hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest())
        return holder if holder is not None and holder.spec.is_valid_at(self._clock()) else None

    def authenticate(self, authorization: bytes | None, query: bytes) -> tuple[SourceKey | None, bool]:
        """Returns the source key of a request, and whether the request contains any key. The key is the user name of
        Basic authentication, or the query parameter `writeKey`.
        """
        if authorization:
            holder = self._by_header.get(authorization)
            if holder is not None:
                return (holder, True) if holder.spec.is_valid_at(self._clock()) else (None, True)
            key = _basic_auth_user(authorization)
            if key:
                holder = self.find_key(key)
                if holder is not None and len(authorization) <= _MAX_CACHED_HEADER_BYTES:
                    if len(self._by_header) >= _MAX_CACHED_HEADERS:
                        self._by_header.clear()
                    self._by_header[authorization] = holder
                return holder, True
        if b"writeKey" in query:
            key = dict(parse_qsl(query.decode("latin-1"))).get("writeKey", "")
            if key:
                return self.find_key(key), True
        return None, False

    def cached_bytes(self) -> int:
        """Returns the size of the cached headers."""
        return sum(map(len, self._by_header))

    def is_known_origin(self, origin: str) -> bool:
        """Returns whether any source allows this origin. Used for responses that are sent before the write key is
        known.
        """
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
    """Returns the client's address behind `trusted_hops` proxies, each of which appends its caller's address.

    Earlier entries of `X-Forwarded-For` are set by the client and not trusted.
    """
    forwarded = headers.get(b"x-forwarded-for") if trusted_hops else None
    if not forwarded:
        return peer
    hops = forwarded.decode("latin-1").split(",")
    address = hops[-trusted_hops].strip() if len(hops) >= trusted_hops else hops[0].strip()
    return address if len(address) <= _MAX_ADDRESS_LENGTH else ""


def cors_headers(origin: bytes, *, preflight: bool = False) -> list[tuple[bytes, bytes]]:
    """Returns the CORS headers of a response. Rejections have them too; otherwise a browser reports 429 as a CORS
    failure.
    """
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
