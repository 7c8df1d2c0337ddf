"""Reads plain YAML documents fast, with the C parser of PyYAML.

Accepts only documents that this parser and the one of `bounded_yaml` read alike: strings, integers, decimals, booleans
and nulls in lists and mappings with distinct keys. It rejects all others (with anchors, tags, dates, other number
formats, syntax errors); the caller then uses `bounded_yaml`, which reports errors with their lines. Size limits apply
here too: nothing recurses, no alias is followed, and documents that are too deep or too large are rejected.
"""

from __future__ import annotations

import re
from typing import Any

import yaml
from yaml.cyaml import CParser

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]{0,14})\.[0-9]{1,15}")
#: First characters of scalars that are strings in every YAML version, except for booleans and nulls.
_STRING_START = re.compile(r"(?:--?)?[A-Za-z]|[/_]")
#: Strings such as `64MiB`: they start like a number but contain a letter that occurs in no number or time.
_QUANTITY = re.compile(r"[0-9][0-9A-Za-z ]*[g-np-su-wyG-NP-SU-WY][0-9A-Za-z ]*")
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
#: Characters that the two parsers may treat differently: line breaks of one YAML version only, tabs, byte order marks.
_AMBIGUOUS_CHARACTERS = re.compile("[\t\x85\u2028\u2029\ufeff]|^[%]|\r", re.MULTILINE)
#: Lower than the limits of `bounded_yaml`, which reports the error; a test checks that.
MAX_NESTING, MAX_EVENTS = 50, 50_000


class NotPlainYamlError(Exception):
    """Raised for a document that needs the full YAML parser."""


def load_plain_yaml(data: bytes) -> Any:
    """Parses one document to dicts, lists and scalars.

    Raises:
        NotPlainYamlError: the document is invalid or not plain.
    """
    try:
        text = data.decode()
        if _AMBIGUOUS_CHARACTERS.search(text):
            raise NotPlainYamlError
        return _document(CParser(text))
    except (yaml.YAMLError, ValueError) as error:
        raise NotPlainYamlError from error


def _document(parser: Any) -> Any:
    """Parses the document, which must be the only one in the stream."""
    values = _DocumentBuilder()
    handlers = {
        yaml.ScalarEvent: values.scalar,
        yaml.MappingStartEvent: values.begin_mapping,
        yaml.SequenceStartEvent: values.begin_list,
        yaml.MappingEndEvent: values.end,
        yaml.SequenceEndEvent: values.end,
        yaml.AliasEvent: values.reject,
        # Events without a value are skipped. A second document would add a second value.
        yaml.StreamStartEvent: values.ignore,
        yaml.DocumentStartEvent: values.ignore,
        yaml.DocumentEndEvent: values.ignore,
    }
    for _ in range(MAX_EVENTS):
        event = parser.get_event()
        if type(event) is yaml.StreamEndEvent:
            return values.document()
        handlers[type(event)](event)
    raise NotPlainYamlError


class _DocumentBuilder:
    """Builds a document from parser events."""

    def __init__(self) -> None:
        self._documents: list[Any] = []
        #: Open lists and mappings, and for each mapping the key whose value comes next.
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
        """Ignores an event that has no value."""

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
    """Rejects values with an anchor or a tag."""
    if event.anchor is not None or event.tag is not None:
        raise NotPlainYamlError
