"""Removes data values from error messages of libraries.

Errors go to logs, heartbeats, alerts and records of held tables, which more people read than the tables. Our own errors
name a path and a type; libraries quote the value that failed to convert, each with its own wording.
"""

from __future__ import annotations

import re
import traceback

REDACTED_VALUE = "(a value)"
#: Text before and after a quoted value. Libraries do not escape quotes in values, so only the text after the value
#: shows where it ends.
_VALUE_CONTEXTS = (
    # Spark: casts, overflows, and texts that are not times.
    (r"\bThe value ", r" of the type "),
    (r"\bText ", r" could not be parsed"),
    # Arrow.
    (r"\bCould not convert ", r" with type "),
    (r"\b[Ff]ailed to parse string: ", r" as a scalar of type "),
    (r"\bThe string ", r" is not a valid "),
    (r"\b(?:Integer|Decimal|Float) value ", r" (?:not in range|was truncated|is outside|does not fit|out of)"),
    # DuckDB.
    (r"\bCould not convert string ", r" to [A-Z]"),
    (r"\bfield format: ", r", expected format"),
    (r"\bCould not parse string ", r"\n\s*\^\n"),
    (r"\bwith value ", r" (?:can't be cast|because)"),
)
_VALUE_PATTERNS = (
    *(re.compile(f"(?P<before>{before}).+(?={after})", re.DOTALL) for before, after in _VALUE_CONTEXTS),
    # Delta, when a row violates a CHECK constraint: one line per column.
    re.compile(r"(?P<before>violated by row with values:)(?:\s*-\s[^\n]*)+"),
    # Python, when the value ends the message.
    re.compile(r"(?P<before>\binvalid literal for \w+\(\) with base \d+: ).+", re.DOTALL),
    re.compile(r"(?P<before>\bcould not convert string to \w+: ).+", re.DOTALL),
    re.compile(r"(?P<before>\bInvalid isoformat string: ).+", re.DOTALL),
)


def redact_values(text: str) -> str:
    """Replaces quoted data values in an error message; unknown messages are returned unchanged."""
    for pattern in _VALUE_PATTERNS:
        text = pattern.sub(lambda match: f"{match['before']}{REDACTED_VALUE}", text)
    return text


def redacted_traceback(error: BaseException) -> str:
    """Formats the traceback of an error and its causes as Python does, without data values."""
    text = "".join(traceback.format_exception(error))
    links = [error]
    for link in links:
        links += [other for other in (link.__cause__, link.__context__) if other is not None and other not in links]
    for link in links:
        message = str(link)
        if (redacted := redact_values(message)) != message:
            text = text.replace(message, redacted)
    return text
