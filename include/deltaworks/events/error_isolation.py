"""Isolates unexpected errors: an event whose processing raises goes to quarantine, and the stream continues.

The quarantine reason contains only the error's class, because its message may quote private values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from deltaworks.events.budget import event_count
from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.formats.json import Malformed
from deltaworks.events.reasons import Reason, ReasonCode

#: Position of an event in its payload, its value, and its bytes.
PositionedEvent = tuple[int, tuple[Any, bytes]]


def unexpected_error_reason(doing: str, kind: str) -> Reason:
    """Returns the quarantine reason for an error of class `kind` that was raised while `doing` something."""
    return Reason(ReasonCode.MALFORMED, "", f"{doing} failed: {kind}")


def number_events(frame: Callable[[], Iterable[tuple[Any, bytes]]], *, rest: bytes = b"") -> Iterator[PositionedEvent]:
    """Yields the events from `frame` with their positions, even if `frame` fails. A run has the position of its first
    event.

    Events before a failure are yielded normally. The rest of the payload is one `Malformed` event at the next position,
    so that parsing again yields the same events at the same positions.

    Args:
        rest: bytes of that `Malformed` event, for payloads that cannot be read again.

    Raises:
        ConversionError: nothing can be read; raised before the first event.
    """
    position = 0
    try:
        for value, raw in frame():
            yield position, (value, raw)
            position += event_count(value)
        return
    except Exception as error:  # readers may raise anything for corrupt bytes, MemoryError included
        if isinstance(error, ConversionError) and position == 0:
            raise
        failure = unexpected_error_reason("splitting", type(error).__name__).detail
        detail = error.detail if isinstance(error, ConversionError) else failure
    if position == 0:
        raise ConversionError(ReasonCode.MALFORMED, detail)
    yield position, (Malformed(rest, f"the rest is unreadable: {detail}"), rest)
