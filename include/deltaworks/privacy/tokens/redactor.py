"""Redacts events in place according to the compiled `privacy` section. Idempotent.

Only existing values change; nothing is added. An event takes one dictionary access per object with a declared field,
and an HMAC per value that is not cached. Redacting a redacted event changes nothing, so the collector and the parser
can both redact it.

Paths descend into list elements. A text in place of an object or list on the way to a declared field may contain the
field as JSON, so it is dropped. Texts of undeclared fields are scanned for emails and international phone numbers.
"""

from __future__ import annotations

import json
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache, partial
from typing import Any, Final

from deltaworks.privacy.tokens.envelope_encryption import Identity, derive_day_key, is_token, suppression_digest, token
from deltaworks.privacy.tokens.suppression import NO_SUPPRESSION, Suppression
from deltaworks.specs.base import path_names
from deltaworks.specs.privacy import PrivacySpec, PrivateFieldSpec

_EMAIL: Final = re.compile(r"[A-Za-z0-9_.+%-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*\.[A-Za-z]{2,24}")
_PHONE: Final = re.compile(r"(?<![0-9A-Za-z+])(?:\+|00)[1-9][0-9 ()./-]{6,18}[0-9](?![0-9A-Za-z])")
_DIGITS: Final = re.compile(r"[0-9]")
_MIN_PHONE_DIGITS, _MAX_PHONE_DIGITS = 8, 15


class _Patterns:
    """Patterns that match JSON if one of its texts contains an email or a phone number. A match may also be a false
    positive.

    Characters may be written as escapes, and a slash in a number may be preceded by backslashes.
    """

    def __init__(self, convert: Callable[[str], Any]) -> None:
        self.at, self.plus, self.backslash = convert("@"), convert("+"), convert("\\")
        self.zeros = re.compile(convert("00[1-9][0-9 ()./-]{6,18}[0-9]"))
        self.number = re.compile(convert(r"\+[1-9][0-9 ()./-]{6,18}[0-9]"))
        self.slash = re.compile(convert(r"[0-9 ().-]\\+/"))
        self.escape = re.compile(convert(r"\\u00[2-7]"))


_TEXT_PATTERNS: Final = _Patterns(str)
_BYTES_PATTERNS: Final = _Patterns(str.encode)


class Scanner:
    """Counts or drops texts with an email or a phone number in undeclared fields. Declared fields contain only tokens.

    Counts are `scan_email` and `scan_phone`, and with the suffix `_dropped` for dropped texts.
    """

    def __init__(self, spec: PrivacySpec) -> None:
        self._email, self._phone = spec.scan.email, spec.scan.phone

    def scan(self, event: dict[str, Any], counts: Counter[str]) -> None:
        """Scans a redacted event and drops texts in place, if declared."""
        pending: list[Any] = [event]
        while pending:
            container = pending.pop()
            pairs = list(container.items()) if type(container) is dict else list(enumerate(container))
            for key, value in pairs:
                kind = type(value)
                if kind is dict or kind is list:
                    pending.append(value)
                elif kind is str and len(value) > 5 and self._should_drop(value, counts):
                    container[key] = None

    def may_contain(self, json: str | bytes) -> bool:
        """Returns False if neither the JSON nor JSON nested in its texts contains a match. True is not certain."""
        marks = _TEXT_PATTERNS if isinstance(json, str) else _BYTES_PATTERNS
        if self._email != "off" and marks.at in json:
            return True
        phones = self._phone != "off"
        if marks.backslash in json and (
            marks.escape.search(json) is not None or (phones and marks.slash.search(json) is not None)
        ):
            return True
        return phones and (
            marks.zeros.search(json) is not None or (marks.plus in json and marks.number.search(json) is not None)
        )

    def _should_drop(self, text: str, counts: Counter[str]) -> bool:
        drops = False
        if self._email != "off" and "@" in text and _EMAIL.search(text) is not None:
            drops |= self._count_match("email", self._email, counts)
        if self._phone != "off" and ("+" in text or "00" in text) and _has_phone(text):
            drops |= self._count_match("phone", self._phone, counts)
        return drops

    @staticmethod
    def _count_match(kind: str, action: str, counts: Counter[str]) -> bool:
        counts[f"scan_{kind}" if action == "count" else f"scan_{kind}_dropped"] += 1
        return action == "drop"


