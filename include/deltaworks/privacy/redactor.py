"""The walker: makes of an event what may be kept of it, in place, as `privacy` declares.

It changes what is there and adds nothing. It is compiled once from the declaration; an event then costs one look at
each object that holds a declared field, and a keyed digest for a value that was not met lately. Stripping what was
stripped changes nothing, so a collector and a parser behind it agree.

A path leads through lists to each of their elements. What stands on the way to a declared field and is neither object
nor list, but a text (it may hold the field as JSON), is not kept.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import Any, Final

from deltaworks.privacy.identities import Identity
from deltaworks.privacy.ip_truncation import truncate_ip
from deltaworks.privacy.scanning import Scanner
from deltaworks.privacy.suppression import NO_SUPPRESSION, Suppression
from deltaworks.privacy.tokens import derive_day_key, is_token, suppression_digest, token
from deltaworks.specs.privacy import PrivacySpec, PrivateFieldSpec

_MAX_CACHED_VALUES: Final = 100_000
_MAX_CACHED_LENGTH: Final = 256
#: What becomes of a value of which nothing is kept.
DROPPED: Final = object()
#: What becomes of a value: another one, or `DROPPED`. The list takes the tokens it leads to, by kind, with the value of
#: what goes to the vault; True for another that was no token, None for one that was.
Transform = Callable[[Any, list[tuple[str, str, Any]]], Any]


class RedactionOutcome(Enum):
    """Whether an event may be kept at all."""

    KEPT = "kept"
    OPTED_OUT = "refused"
    SUPPRESSED = "suppressed"


@dataclass(slots=True)
class RedactionResult:
    """What was met on the way: counts beside rows, and identities for the vault. Added to by many events."""

    counts: Counter[str] = field(default_factory=Counter)
    identities: list[Identity] = field(default_factory=list)


class Redactor:
    """Strips the events of one pipeline. Used by one thread.

    Args:
        key: of the namespace's tokens.
        suppression: whose events are dropped.

    Attributes:
        fields: what becomes of the declared fields of an event, but of a child's.
        scanner: what looks through texts, where that is declared.
        refused: which events are kept nowhere, `child`: which are of children; by an event as it was sent.
    """

    def __init__(self, spec: PrivacySpec, key: bytes, *, suppression: Suppression = NO_SUPPRESSION) -> None:
        self._key = key
        self._suppression = suppression
        self.spec = spec
        self.fields = _compile(spec.fields, _TransformFactory(key, vault=True))
        self.scanner = Scanner(spec) if {spec.scan.email, spec.scan.phone} != {"off"} else None
        regulation = spec.regulation
        self.opt_out_condition = None if regulation.refused is None else EventCondition(regulation.refused.when)
        self.child = None if regulation.child is None else EventCondition(regulation.child.when)
        self._subject = [tuple(path.split(".")) for path in spec.subject]
        self._day = ""
        self._child_transforms: FieldTransforms | None = None
        self._digests: dict[str, str] = {}

    def set_suppression(self, suppression: Suppression) -> None:
        """Drop the events of whom this list names, from the next one on; from any thread."""
        self._suppression = suppression

    def redact(
        self, event: dict[str, Any], *, at_ms: int, result: RedactionResult, scan_texts: bool = True
    ) -> RedactionOutcome:
        """Strip an event in place. One that may not be kept is left half-stripped: throw it away.

        Args:
            at_ms: when it came in, milliseconds since 1970, by the record of who took it, so that it is the same
                whenever the event is read.
            stripped: takes counts and identities.
            scans: whether texts are looked through, where that is declared; False where it was seen that none has
                what is looked for.
        """
        if self.opt_out_condition is not None and self.opt_out_condition.matches(event):
            result.counts["refused"] += 1
            return RedactionOutcome.OPTED_OUT
        child_condition = self.child is not None and self.child.matches(event)
        found_tokens: list[tuple[str, str, Any]] = []
        transforms = self.child_transforms(at_ms) if child_condition else self.fields
        transforms.apply(event, found_tokens)
        if child_condition:
            result.counts["child"] += 1
        if self._suppression.until_us and self._is_suppressed(
            (made for _, made, _ in found_tokens), at_us=at_ms * 1000
        ):
            result.counts["suppressed"] += 1
            return RedactionOutcome.SUPPRESSED
        if found_tokens:
            self._record_identities(event, found_tokens, at_ms, result, is_adult=not child_condition)
        if scan_texts and self.scanner is not None:
            self.scanner.scan(event, result.counts)
        return RedactionOutcome.KEPT

    def redact_reread(self, event: Any, *, at_ms: int) -> Any:
        """An event that was stripped once and is read again from what was sent: stripped, noted nowhere."""
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
        """Note identities: of a subject with a value or another token, where this walker has made one of them."""
        new_tokens = [item for item in found_tokens if item[2] is not None]
        if not new_tokens:
            return
        result.counts["tokens"] += len(new_tokens)
        if not (is_adult or self.stores_child_identities):
            return
        subject = self._subject_token(event)
        for kind, made, value in dict.fromkeys(found_tokens):
            sealed = value if type(value) is str else None
            token_subject = subject or made
            if sealed is not None or token_subject != made:
                result.identities.append(Identity(token_subject, kind, made, sealed, at_ms))

    @property
    def stores_child_identities(self) -> bool:
        """Whether the vault has rows of children."""
        child = self.spec.regulation.child
        return child is not None and child.vault

    @property
    def has_suppressions(self) -> bool:
        """Whether anybody is suppressed."""
        return bool(self._suppression.until_us)

    def suppressed_tokens(self, tokens: Iterable[str]) -> set[str]:
        """The tokens that the list names, for events of whatever time."""
        return {made for made in tokens if self._digest(made) in self._suppression}

    def _subject_token(self, event: dict[str, Any]) -> str | None:
        for path in self._subject:
            value: Any = event
            for name in path:
                value = value.get(name) if type(value) is dict else None
            if type(value) is str and is_token(value):
                return value
        return None

    def _is_suppressed(self, tokens: Iterable[str], *, at_us: int) -> bool:
        return any(self._suppression.matches_digest(self._digest(made), at_us=at_us) for made in tokens)

    def _digest(self, token_text: str) -> str:
        digest = self._digests.get(token_text)
        if digest is None:
            digest = suppression_digest(self._key, token_text)
            cache_value(self._digests, token_text, digest)
        return digest

    def child_transforms(self, at_ms: int) -> FieldTransforms:
        """What becomes of the fields of children's events: their tokens are those of a day, and more is dropped."""
        day = datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat()
        if self._child_transforms is None or day != self._day:
            child = self.spec.regulation.child
            per_day = child is None or child.tokens == "per_day"
            factory = _TransformFactory(
                derive_day_key(self._key, day) if per_day else self._key, vault=child is not None and child.vault
            )
            dropped = () if child is None else child.drop
            drops = [PrivateFieldSpec(path=path, action="drop") for path in dropped]
            kept = [item for item in self.spec.fields if item.path not in dropped]
            self._child_transforms, self._day = _compile([*kept, *drops], factory), day
        return self._child_transforms


