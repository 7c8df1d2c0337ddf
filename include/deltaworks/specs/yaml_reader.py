"""Reads YAML documents with the line of each key, explains syntax errors, and writes YAML.

Scalars follow the core schema of YAML 1.2, plus dates: `yes`, `1:30` and `1_000` are texts, and `012` is twelve. The
size is limited, because with aliases a hundred bytes can expand to billions of values. Values are built from events and
not from nodes, because PyYAML's C composer recurses without bound, and that many objects cost garbage collections.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final

import yaml
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.scanner import Scanner

from deltaworks.specs.base import KeyPath

try:
    from yaml.cyaml import CParser
except ImportError:  # PyYAML was installed without libyaml
    CParser = None

#: Limits of a document, higher than any spec needs.
MAX_VALUES, MAX_DEPTH = 200_000, 100
_TAG_PREFIX: Final = "tag:yaml.org,2002:"
_STRING_TAG: Final = f"{_TAG_PREFIX}str"
_CONDITION_KEYS: Final = ("when", "deleted_when")
_MERGE_KEY: Final = "<<"
_NO_KEY: Final = "a key must be a text, not a list or mapping"
_CORE_SCHEMA = re.compile(
    r"""(?P<null>~|null|Null|NULL|)
    |(?P<true>true|True|TRUE)
    |(?P<false>false|False|FALSE)
    |(?P<int>[-+]?[0-9]+)
    |(?P<octal>0o[0-7]+)
    |(?P<hex>0x[0-9a-fA-F]+)
    |(?P<float>[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?)
    |(?P<special>[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))
    |(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})""",
    re.VERBOSE,
)
_SCALARS: Final[Mapping[str, Callable[[str], Any]]] = {
    "null": lambda text: None,
    "true": lambda text: True,
    "false": lambda text: False,
    "int": int,
    "octal": lambda text: int(text, 8),
    "hex": lambda text: int(text, 16),
    "float": float,
    "special": lambda text: float(text.replace(".", "")),
    "date": date.fromisoformat,
}
#: Line breaks of YAML 1.1, which the parser knows, but not of YAML 1.2.
_OLD_LINE_BREAK = re.compile("[\x85\u2028\u2029]")


class InvalidYamlError(Exception):
    """Raised if a text is not valid YAML or exceeds the size limits. `line` starts at 1."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line
        self.problem = problem


#: The lines of the values in a mapping or list: of each its line and the lines in it; None for scalars.
Lines = dict[str, Any] | list[Any] | None


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """The dicts, lists and scalars of a document, and the line of each. Keys are texts, as written."""

    values: Any
    lines: Lines = None

    def line_of(self, key_path: KeyPath) -> tuple[int, KeyPath]:
        """Returns the 1-based line of a key path. If the path does not exist, returns the line of its deepest existing
        part.

        Also returns the key path, up to the first part that does not exist.
        """
        lines, line = self.lines, 1
        for index, part in enumerate(key_path):
            if isinstance(lines, dict) and part in lines:
                line, lines = lines[str(part)]
            elif isinstance(lines, list) and isinstance(part, int) and part < len(lines):
                line, lines = lines[part]
            else:
                return line, key_path[: index + 1]
        return line, key_path


def load_yaml(data: bytes) -> YamlDocument:
    """Parses a text with a single YAML document.

    Raises:
        InvalidYamlError: the text is not valid YAML, or too deep or too large.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidYamlError(data.count(b"\n", 0, error.start) + 1, "the text is not UTF-8") from error
    line_break = _OLD_LINE_BREAK.search(text)
    if line_break is not None:
        name = f"U+{ord(line_break[0]):04X}"
        line = text.count("\n", 0, line_break.start()) + 1
        raise InvalidYamlError(line, f"the character {name}, which only some parsers read as a line break: remove it")
    if CParser is not None:
        with contextlib.suppress(yaml.YAMLError):  # the parser in Python says more precisely what is wrong
            return _DocumentBuilder().read(CParser(text))
    try:
        return _DocumentBuilder().read(_PythonParser(text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = _explain(str(error.problem or error.context), line=line, text=text)
        raise InvalidYamlError(line, problem) from error
    except ReaderError as error:
        problem = f"the character #x{error.character:04x}, which YAML does not allow"
        raise InvalidYamlError(text.count("\n", 0, error.position) + 1, problem) from error


class _PythonParser(Reader, Scanner, Parser):  # type: ignore[misc]
    """PyYAML's parser without libyaml."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)