def _has_phone(text: str) -> bool:
    return any(
        _MIN_PHONE_DIGITS <= len(_DIGITS.findall(match.group())) <= _MAX_PHONE_DIGITS for match in _PHONE.finditer(text)
    )


#: Prefix of an IPv4 address mapped to IPv6: `::ffff:203.0.113.7`.
_IPV4_MAPPED_PREFIX: Final = bytes(10) + b"\xff\xff"
#: 2002::/16 (6to4) contains an IPv4 address in the next 32 bits.
_6TO4_PREFIX: Final = b"\x20\x02"
_IPV6_NETWORK_BYTES, _6TO4_NETWORK_BYTES, _IPV4_NETWORK_BYTES = 6, 5, 3
#: An address as producers write it: in brackets, with a zone and a port. Without brackets IPv6 has no port.
_V4, _V6 = r"[0-9.]+", r"[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*"
_ADDRESS: Final = re.compile(
    rf"(?:\[(?:({_V6})(?:%[^%\]\s]+)?|({_V4}))\]|({_V4}))(?::[0-9]{{1,5}})?|({_V6})(?:%[^%\]]+)?"
)


def parse_ip(text: str) -> bytes | None:
    """Parses an IP address: 4 bytes for IPv4, also if it is mapped to IPv6, 16 for IPv6; None if it is invalid.

    Proxies write comma-separated lists, of which the first entry counts. A port (`203.0.113.7:51234`,
    `[2001:db8::1]:443`) and a zone (`fe80::1%eth0`) are ignored.
    """
    match = _ADDRESS.fullmatch(text.partition(",")[0].strip())
    if match is None:
        return None
    address = str(match[match.lastindex or 0])
    try:
        if ":" not in address:
            return socket.inet_pton(socket.AF_INET, address)
        packed = socket.inet_pton(socket.AF_INET6, address)
    except OSError:
        return None
    return packed[12:] if packed.startswith(_IPV4_MAPPED_PREFIX) else packed


def format_ip(address: bytes) -> str:
    """Returns the text of an address."""
    return socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)


@lru_cache(maxsize=65_536)
def truncate_ip(text: str) -> str | None:
    """Clears the host part of an address: the last octet of IPv4, the last 80 bits of IPv6. Idempotent.

    A 6to4 address, whose first 48 bits contain an IPv4 address, keeps 40 bits. Notations are those of `parse_ip`.
    Returns None if the text is no address.
    """
    address = parse_ip(text)
    if address is None:
        return None
    if len(address) == 4:
        network_bytes = _IPV4_NETWORK_BYTES
    else:
        network_bytes = _6TO4_NETWORK_BYTES if address.startswith(_6TO4_PREFIX) else _IPV6_NETWORK_BYTES
    return format_ip(address[:network_bytes] + bytes(len(address) - network_bytes))


_MAX_CACHED_VALUES: Final = 100_000
_MAX_CACHED_LENGTH: Final = 256
#: Returned by a transform to drop the value.
DROPPED: Final = object()
#: Transforms a value; may return `DROPPED`. Appends tokens as (kind, token, value): the original value for the vault,
#: True for a new token, None for a value that was a token already.
Transform = Callable[[Any, list[tuple[str, str, Any]]], Any]


class RedactionOutcome(Enum):
    """Whether an event is kept, or why it must be discarded."""

    KEPT = "kept"
    OPTED_OUT = "opted_out"
    SUPPRESSED = "suppressed"


