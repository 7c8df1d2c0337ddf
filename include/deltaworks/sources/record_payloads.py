"""Records of a stream as payloads: what they share, whichever stream they come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deltaworks.events.decompression import DamagedContent, LargeContent, decompressed
from deltaworks.events.parse import Payload
from deltaworks.events.reasons import Reason, ReasonCode
from deltaworks.specs.sources.payload import Compression


def record_payload(
    seq: int,
    key: str,
    value: bytes,
    *,
    record: Mapping[str, Any] | None,
    compression: Compression,
    max_bytes: int,
) -> Payload:
    """A record's payload, decompressed where it is compressed; what cannot be is kept as it is, with the reason."""
    try:
        return Payload(seq, key, decompressed(value, compression, max_bytes=max_bytes), record=record)
    except LargeContent as error:
        return unreadable(seq, key, value, Reason(ReasonCode.TOO_LARGE, "", str(error)), record=record)
    except DamagedContent as error:
        return unreadable(seq, key, value, Reason(ReasonCode.MALFORMED, "", str(error)), record=record)


def unreadable(seq: int, key: str, value: bytes, reason: Reason, *, record: Mapping[str, Any] | None) -> Payload:
    """A record of which nothing can be read: its bytes go to quarantine whole, since nobody else keeps them."""
    return Payload(seq, key, value, reason, record=record or {})


def text_of(data: bytes | None) -> str | None:
    """Bytes as text, also where they are none."""
    return None if data is None else data.decode("utf-8", "backslashreplace")
