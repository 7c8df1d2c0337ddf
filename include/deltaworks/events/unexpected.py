"""What becomes of events when reading them raises what nobody thought of: reasons that quarantine names, never an end.

A reason names the kind of the error and nothing else, since its text may quote values that nobody declared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from deltaworks.events.budget import events_in
from deltaworks.events.formats.json import Malformed
from deltaworks.events.misfits import Misfit
from deltaworks.events.reasons import Reason, ReasonCode

#: An event in its payload: its position, and its value and bytes.
Framed = tuple[int, tuple[Any, bytes]]


def unexpected(doing: str, kind: str) -> Reason:
    """The reason of an event or payload in which `doing` something with it raised an error of `kind`."""
    return Reason(ReasonCode.MALFORMED, "", f"{doing} it failed: {kind}")


def numbered(frame: Callable[[], Iterable[tuple[Any, bytes]]], *, rest: bytes = b"") -> Iterator[Framed]:
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
            position += events_in(value)
        return
    except Exception as error:  # whatever the bytes lead the reader into, a missing piece of memory included
        if isinstance(error, Misfit) and position == 0:
            raise
        said = unexpected("splitting", type(error).__name__).detail
        detail = error.detail if isinstance(error, Misfit) else said
    if position == 0:
        raise Misfit(ReasonCode.MALFORMED, detail)
    yield position, (Malformed(rest, f"the rest cannot be read: {detail}"), rest)
