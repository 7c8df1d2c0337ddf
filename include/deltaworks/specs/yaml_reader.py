"""Reads YAML documents with the line of each key, explains syntax errors, and writes YAML.

Scalars follow the core schema of YAML 1.2, plus dates: `yes`, `1:30` and `1_000` are texts, and `012` is twelve. The
size is limited, because the C parser recurses without bound, and with aliases a hundred bytes can expand to billions of
values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

import yaml
from yaml.composer import Composer
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
#: Tags of nodes without a declared tag.
_PLAIN, _QUOTED, _COLLECTION = "plain", "quoted", "collection"
_TAG_PREFIX: Final = "tag:yaml.org,2002:"
_STRING_TAG: Final = f"{_TAG_PREFIX}str"
_MERGE_KEY: Final = "<<"
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


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """The dicts, lists and scalars of a document, and the line of each. Keys are texts, as written."""

    values: Any
    node: Any = None

    def line_of(self, key_path: KeyPath) -> tuple[int, KeyPath]:
        """Returns the 1-based line of a key path. If the path does not exist, returns the line of its deepest existing
        part.

        Also returns the key path, up to the first part that does not exist.
        """
        node, line = self.node, 1
        for index, part in enumerate(key_path):
            child = _child(node, part)
            if child is None:
                return line, key_path[: index + 1]
            line, node = child
        return line, key_path


def _child(node: Any, part: str | int) -> tuple[int, Any] | None:
    """Returns line and node of a key or list item; None if there is none."""
    if isinstance(node, yaml.MappingNode):
        return next(((_line(key), value) for key, value in node.value if key.value == part), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return _line(node.value[part]), node.value[part]
    return None


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


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
    node = _compose(text)
    return YamlDocument(None if node is None else _ValueBuilder().build(node), node)


class _Bounds:
    """Hooks that PyYAML's composers call for each node: limits nesting and size, and distinguishes plain scalars."""

    def __init__(self) -> None:
        self._depth = self._nodes = 0

    def descend_resolver(self, parent: Any, index: Any) -> None:
        self._depth += 1
        self._nodes += 1
        if self._depth > MAX_DEPTH or self._nodes > 2 * MAX_VALUES:  # keys are nodes too
            raise _too_large(parent, depth=self._depth)

    def ascend_resolver(self) -> None:
        self._depth -= 1

    def resolve(self, kind: type, value: Any, implicit: Any) -> str:
        if kind is not yaml.ScalarNode:
            return _COLLECTION
        return _PLAIN if implicit[0] else _QUOTED


if CParser is not None:

    class _CComposer(CParser, _Bounds):  # type: ignore[misc]
        """Composes nodes with the C parser."""

        def __init__(self, text: str) -> None:
            CParser.__init__(self, text)
            _Bounds.__init__(self)


class _Composer(Reader, Scanner, Parser, Composer, _Bounds):  # type: ignore[misc]
    """Composes nodes in Python. Its error messages are more precise than those of the C parser."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        _Bounds.__init__(self)

    def compose_scalar_node(self, anchor: Any) -> Any:
        event = self.peek_event()
        if event.tag == "!":  # makes a text of any scalar, as in the C parser
            event.implicit = (False, True)
        return super().compose_scalar_node(anchor)


def _compose(text: str) -> Any:
    """Returns the root node of a document; None if it is empty."""
    if CParser is not None:
        try:
            return yaml.compose(text, Loader=_CComposer)
        except yaml.YAMLError:
            pass
    try:
        return yaml.compose(text, Loader=_Composer)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = _explain(str(error.problem or error.context), line=line, text=text)
        raise InvalidYamlError(line, problem) from error
    except ReaderError as error:
        problem = f"the character #x{error.character:04x}, which YAML does not allow"
        raise InvalidYamlError(text.count("\n", 0, error.position) + 1, problem) from error


class _ValueBuilder:
    """Builds values from nodes. An alias is built each time it is used, so that the limits count what it expands to."""

    def __init__(self) -> None:
        self._values = 0

    def build(self, node: Any, depth: int = 0) -> Any:
        self._values += 1
        if self._values > MAX_VALUES or depth > MAX_DEPTH:
            raise _too_large(node, depth=depth)
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        _check_tag(node, _COLLECTION)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, depth + 1) for item in node.value]
        self._resolve_keys(node)
        return {key.value: self.build(value, depth + 1) for key, value in node.value}

    def _resolve_keys(self, node: Any) -> None:
        """Checks the keys of a mapping, and replaces a merge key by the keys of the merged mappings, which the
        mapping's own keys override.
        """
        pairs: dict[str, tuple[Any, Any]] = {}
        sources: list[Any] = []
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise InvalidYamlError(_line(key), "a key must be a text, not a list or mapping")
            _check_tag(key, _PLAIN, _QUOTED, _STRING_TAG)
            if key.value in pairs:
                problem = f"duplicate key {key.value!r}; the first is on line {_line(pairs[key.value][0])}"
                raise InvalidYamlError(_line(key), f"{problem}: keep one of them")
            if key.tag == _PLAIN and key.value == _MERGE_KEY:
                sources += value.value if isinstance(value, yaml.SequenceNode) else [value]
            else:
                pairs[key.value] = (key, value)
        # Set before the sources are read, because a mapping can be its own source.
        node.value = list(pairs.values())
        for source in sources:
            if not isinstance(source, yaml.MappingNode):
                raise InvalidYamlError(_line(source), f"write a mapping, or an alias of one, after {_MERGE_KEY}")
            self._resolve_keys(source)
            self._values += len(source.value)
            if self._values > MAX_VALUES:
                raise _too_large(source)
            pairs = {key.value: (key, value) for key, value in source.value} | pairs
        if sources:
            node.value = list(pairs.values())


def _too_large(node: Any, *, depth: int = 0) -> InvalidYamlError:
    bound = f"{MAX_DEPTH} levels" if depth > MAX_DEPTH else f"{MAX_VALUES} values"
    return InvalidYamlError(_line(node), f"with its aliases it exceeds {bound}")


def _check_tag(node: Any, *tags: str) -> None:
    if node.tag not in tags:
        tag = node.tag.replace(_TAG_PREFIX, "!!")
        raise InvalidYamlError(_line(node), f"the tag {tag} is not supported: remove it")


def _scalar(node: Any) -> Any:
    if node.tag != _PLAIN:
        _check_tag(node, _QUOTED, _STRING_TAG)
        return node.value
    match = _CORE_SCHEMA.fullmatch(node.value)
    try:
        return node.value if match is None else _SCALARS[str(match.lastgroup)](node.value)
    except ValueError as error:  # a date that does not exist, or a number of thousands of digits
        raise InvalidYamlError(_line(node), f"a value that cannot be read: {error}") from error


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
    (re.compile(r"^second occurrence"), "the file has two anchors of this name: rename one"),
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
