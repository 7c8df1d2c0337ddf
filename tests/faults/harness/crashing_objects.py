"""Makes workers crash in the middle of marked objects, to simulate crashes of a parsing library.

No JSON object is known that crashes the reader, so the test changes the workers. After the first event of an object
that begins with one of `CRASH_KINDS` the worker dies of a segmentation fault, or runs a loop that holds the GIL and can
only be ended by a signal from outside.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

#: Environment variable that makes the workers of `worker_daemon` crash on these objects.
ARMED = "DELTAWORKS_TEST_WORKERS_ARMED"
CRASH_KINDS = {"segmentation fault": b"#segfault#", "stall": b"#stall#"}


def install_crashes() -> None:
    """Changes the parser of this process and of the processes forked from it."""
    from deltaworks.events.parse import Parser

    harmless = Parser._frame_payload

    def framed(self: Any, payload: Any, frame: Any) -> Iterable[Any]:
        data = payload.data or b""
        way = next((way for way in CRASH_KINDS.values() if data.startswith(way)), b"")
        for event in harmless(self, replace(payload, data=data[len(way) :]) if way else payload, frame):
            yield event
            if way:
                _die(way)

    Parser._frame_payload = framed  # type: ignore[method-assign]


def _die(way: bytes) -> None:
    if way == CRASH_KINDS["segmentation fault"]:
        ctypes.string_at(0)
    else:
        re.match(r"(a+)+$", "a" * 60 + "b")