@dataclass(slots=True)
class RedactionResult:
    """Counts, and identities for the vault, summed over many events."""

    counts: Counter[str] = field(default_factory=Counter)
    identities: list[Identity] = field(default_factory=list)


class Redactor:
    """Redacts the events of one pipeline. Not thread-safe.

    Args:
        key: token key of the namespace.
        suppression: list of erased subjects, whose events are dropped.

    Attributes:
        transforms: transforms of the declared fields, except for children.
        scanner: scans texts, if declared.
        opt_out_condition: selects events whose subject has opted out; they are dropped.
        child_condition: selects events of children. Both conditions apply to events before redaction.
    """

    def __init__(self, spec: PrivacySpec, key: bytes, *, suppression: Suppression = NO_SUPPRESSION) -> None:
        self._key = key
        self._suppression = suppression
        self.spec = spec
        self.fields = _compile(spec.fields, _TransformFactory(key, vault=True))
        self.scanner = Scanner(spec) if {spec.scan.email, spec.scan.phone} != {"off"} else None
        regulation = spec.regulation
        self.opt_out_condition = None if regulation.opt_out is None else EventCondition(regulation.opt_out.when)
        self.child = None if regulation.child is None else EventCondition(regulation.child.when)
        self._subject = list(map(path_names, spec.subject))
        self._day = ""
        self._child_transforms: FieldTransforms | None = None
        self._digests: dict[str, str] = {}

    def set_suppression(self, suppression: Suppression) -> None:
        """Replaces the suppression list. The next event uses it. Thread-safe."""
        self._suppression = suppression

    def redact(
        self, event: dict[str, Any], *, at_ms: int, result: RedactionResult, scan_texts: bool = True
    ) -> RedactionOutcome:
        """Redacts an event in place and returns whether to keep it. The caller must discard an event that is not kept:
        it is only partly redacted.

        Args:
            at_ms: recorded arrival time in milliseconds since 1970, the same whenever the event is read.
            result: receives counts and identities.
            scan_texts: False if a pre-check found that no text needs scanning.
        """
        if self.opt_out_condition is not None and self.opt_out_condition.matches(event):
            result.counts["opted_out"] += 1
            return RedactionOutcome.OPTED_OUT
        child_condition = self.child is not None and self.child.matches(event)
        found_tokens: list[tuple[str, str, Any]] = []
        transforms = self.child_transforms(at_ms) if child_condition else self.fields
        transforms.apply(event, found_tokens)
        if child_condition:
            result.counts["child"] += 1
        if self._suppression.until_us and self._is_suppressed(
            (token_text for _, token_text, _ in found_tokens), at_us=at_ms * 1000
        ):
            result.counts["suppressed"] += 1
            return RedactionOutcome.SUPPRESSED
        if found_tokens:
            self._record_identities(event, found_tokens, at_ms, result, is_adult=not child_condition)
        if scan_texts and self.scanner is not None:
            self.scanner.scan(event, result.counts)
        return RedactionOutcome.KEPT

    def redact_reread(self, event: Any, *, at_ms: int) -> Any:
        """Redacts an event that was accepted before and is read again. Records neither counts nor identities."""
        if type(event) is dict:
            fields = self.fields
            if self.child is not None and self.child.matches(event):
                fields = self.child_transforms(at_ms)
            fields.apply(event, [])
            if self.scanner is not None:
                self.scanner.scan(event, Counter())
        return event

    def _record_identities(
        self,
        event: dict[str, Any],
        found_tokens: list[tuple[str, str, Any]],
        at_ms: int,
        result: RedactionResult,
        *,
        is_adult: bool,
    ) -> None:
        """Records identities for the vault if the event had at least one value that was not a token yet.

        An identity is recorded for each token with a value to store, and for each token other than the subject's.
        """
        new_tokens = [item for item in found_tokens if item[2] is not None]
        if not new_tokens:
            return
        result.counts["tokens"] += len(new_tokens)
        if not (is_adult or self.stores_child_identities):
            return
        subject = self._subject_token(event)
        for kind, token_text, value in dict.fromkeys(found_tokens):
            sealed = value if type(value) is str else None
            token_subject = subject or token_text
            if sealed is not None or token_subject != token_text:
                result.identities.append(Identity(token_subject, kind, token_text, sealed, at_ms))

    @property
    def stores_child_identities(self) -> bool:
        """Whether the vault stores identities of children."""
        child = self.spec.regulation.child
        return child is not None and child.vault

    @property
    def has_suppressions(self) -> bool:
        """Whether the suppression list has entries."""
        return bool(self._suppression.until_us)

    def suppressed_tokens(self, tokens: Iterable[str]) -> set[str]:
        """Returns the tokens that have an entry on the suppression list, including entries that have ended."""
        return {token_text for token_text in tokens if self._digest(token_text) in self._suppression}

    def _subject_token(self, event: dict[str, Any]) -> str | None:
        for path in self._subject:
            value: Any = event
            for name in path:
                value = value.get(name) if type(value) is dict else None
            if type(value) is str and is_token(value):
                return value
        return None

    def _is_suppressed(self, tokens: Iterable[str], *, at_us: int) -> bool:
        return any(self._suppression.matches_digest(self._digest(token_text), at_us=at_us) for token_text in tokens)

    def _digest(self, token_text: str) -> str:
        digest = self._digests.get(token_text)
        if digest is None:
            digest = suppression_digest(self._key, token_text)
            cache_value(self._digests, token_text, digest)
        return digest

    def child_transforms(self, at_ms: int) -> FieldTransforms:
        """Returns the transforms for events of children. Tokens are valid for one day, and more fields are dropped."""
        day = datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat()
        if self._child_transforms is None or day != self._day:
            child = self.spec.regulation.child
            per_day = child is None or child.tokens == "per_day"
            factory = _TransformFactory(
                derive_day_key(self._key, day) if per_day else self._key, vault=child is not None and child.vault
            )
            dropped = () if child is None else child.drop
            drops = [PrivateFieldSpec(path=path, action="drop") for path in dropped]
            fields = [item for item in self.spec.fields if item.path not in dropped]
            self._child_transforms, self._day = _compile([*fields, *drops], factory), day
        return self._child_transforms