@dataclass(slots=True)
class _Anchor:
    """A value that aliases can refer to: its lines, its size with all aliases expanded, and its text as a key."""

    value: Any
    lines: Lines = None
    values: int = 1
    height: int = 0
    key: str | None = None


@dataclass(slots=True)
class _Collection:
    """A mapping or list whose end has not been read yet."""

    value: Any
    lines: Any
    line: int
    anchor: str | None
    values_before: int
    height: int = 1
    #: Key and line of the key whose value comes next.
    key: str | None = None
    key_line: int = 0
    is_merge: bool = False
    merged: list[tuple[Any, Any]] = field(default_factory=list)


class _DocumentBuilder:
    """Builds a document from parser events, within the limits. An alias counts as often as it is used."""

    def __init__(self) -> None:
        #: The list of all documents, and the open mappings and lists in them.
        self._stack = [_Collection([], [], 1, None, 0)]
        #: None for the anchors of open mappings and lists.
        self._anchors: dict[str, _Anchor | None] = {}
        self._values = 0

    def read(self, parser: Any) -> YamlDocument:
        """Reads all events of a parser. Events without a value are skipped."""
        handlers = {
            yaml.ScalarEvent: self._scalar,
            yaml.MappingStartEvent: lambda event: self._begin(event, {}, {}),
            yaml.SequenceStartEvent: lambda event: self._begin(event, [], []),
            yaml.MappingEndEvent: self._end,
            yaml.SequenceEndEvent: self._end,
            yaml.AliasEvent: self._alias,
            yaml.DocumentStartEvent: self._begin_document,
        }
        for event in iter(parser.get_event, None):
            handler = handlers.get(type(event))
            if handler is not None:
                handler(event)
        documents = self._stack[0]
        return YamlDocument(documents.value[0], documents.lines[0][1]) if documents.value else YamlDocument(None)

    def _begin_document(self, event: Any) -> None:
        if self._stack[0].value:
            raise InvalidYamlError(_line(event), "a second document starts here: write one document in each file")

    def _scalar(self, event: Any) -> None:
        _check_tag(event, "!", _STRING_TAG)
        text, is_plain, is_key = event.value, event.tag is None and event.implicit[0], self._expects_key()
        if is_key:
            self._add_key(text, _line(event), is_merge=is_plain and text == _MERGE_KEY)
            if event.anchor is None:
                return
        value = _plain_scalar(text, _line(event)) if is_plain else text
        if is_plain and not is_key and type(value) in (int, float) and str(value) != text and self._is_in_condition():
            problem = f"{text} is read as the number {value}: quote it to compare texts, or write {value}"
            raise InvalidYamlError(_line(event), problem)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchor(value, key=text)
        if not is_key:
            self._add(value, None, _line(event))

    def _alias(self, event: Any) -> None:
        if event.anchor not in self._anchors:
            raise yaml.MarkedYAMLError(problem="found undefined alias", problem_mark=event.start_mark)
        anchor = self._anchors[event.anchor]
        if anchor is None:
            raise InvalidYamlError(_line(event), f"the value of &{event.anchor} contains itself: remove this alias")
        if self._expects_key():
            if anchor.key is None:
                raise InvalidYamlError(_line(event), _NO_KEY)
            self._add_key(anchor.key, _line(event))
            return
        self._add(anchor.value, anchor.lines, _line(event), values=anchor.values, height=anchor.height)

    def _begin(self, event: Any, value: Any, lines: Any) -> None:
        _check_tag(event, "!")
        if self._expects_key():
            raise InvalidYamlError(_line(event), _NO_KEY)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        self._stack.append(_Collection(value, lines, _line(event), event.anchor, self._values))
        self._check_limits(_line(event))

    def _end(self, _event: Any) -> None:
        ended = self._stack.pop()
        for value, lines in ended.merged:
            for key in value:
                if key not in ended.value:
                    ended.value[key], ended.lines[key] = value[key], lines[key]
        if ended.anchor is not None:
            size = self._values - ended.values_before + 1
            self._anchors[ended.anchor] = _Anchor(ended.value, ended.lines, size, ended.height)
        self._add(ended.value, ended.lines, ended.line, height=ended.height)

    def _expects_key(self) -> bool:
        collection = self._stack[-1]
        return type(collection.value) is dict and collection.key is None

    def _is_in_condition(self) -> bool:
        """Returns whether a value is compared with values of events, which may be texts that look like numbers."""
        return any(collection.key in _CONDITION_KEYS for collection in self._stack)

    def _add_key(self, key: str, line: int, *, is_merge: bool = False) -> None:
        mapping = self._stack[-1]
        if key in mapping.value:
            problem = f"duplicate key {key!r}; the first is on line {mapping.lines[key][0]}"
            raise InvalidYamlError(line, f"{problem}: keep one of them")
        mapping.key, mapping.key_line, mapping.is_merge = key, line, is_merge

    def _add(self, value: Any, lines: Lines, line: int, *, values: int = 1, height: int = 0) -> None:
        """Adds a value to the innermost mapping or list."""
        self._values += values
        if self._values > MAX_VALUES or height:
            self._check_limits(line, height=height)
        parent = self._stack[-1]
        if height >= parent.height:
            parent.height = height + 1
        if parent.key is None:
            parent.value.append(value)
            parent.lines.append((line, lines))
            return
        if parent.is_merge:
            parent.merged += _merged_mappings(value, lines, line)
        else:
            parent.value[parent.key] = value
            parent.lines[parent.key] = (parent.key_line, lines)
        parent.key = None

    def _check_limits(self, line: int, *, height: int = 0) -> None:
        is_deep = len(self._stack) - 1 + height > MAX_DEPTH
        if is_deep or self._values > MAX_VALUES:
            bound = f"{MAX_DEPTH} levels" if is_deep else f"{MAX_VALUES} values"
            raise InvalidYamlError(line, f"with its aliases it exceeds {bound}")


