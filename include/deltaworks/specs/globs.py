"""Globs of object keys: `*` and `?` match within a path segment, `**` across segments, `{a,b}` alternatives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

from pydantic import AfterValidator

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_REGEX_BY_CHARACTER = {"*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")", ",": "|"}


def glob_expression(glob: str) -> str:
    """Converts a glob to a regular expression that must match the complete key. Without anchors; valid in Python and
    Arrow.

    Raises:
        ValueError: unbalanced braces.
    """
    parts: list[str] = []
    position, depth = 0, 0
    while position < len(glob):
        if glob.startswith("**/", position):
            # `**/` matches any number of folders, including none.
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
        parts.append(_REGEX_BY_CHARACTER[character] if special else re.escape(character))
        position += 1
    if depth != 0:
        raise ValueError(f"unbalanced or nested braces in the glob {glob!r}; write *, ?, ** and {{a,b}}")
    return f"(?s:{''.join(parts)})"


def key_matcher(glob: str | None) -> Callable[[str], bool]:
    """Returns a function that tells whether a key matches; without a glob every key matches.

    Raises:
        ValueError: unbalanced braces.
    """
    if glob is None:
        return lambda key: True
    pattern = re.compile(glob_expression(glob))
    return lambda key: pattern.fullmatch(key) is not None


def key_selection_problems(prefix: str, glob: str | None, *, buckets: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Yields (key, message) for a prefix, a glob or names of buckets that select no object."""
    for key, text in [("prefix", prefix), ("glob", glob or "")]:
        if _SCHEME.match(text):
            yield key, f"keys do not begin with a scheme and a bucket: write the rest of {text!r} after the bucket"
    for bucket in buckets:
        if _SCHEME.match(bucket) or "/" in bucket:
            yield "bucket", f"write the name of the bucket only, without scheme and prefix, not {bucket!r}"
    if glob is not None and not _SCHEME.match(prefix + glob):
        literal = re.split(r"[*?{]", glob, maxsplit=1)[0]
        if not literal.startswith(prefix) and not (prefix.startswith(literal) and literal != glob):
            yield "glob", f"a glob matches complete keys, and none begins with both {prefix!r} and {literal!r}"


def _check_glob(glob: str) -> str:
    glob_expression(glob)
    return glob


#: The type of a glob in a spec, validated.
Glob = Annotated[str, AfterValidator(_check_glob)]
