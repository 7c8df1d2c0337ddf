"""Explains YAML syntax errors, because the parser's own messages speak of tokens."""

from __future__ import annotations

import re

_DUPLICATE = re.compile(r'^found duplicate key "?(.*?)"? with value')
_TAB = "YAML does not allow tabs: use spaces"
_INVALID_START = re.compile(r"^found character '(.+)' that cannot start any token")
#: Messages of the parser, and the advice for each.
_ADVICE = (
    (re.compile(r"mapping values are not allowed"), "unexpected colon on this line: quote the value with the colon"),
    (re.compile(r"could not find expected ':'"), "the line is not `key: value`; write a multi-line text after `>-`"),
    (
        re.compile(r"expected <block end>, but found"),
        "inconsistent indentation: start all lines of a block in the same column",
    ),
    (re.compile(r"expected ',' or '([}\]])', but got"), "a bracket is not closed: write , or {0}"),
    (re.compile(r"found unexpected end of stream"), "a quote or a bracket is not closed"),
    (re.compile(r"found undefined alias"), "quote a text that starts with *"),
    (re.compile(r"found unknown escape character"), "write a backslash in 'single' quotes, or twice"),
)
_NESTED_TYPE = re.compile(r"\btype:\s*([A-Za-z]+[<(].*)")


class InvalidYamlError(Exception):
    """Raised if a text is not valid YAML or exceeds the size limits. `line` starts at 1."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line
        self.problem = problem


def explain_yaml_error(problem: str, *, line: int, column: int | None, text: str) -> str:
    """Returns an error message that says what is wrong and what to write.

    Args:
        problem: the parser's message, which is returned if there is no better one.
        line: 1-based line of the error.
        column: 0-based column, if known.
        text: the complete file.
    """
    lines = text.splitlines()
    line_text = lines[line - 1] if line <= len(lines) else ""
    duplicate = _DUPLICATE.match(problem)
    if duplicate is not None:
        return _duplicate_key_message(duplicate[1], lines, line, column)
    invalid_start = _INVALID_START.match(problem)
    if invalid_start is not None:
        is_tab = invalid_start[1] in ("\t", "\\t")
        return _TAB if is_tab else f"quote a text that starts with {invalid_start[1]}"
    if "undefined alias" in problem or ("expected alphabetic" in problem and "*" in line_text):
        return f"quote a text that starts with *{_quoted_star(line_text)}"
    type_ = _NESTED_TYPE.search(line_text)
    if type_ is not None and not line_text[: type_.start(1)].rstrip().endswith(('"', "'")):
        return f'quote it, because of its colons: type: "{_balanced_prefix(type_[1])}"'
    matches = ((pattern.search(problem), advice) for pattern, advice in _ADVICE)
    return next((advice.format(*match.groups()) for match, advice in matches if match is not None), problem)


def _duplicate_key_message(key: str, lines: list[str], line: int, column: int | None) -> str:
    """Returns the message for a duplicate key, with the line of the first one: the nearest line above with the same key
    in the same column.
    """
    start = re.compile(rf"^[\s-]{{{column or 0}}}[\"']?{re.escape(key)}[\"']?\s*:")
    first = next((number for number in range(line - 1, 0, -1) if start.match(lines[number - 1])), None)
    where = f"; the first is on line {first}" if first is not None else ""
    return f"duplicate key {key!r}{where}: keep one of them"


def _quoted_star(line_text: str) -> str:
    match = re.search(r"([\w-]+):\s+(\*[^#}\]]*)", line_text)
    return f': {match[1]}: "{match[2].rstrip(" ,")}"' if match is not None else ""


def _balanced_prefix(text: str) -> str:
    """Returns the text up to the position where all brackets are closed."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character in "<(") - (character in ">)")
        if depth == 0 and character in ">)":
            return text[: position + 1]
    return text.rstrip(" }],")