def _merged_mappings(value: Any, lines: Any, line: int) -> list[tuple[Any, Any]]:
    """Returns the mappings after a merge key: the value, or the items of the list."""
    sources = list(zip(value, (inner for _, inner in lines), strict=True)) if type(value) is list else [(value, lines)]
    if not all(type(mapping) is dict for mapping, _ in sources):
        raise InvalidYamlError(line, f"write a mapping, or an alias of one, after {_MERGE_KEY}")
    return sources


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _check_tag(event: Any, *tags: str) -> None:
    if event.tag is not None and event.tag not in tags:
        tag = event.tag.replace(_TAG_PREFIX, "!!")
        raise InvalidYamlError(_line(event), f"the tag {tag} is not supported: remove it")


def _plain_scalar(text: str, line: int) -> Any:
    match = _CORE_SCHEMA.fullmatch(text)
    try:
        return text if match is None else _SCALARS[str(match.lastgroup)](text)
    except ValueError as error:  # a date that does not exist, or a number of thousands of digits
        raise InvalidYamlError(line, f"a value that cannot be read: {error}") from error


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


def _explain(problem: str, *, line: int, text: str) -> str:
    """Returns an error message that says what is wrong and what to write, because the parser's speak of tokens.

    Args:
        problem: the parser's message, which is returned if there is no better one.
        line: 1-based line of the error.
        text: the complete file.
    """
    lines = text.splitlines()
    line_text = lines[line - 1] if line <= len(lines) else ""
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


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Quotes texts that parsers of YAML 1.1 or 1.2 would read as another type. Writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def resolve(self, kind: type, value: Any, implicit: tuple[bool, bool]) -> Any:
        tag = super().resolve(kind, value, implicit)
        is_text = kind is not yaml.ScalarNode or _CORE_SCHEMA.fullmatch(value) is None
        return tag if tag != _STRING_TAG or not implicit[0] or is_text else None


def _string_node(dumper: _Dumper, text: str) -> Any:
    """Escapes line breaks of YAML 1.1, which need double quotes."""
    return dumper.represent_scalar(_STRING_TAG, text, style='"' if _OLD_LINE_BREAK.search(text) else None)


_Dumper.add_representer(str, _string_node)


def dump_yaml(value: Any, *, width: int = 80) -> str:
    """Returns a value as YAML in block style, with keys in the given order."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=width))
