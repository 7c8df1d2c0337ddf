"""What becomes of events when reading them raises what nobody thought of: reasons that quarantine names, never an end.

A reason names the kind of the error and nothing else, since its text may quote values that nobody declared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from deltaworks.events.budget import event_count
from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.formats.json import Malformed
from deltaworks.events.reasons import Reason, ReasonCode

#: An event in its payload: its position, and its value and bytes.
PositionedEvent = tuple[int, tuple[Any, bytes]]


def unexpected_error_reason(doing: str, kind: str) -> Reason:
    """The reason of an event or payload in which `doing` something with it raised an error of `kind`."""
    return Reason(ReasonCode.MALFORMED, "", f"{doing} it failed: {kind}")


def number_events(frame: Callable[[], Iterable[tuple[Any, bytes]]], *, rest: bytes = b"") -> Iterator[PositionedEvent]:
    """The events that `frame` finds, with their positions (of a `Run`, its first), whatever it raises.

    Events before the failure are events like others. The rest of the payload is one `Malformed` piece at the position
    where the next event would have been: whoever reads the payload again finds the same events at the same places.

    Args:
        rest: the bytes of that piece: those of a payload that cannot be had again.

    Raises:
        Misfit: nothing of the payload can be read; raised before the first event.
    """
    position = 0
    try:
        for value, raw in frame():
            yield position, (value, raw)
            position += event_count(value)
        return
    except Exception as error:  # whatever the bytes lead the reader into, a missing piece of memory included
        if isinstance(error, ConversionError) and position == 0:
            raise
        said = unexpected_error_reason("splitting", type(error).__name__).detail
        detail = error.detail if isinstance(error, ConversionError) else said
    if position == 0:
        raise ConversionError(ReasonCode.MALFORMED, detail)
    yield position, (Malformed(rest, f"the rest cannot be read: {detail}"), rest)
