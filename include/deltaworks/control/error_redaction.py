"""Texts of foreign errors without the values they quote: what converts data says which value it could not convert.

Errors go to logs, heartbeats, alerts and records of held tables, which more people read than the tables. Values of
events belong into the lake alone. Errors of ours name a path and a type; libraries quote the value, each in its own
words, and these are the words.
"""

from __future__ import annotations

import re
import traceback

REDACTED_VALUE = "(a value)"
#: What comes before a value, and what ends it: libraries escape no quotes, so that the words behind tell its end.
_VALUE_CONTEXTS = (
    # Spark: casts and overflows, and texts that are no times.
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
    # Delta, where a row breaks a CHECK constraint: a line for each column.
    re.compile(r"(?P<before>violated by row with values:)(?:\s*-\s[^\n]*)+"),
    # Python itself, where the value ends the text.
    re.compile(r"(?P<before>\binvalid literal for \w+\(\) with base \d+: ).+", re.DOTALL),
    re.compile(r"(?P<before>\bcould not convert string to \w+: ).+", re.DOTALL),
    re.compile(r"(?P<before>\bInvalid isoformat string: ).+", re.DOTALL),
)


def redact_values(text: str) -> str:
    """The text of one error with what it quotes of data replaced; a text of no such shape as it is."""
    for shape in _VALUE_PATTERNS:
        text = shape.sub(lambda match: f"{match['before']}{REDACTED_VALUE}", text)
    return text


def redacted_traceback(error: BaseException) -> str:
    """The traceback of an error and of those it came from, as Python prints it."""
    text = "".join(traceback.format_exception(error))
    links = [error]
    for link in links:
        links += [other for other in (link.__cause__, link.__context__) if other is not None and other not in links]
    for link in links:
        own = str(link)
        if (redacted := redact_values(own)) != own:
            text = text.replace(own, redacted)
    return text
