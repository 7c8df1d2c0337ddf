"""Reads YAML as plain as declarations are by the parser in C, many times as fast as the one that keeps lines.

It takes only what both parsers read alike: texts, whole numbers, decimals, booleans and nulls in lists and mappings
with distinct keys. Anything else (anchors, tags, dates, other notations of numbers, a mistake) it leaves to
`bounded_yaml`, which says what is wrong with its line. Its bounds hold here as well: nothing recurses, no alias is
followed, and a text that nests or grows too far is left to it too.
"""

from __future__ import annotations

import re
from typing import Any

import yaml
from yaml.cyaml import CParser

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]{0,14})\.[0-9]{1,15}")
#: What begins so and is none of the words below is a text in every version of YAML.
_STRING_START = re.compile(r"(?:--?)?[A-Za-z]|[/_]")
#: A text too: it begins as a number, and has a letter that no number and no time has, such as `64MiB`.
_QUANTITY = re.compile(r"[0-9][0-9A-Za-z ]*[g-np-su-wyG-NP-SU-WY][0-9A-Za-z ]*")
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
#: Characters on which the two parsers may differ: breaks of lines that one version of YAML has, tabs, marks of order.
_AMBIGUOUS_CHARACTERS = re.compile("[\t\x85\u2028\u2029\ufeff]|^[%]|\r", re.MULTILINE)
#: Below the bounds of `bounded_yaml`, which judges what goes beyond: a test holds that.
MAX_NESTING, MAX_EVENTS = 50, 50_000


class NotPlainYamlError(Exception):
    """The text is to be read by the parser that knows all of YAML."""


def load_plain_yaml(data: bytes) -> Any:
    """What a text of one document says, as plain dicts, lists and scalars.

    Raises:
        NotPlain: it is wrong, or not as plain as that.
    """
    try:
        text = data.decode()
        if _AMBIGUOUS_CHARACTERS.search(text):
            raise NotPlainYamlError
        return _document(CParser(text))
    except (yaml.YAMLError, ValueError) as error:
        raise NotPlainYamlError from error


def _document(parser: Any) -> Any:
    """The value of the only document."""
    values = _DocumentBuilder()
    takes = {
        yaml.ScalarEvent: values.scalar,
        yaml.MappingStartEvent: values.begin_mapping,
        yaml.SequenceStartEvent: values.begin_list,
        yaml.MappingEndEvent: values.end,
        yaml.SequenceEndEvent: values.end,
        yaml.AliasEvent: values.reject,
        # Values come between them; a second document makes a second value.
        yaml.StreamStartEvent: values.ignore,
        yaml.DocumentStartEvent: values.ignore,
        yaml.DocumentEndEvent: values.ignore,
    }
    for _ in range(MAX_EVENTS):
        event = parser.get_event()
        if type(event) is yaml.StreamEndEvent:
            return values.document()
        takes[type(event)](event)
    raise NotPlainYamlError


class _DocumentBuilder:
    """Values as their events come."""

    def __init__(self) -> None:
        self._documents: list[Any] = []
        #: Lists and mappings that are open, and of each mapping the key whose value comes next.
        self._stack: list[Any] = [self._documents]
        self._keys: list[str | None] = [None]

    def document(self) -> Any:
        if len(self._documents) != 1:
            raise NotPlainYamlError
        return self._documents[0]

    def scalar(self, event: Any) -> None:
        self._add(_scalar(event))

    def begin_mapping(self, event: Any) -> None:
        self._begin(event, {})

    def begin_list(self, event: Any) -> None:
        self._begin(event, [])

    def end(self, _event: Any) -> None:
        self._stack.pop()
        self._keys.pop()

    def reject(self, _event: Any) -> None:
        raise NotPlainYamlError

    def ignore(self, _event: Any) -> None:
        """Nothing to do."""

    def _begin(self, event: Any, value: Any) -> None:
        _reject_anchor_or_tag(event)
        self._add(value)
        self._stack.append(value)
        self._keys.append(None)
        if len(self._stack) > MAX_NESTING:
            raise NotPlainYamlError

    def _add(self, value: Any) -> None:
        node, key = self._stack[-1], self._keys[-1]
        if type(node) is list:
            node.append(value)
        elif key is not None:
            node[key] = value
            self._keys[-1] = None
        elif type(value) is not str or value in node or value == "<<":
            raise NotPlainYamlError
        else:
            self._keys[-1] = value


def _scalar(event: Any) -> Any:
    _reject_anchor_or_tag(event)
    text = event.value
    if event.style:
        return text
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    if _STRING_START.match(text) or _QUANTITY.fullmatch(text):
        return text
    raise NotPlainYamlError


def _reject_anchor_or_tag(event: Any) -> None:
    """What has an anchor or a tag is not plain."""
    if event.anchor is not None or event.tag is not None:
        raise NotPlainYamlError