class EventCondition:
    """A condition on events: the value at every path must be one of the listed values. `paths` has pairs of a split
    path and its values with their types.
    """

    def __init__(self, when: Mapping[str, tuple[Any, ...]]) -> None:
        # True equals 1 in Python but not in JSON.
        self.paths = [(path_names(path), {(type(v), v) for v in values}) for path, values in when.items()]

    def matches(self, event: dict[str, Any]) -> bool:
        """Returns whether the event meets the condition."""
        for path, values in self.paths:
            value: Any = event
            for name in path:
                value = value.get(name) if type(value) is dict else None
            if isinstance(value, str) and type(value) is not str:  # a number literal
                value = json.loads(value)
            if type(value) in (dict, list) or (type(value), value) not in values:
                return False
        return True


class FieldTransforms:
    """The transforms for the fields of an object, by name, and for fields of nested objects and lists."""

    def __init__(self) -> None:
        self.by_name: dict[str, Transform] = {}
        self.nested: dict[str, FieldTransforms] = {}

    def apply(self, holder: dict[str, Any], found_tokens: list[tuple[str, str, Any]]) -> None:
        """Transforms the fields of an object and of nested objects, in place."""
        for name, change in self.by_name.items():
            value = holder.get(name)
            if value is None:
                continue
            changed = change(value, found_tokens)
            if changed is DROPPED:
                del holder[name]
            else:
                holder[name] = changed
        for name, node in self.nested.items():
            value = holder.get(name)
            if value is None:
                continue
            if type(value) is dict:
                node.apply(value, found_tokens)
            elif type(value) is list or type(value) is str:
                holder[name] = node.apply_to_value(value, found_tokens)

    def apply_to_value(self, value: Any, found_tokens: list[tuple[str, str, Any]]) -> Any:
        """Returns the transformed value. Objects and lists are changed in place."""
        if type(value) is dict:
            self.apply(value, found_tokens)
        elif type(value) is list:
            for index, element in enumerate(value):
                if type(element) is dict:
                    self.apply(element, found_tokens)
                elif type(element) in (str, list):
                    value[index] = None
        return None if type(value) is str else value

    def transform_at(self, path: Sequence[str]) -> Transform:
        """Returns the transform for a path.

        Raises:
            KeyError: no field is declared at the path or below it.
        """
        node = self
        for name in path[:-1]:
            node = node.nested[name]
        return node.by_name[path[-1]] if path[-1] in node.by_name else node.nested[path[-1]].apply_to_value


