"""Records of a stream as payloads: what they share, whichever stream they come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deltaworks.errors import DeltaworksError
from deltaworks.sources.file_events.fetch import GZIP_MAGIC, decompressed
from deltaworks.specs.source import Compression
from deltaworks.streaming.parsing.parse import Payload
from deltaworks.streaming.parsing.reasons import Reason, ReasonCode


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
    if compression == "none" or (compression == "auto" and not value.startswith(GZIP_MAGIC)):
        return Payload(seq, key, value, record=record)
    try:
        return Payload(seq, key, decompressed(value, key, max_bytes), record=record)
    except DeltaworksError as error:
        code = ReasonCode.TOO_LARGE if error.condition == "OBJECT_TOO_LARGE" else ReasonCode.MALFORMED
        return unreadable(seq, key, value, Reason(code, "", error.message), record=record)


def unreadable(seq: int, key: str, value: bytes, reason: Reason, *, record: Mapping[str, Any] | None) -> Payload:
    """A record of which nothing can be read: its bytes go to quarantine whole, since nobody else keeps them."""
    return Payload(seq, key, value, reason, record=record or {})


def text_of(data: bytes | None) -> str | None:
    """Bytes as text, also where they are none."""
    return None if data is None else data.decode("utf-8", "backslashreplace")