class EventCondition:
    """Whether an event has one of the values at every path. `paths` has the names of each, and types with values."""

    def __init__(self, when: Mapping[str, tuple[Any, ...]]) -> None:
        # To Python True is 1, to JSON it is not.
        self.paths = [
            (tuple(path.replace("[]", "").split(".")), {(type(v), v) for v in values}) for path, values in when.items()
        ]

    def matches(self, event: dict[str, Any]) -> bool:
        """Whether it does."""
        for path, values in self.paths:
            value: Any = event
            for name in path:
                value = value.get(name) if type(value) is dict else None
            if isinstance(value, str) and type(value) is not str:  # a number as it was sent
                value = json.loads(value)
            if type(value) in (dict, list) or (type(value), value) not in values:
                return False
        return True


class FieldTransforms:
    """An object on the way to declared fields: what becomes of its own, and the objects and lists it holds."""

    def __init__(self) -> None:
        self.by_name: dict[str, Transform] = {}
        self.nested: dict[str, FieldTransforms] = {}

    def apply(self, holder: dict[str, Any], found_tokens: list[tuple[str, str, Any]]) -> None:
        """Change the fields of an object, and of those it holds."""
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
        """What is kept of a value that may hold these fields. Objects and lists are changed in place."""
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
        """What becomes of the value at a path of names.

        Raises:
            KeyError: nothing is declared there, or below.
        """
        node = self
        for name in path[:-1]:
            node = node.nested[name]
        return node.by_name[path[-1]] if path[-1] in node.by_name else node.nested[path[-1]].apply_to_value


class _TransformFactory:
    """Makes the changes of fields: tokens of one key, remembered for the values that come again."""

    def __init__(self, key: bytes, *, vault: bool) -> None:
        self._key = key
        self._vault = vault
        self._tokens: dict[str, dict[str, str]] = {}

    def create(self, field: PrivateFieldSpec) -> Transform:
        """What becomes of the values of a field."""
        if field.action == "drop":
            return _drop
        if field.action == "truncate_ip":
            return _truncate
        if field.kind is None:
            raise TypeError(f"{field.path}: a token has a kind")
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
        made = cache.get(value)
        if made is None:
            if is_token(value):
                found_tokens.append((kind, value, None))
                return value
            made = token(self._key, kind=kind, value=value)
            cache_value(cache, value, made)
        found_tokens.append((kind, made, value if goes_to_vault else True))
        return made


def _compile(fields: Iterable[PrivateFieldSpec], factory: _TransformFactory) -> FieldTransforms:
    root = FieldTransforms()
    for item in fields:
        *above, last = (part.removesuffix("[]") for part in item.path.split("."))
        node = root
        for name in above:
            node = node.nested.setdefault(name, FieldTransforms())
        node.by_name[last] = factory.create(item)
    return root


def _drop(_value: Any, _met: list[tuple[str, str, Any]]) -> Any:
    return DROPPED


def _truncate(value: Any, found_tokens: list[tuple[str, str, Any]]) -> Any:
    if type(value) is str:
        return truncate_ip(value) if len(value) <= _MAX_CACHED_LENGTH else None
    if type(value) is list:
        return [None if type(item) is list else _truncate(item, found_tokens) for item in value]
    return None


def _tokenize_number(value: Any, make: Callable[[str], Any]) -> Any:
    """The token of a number that is a text of its own kind, as readers of exact numbers have it; else nothing."""
    text = str(value) if isinstance(value, str) else ""
    return make(text) if text.lstrip("-").isdigit() else None


def cache_value(cache: dict[str, str], value: str, answer: str) -> None:
    """Keep an answer for the events that follow; not without end, and not for texts without end."""
    if len(cache) >= _MAX_CACHED_VALUES:
        cache.clear()
    if len(value) <= _MAX_CACHED_LENGTH:
        cache[value] = answer