class _TransformFactory:
    """Creates transforms that compute tokens with one key and cache them by value."""

    def __init__(self, key: bytes, *, vault: bool) -> None:
        self._key = key
        self._vault = vault
        self._tokens: dict[str, dict[str, str]] = {}

    def create(self, field: PrivateFieldSpec) -> Transform:
        """Returns the transform for a declared field."""
        if field.action == "drop":
            return _drop
        if field.action == "truncate_ip":
            return _truncate
        if field.kind is None:
            raise TypeError(f"{field.path}: a token needs a kind")
        cache = self._tokens.setdefault(field.kind, {})
        return partial(self._tokenize, field.kind, cache, field.action == "vault" and self._vault)

    def _tokenize(
        self,
        kind: str,
        cache: dict[str, str],
        goes_to_vault: bool,
        value: Any,
        found_tokens: list[tuple[str, str, Any]],
    ) -> Any:
        if type(value) is not str:
            if type(value) is int:
                value = str(value)
            elif type(value) is list:
                return [
                    None if type(item) is list else self._tokenize(kind, cache, goes_to_vault, item, found_tokens)
                    for item in value
                ]
            else:
                return _tokenize_number(
                    value, lambda text: self._tokenize(kind, cache, goes_to_vault, text, found_tokens)
                )
        if not value:
            return value
        token_text = cache.get(value)
        if token_text is None:
            if is_token(value):
                found_tokens.append((kind, value, None))
                return value
            token_text = token(self._key, kind=kind, value=value)
            cache_value(cache, value, token_text)
        found_tokens.append((kind, token_text, value if goes_to_vault else True))
        return token_text


def _compile(fields: Iterable[PrivateFieldSpec], factory: _TransformFactory) -> FieldTransforms:
    root = FieldTransforms()
    for item in fields:
        *parents, last = path_names(item.path)
        node = root
        for name in parents:
            node = node.nested.setdefault(name, FieldTransforms())
        node.by_name[last] = factory.create(item)
    return root


def _drop(_value: Any, _found_tokens: list[tuple[str, str, Any]]) -> Any:
    return DROPPED


def _truncate(value: Any, found_tokens: list[tuple[str, str, Any]]) -> Any:
    if type(value) is str:
        return truncate_ip(value) if len(value) <= _MAX_CACHED_LENGTH else None
    if type(value) is list:
        return [None if type(item) is list else _truncate(item, found_tokens) for item in value]
    return None


def _tokenize_number(value: Any, tokenize: Callable[[str], Any]) -> Any:
    """Returns the token of an integer literal, the form in which lossless readers parse large integers; None for other
    values.
    """
    text = str(value) if isinstance(value, str) else ""
    return tokenize(text) if text.lstrip("-").isdigit() else None


def cache_value(cache: dict[str, str], value: str, result: str) -> None:
    """Adds a result to a cache. A full cache is cleared first; values that are too long are not cached."""
    if len(cache) >= _MAX_CACHED_VALUES:
        cache.clear()
    if len(value) <= _MAX_CACHED_LENGTH:
        cache[value] = result
