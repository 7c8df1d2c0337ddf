"""Workers that die in the middle of an object that says how: what stands for a crash in a library.

No object of JSON is known that crashes the reader. So the workers of a test are changed: behind the first event of an
object that begins with one of `WAYS` the worker dies really, by a segmentation fault, or by a loop that holds the
interpreter and can only be ended from outside of Python.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

#: For `worker_daemon`, where its workers are to die of such objects.
ARMED = "DELTAWORKS_TEST_WORKERS_ARMED"
CRASH_KINDS = {"segmentation fault": b"#segfault#", "stall": b"#stall#"}


def install_crashes() -> None:
    """Change the parser of this process, and of those forked from it."""
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
