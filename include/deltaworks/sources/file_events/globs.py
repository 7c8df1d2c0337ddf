"""Which keys a glob means: `*` and `?` stay within one part of the key, `**` crosses them, `{a,b}` is either."""

from __future__ import annotations

import re
from collections.abc import Callable

from deltaworks.errors import ConfigError

_MEANING = {"*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")", ",": "|"}


def glob_expression(glob: str) -> str:
    """The glob as a regular expression for a whole key, without anchors, in words Python's and Arrow's engines share.

    Raises:
        ConfigError: GLOB_INVALID.
    """
    parts: list[str] = []
    position, depth = 0, 0
    while position < len(glob):
        if glob.startswith("**/", position):
            # No folder at all is a number of folders too.
            parts.append("(?:.*/)?")
            position += 3
            continue
        if glob.startswith("**", position):
            parts.append(".*")
            position += 2
            continue
        character = glob[position]
        depth += (character == "{") - (character == "}")
        if depth < 0 or depth > 1:
            break
        special = character in "*?{}" or (character == "," and depth)
        parts.append(_MEANING[character] if special else re.escape(character))
        position += 1
    if depth != 0:
        raise ConfigError(
            "GLOB_INVALID",
            f"The glob {glob!r} opens or closes a brace too many.",
            hint="Write *, ?, ** and {a,b}; braces do not nest.",
        )
    return f"(?s:{''.join(parts)})"


def key_pattern(glob: str | None) -> Callable[[str], bool]:
    """Whether a key fits; every key does where there is no glob.

    Raises:
        ConfigError: GLOB_INVALID.
    """
    if glob is None:
        return lambda key: True
    pattern = re.compile(glob_expression(glob))
    return lambda key: pattern.fullmatch(key) is not None
