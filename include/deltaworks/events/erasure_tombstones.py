"""Tombstones, which replace the events of erased people in landed objects.

Rows of tables and quarantine are identified by the position of their event in its object. So an erased event is
replaced, and the positions of other events do not change. Parsers skip tombstones and count them.
"""

from __future__ import annotations

import re
from typing import Any, Final

ERASED_FIELD: Final = "_erased"
#: Cheap pre-check: events without these bytes are not tombstones.
ERASED_BYTES: Final = b"_erased"
_REQUEST = re.compile(r"e\d{8}-[0-9a-f]{10}")
_LINE = "_erased="


def tombstone(request_id: str) -> dict[str, str]:
    """Returns the tombstone for an erasure request, for formats whose events are objects."""
    return {ERASED_FIELD: request_id}


def is_tombstone(value: Any) -> bool:
    """Returns whether a value is a tombstone. An object with further fields is an ordinary event."""
    return type(value) is dict and len(value) == 1 and _is_request_id(value.get(ERASED_FIELD))


def tombstone_line(request_id: str) -> str:
    """Returns the tombstone for an erasure request, for line-based formats."""
    return f"{_LINE}{request_id}"


def parse_tombstone_line(text: str) -> dict[str, str] | None:
    """Returns the tombstone in a line, or None if the line is an ordinary event."""
    request_id = text.removeprefix(_LINE)
    return tombstone(request_id) if request_id != text and _is_request_id(request_id) else None


def tombstone_or_row(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the tombstone if a columnar row is one; otherwise the row without the tombstone column."""
    if ERASED_FIELD not in row:
        return row
    request_id = row[ERASED_FIELD]
    if _is_request_id(request_id) and all(value is None for name, value in row.items() if name != ERASED_FIELD):
        return tombstone(request_id)
    if request_id is not None:
        return row
    return {name: value for name, value in row.items() if name != ERASED_FIELD}


def _is_request_id(value: Any) -> bool:
    return type(value) is str and _REQUEST.fullmatch(value) is not None
