"""What stands in a landed object in place of an event of somebody who was erased.

Positions of events name rows of quarantine and of tables, so an event that goes leaves its place taken. Readers skip
the mark and count it, whatever pipeline they read for.
"""

from __future__ import annotations

import re
from typing import Any, Final

ERASED_FIELD: Final = "_erased"
#: Events without these bytes are no marks: a look that costs nothing.
ERASED_BYTES: Final = b"_erased"
_REQUEST = re.compile(r"e\d{8}-[0-9a-f]{10}")
_LINE = "_erased="


def tombstone(request_id: str) -> dict[str, str]:
    """The mark of a request, as an event of a form whose events are objects."""
    return {ERASED_FIELD: request_id}


def is_tombstone(value: Any) -> bool:
    """Whether this is a mark and nothing else: an event that has such a field beside others is an event."""
    return type(value) is dict and len(value) == 1 and _is_request_id(value.get(ERASED_FIELD))


def tombstone_line(request_id: str) -> str:
    """The mark as a line, in forms of lines."""
    return f"{_LINE}{request_id}"


def parse_tombstone_line(text: str) -> dict[str, str] | None:
    """The mark that a line is; None for any other line."""
    request_id = text.removeprefix(_LINE)
    return tombstone(request_id) if request_id != text and _is_request_id(request_id) else None


def tombstone_or_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a form with columns: a mark where its column has one, else the row without that column."""
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
