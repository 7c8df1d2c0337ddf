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

from deltaworks.privacy.addresses import network_of
from deltaworks.privacy.identities import Identity
from deltaworks.privacy.scanning import Scanner
from deltaworks.privacy.suppression import NOBODY, Suppression
from deltaworks.privacy.tokens import day_key, is_token, suppression_digest, token
from deltaworks.specs.privacy import PrivacySpec, PrivateFieldSpec

_MOST_REMEMBERED: Final = 100_000
_LONGEST_REMEMBERED: Final = 256
#: What becomes of a value of which nothing is kept.
DROPPED: Final = object()
#: What becomes of a value: another one, or `DROPPED`. The list takes the tokens it leads to, by kind, with the value of
#: what goes to the vault; True for another that was no token, None for one that was.
Change = Callable[[Any, list[tuple[str, str, Any]]], Any]


class Outcome(Enum):
    """Whether an event may be kept at all."""

    KEPT = "kept"
    REFUSED = "refused"
    SUPPRESSED = "suppressed"


@dataclass(slots=True)
class Stripped:
    """What was met on the way: counts beside rows, and identities for the vault. Added to by many events."""

    counts: Counter[str] = field(default_factory=Counter)
    identities: list[Identity] = field(default_factory=list)


class Walker:
    """Strips the events of one pipeline. Used by one thread.

    Args:
        key: of the namespace's tokens.
        suppression: whose events are dropped.

    Attributes:
        fields: what becomes of the declared fields of an event, but of a child's.
        scanner: what looks through texts, where that is declared.
        refused: which events are kept nowhere, `child`: which are of children; by an event as it was sent.
    """

    def __init__(self, spec: PrivacySpec, key: bytes, *, suppression: Suppression = NOBODY) -> None:
        self._key = key
        self._suppression = suppression
        self.spec = spec
        self.fields = _plan(spec.fields, _Maker(key, vault=True))
        self.scanner = Scanner(spec) if {spec.scan.email, spec.scan.phone} != {"off"} else None
        regulation = spec.regulation
        self.refused = None if regulation.refused is None else Condition(regulation.refused.when)
        self.child = None if regulation.child is None else Condition(regulation.child.when)
        self._subject = [tuple(path.split(".")) for path in spec.subject]
        self._day = ""
        self._child_fields: Fields | None = None
        self._suppressed: dict[str, str] = {}

    def suppress(self, suppression: Suppression) -> None:
        """Drop the events of whom this list names, from the next one on; from any thread."""
        self._suppression = suppression

    def strip(self, event: dict[str, Any], *, at_ms: int, stripped: Stripped, scans: bool = True) -> Outcome:
        """Strip an event in place. One that may not be kept is left half-stripped: throw it away.

        Args:
            at_ms: when it came in, milliseconds since 1970, by the record of who took it, so that it is the same
                whenever the event is read.
            stripped: takes counts and identities.
            scans: whether texts are looked through, where that is declared; False where it was seen that none has
                what is looked for.
        """
        if self.refused is not None and self.refused.holds(event):
            stripped.counts["refused"] += 1
            return Outcome.REFUSED
        child = self.child is not None and self.child.holds(event)
        met: list[tuple[str, str, Any]] = []
        fields = self.fields_of_child(at_ms) if child else self.fields
        fields.apply(event, met)
        if child:
            stripped.counts["child"] += 1
        if self._suppression.until_us and self._names((made for _, made, _ in met), at_us=at_ms * 1000):
            stripped.counts["suppressed"] += 1
            return Outcome.SUPPRESSED
        if met:
            self._note(event, met, at_ms, stripped, lasting=not child)
        if scans and self.scanner is not None:
            self.scanner.scan(event, stripped.counts)
        return Outcome.KEPT

    def mask(self, event: Any, *, at_ms: int) -> Any:
        """An event that was stripped once and is read again from what was sent: stripped, noted nowhere."""
        if type(event) is dict:
            fields = self.fields
            if self.child is not None and self.child.holds(event):
                fields = self.fields_of_child(at_ms)
            fields.apply(event, [])
            if self.scanner is not None:
                self.scanner.scan(event, Counter())
        return event

    def _note(
        self, event: dict[str, Any], met: list[tuple[str, str, Any]], at_ms: int, stripped: Stripped, *, lasting: bool
    ) -> None:
        """Note identities: of a subject with a value or another token, where this walker has made one of them."""
        raw = [item for item in met if item[2] is not None]
        if not raw:
            return
        stripped.counts["tokens"] += len(raw)
        if not (lasting or self.keeps_identities_of_children):
            return
        subject = self._subject_of(event)
        for kind, made, value in dict.fromkeys(met):
            sealed = value if type(value) is str else None
            whose = subject or made
            if sealed is not None or whose != made:
                stripped.identities.append(Identity(whose, kind, made, sealed, at_ms))

    @property
    def keeps_identities_of_children(self) -> bool:
        """Whether the vault has rows of children."""
        child = self.spec.regulation.child
        return child is not None and child.vault

    @property
    def suppresses(self) -> bool:
        """Whether anybody is suppressed."""
        return bool(self._suppression.until_us)

    def suppressed_among(self, tokens: Iterable[str]) -> set[str]:
        """The tokens that the list names, for events of whatever time."""
        return {made for made in tokens if self._digest(made) in self._suppression}

    def _subject_of(self, event: dict[str, Any]) -> str | None:
        for path in self._subject:
            value: Any = event
            for name in path:
                value = value.get(name) if type(value) is dict else None
            if type(value) is str and is_token(value):
                return value
        return None

    def _names(self, tokens: Iterable[str], *, at_us: int) -> bool:
        return any(self._suppression.names_digest(self._digest(made), at_us=at_us) for made in tokens)

    def _digest(self, made: str) -> str:
        digest = self._suppressed.get(made)
        if digest is None:
            digest = suppression_digest(self._key, made)
            remember(self._suppressed, made, digest)
        return digest

    def fields_of_child(self, at_ms: int) -> Fields:
        """What becomes of the fields of children's events: their tokens are those of a day, and more is dropped."""
        day = datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat()
        if self._child_fields is None or day != self._day:
            child = self.spec.regulation.child
            per_day = child is None or child.tokens == "per_day"
            maker = _Maker(day_key(self._key, day) if per_day else self._key, vault=child is not None and child.vault)
            dropped = () if child is None else child.drop
            drops = [PrivateFieldSpec(path=path, action="drop") for path in dropped]
            kept = [item for item in self.spec.fields if item.path not in dropped]
            self._child_fields, self._day = _plan([*kept, *drops], maker), day
        return self._child_fields


class Condition:
    """Whether an event has one of the values at every path. `paths` has the names of each, and types with values."""

    def __init__(self, when: Mapping[str, tuple[Any, ...]]) -> None:
        # To Python True is 1, to JSON it is not.
        self.paths = [
            (tuple(path.replace("[]", "").split(".")), {(type(v), v) for v in values}) for path, values in when.items()
        ]

    def holds(self, event: dict[str, Any]) -> bool:
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


class Fields:
    """An object on the way to declared fields: what becomes of its own, and the objects and lists it holds."""

    def __init__(self) -> None:
        self.changes: dict[str, Change] = {}
        self.inner: dict[str, Fields] = {}

    def apply(self, holder: dict[str, Any], met: list[tuple[str, str, Any]]) -> None:
        """Change the fields of an object, and of those it holds."""
        for name, change in self.changes.items():
            value = holder.get(name)
            if value is None:
                continue
            changed = change(value, met)
            if changed is DROPPED:
                del holder[name]
            else:
                holder[name] = changed
        for name, node in self.inner.items():
            value = holder.get(name)
            if value is None:
                continue
            if type(value) is dict:
                node.apply(value, met)
            elif type(value) is list or type(value) is str:
                holder[name] = node.within(value, met)

    def within(self, value: Any, met: list[tuple[str, str, Any]]) -> Any:
        """What is kept of a value that may hold these fields. Objects and lists are changed in place."""
        if type(value) is dict:
            self.apply(value, met)
        elif type(value) is list:
            for index, element in enumerate(value):
                if type(element) is dict:
                    self.apply(element, met)
                elif type(element) in (str, list):
                    value[index] = None
        return None if type(value) is str else value

    def at(self, path: Sequence[str]) -> Change:
        """What becomes of the value at a path of names.

        Raises:
            KeyError: nothing is declared there, or below.
        """
        node = self
        for name in path[:-1]:
            node = node.inner[name]
        return node.changes[path[-1]] if path[-1] in node.changes else node.inner[path[-1]].within


class _Maker:
    """Makes the changes of fields: tokens of one key, remembered for the values that come again."""

    def __init__(self, key: bytes, *, vault: bool) -> None:
        self._key = key
        self._vault = vault
        self._tokens: dict[str, dict[str, str]] = {}

    def change(self, field: PrivateFieldSpec) -> Change:
        """What becomes of the values of a field."""
        if field.action == "drop":
            return _dropped
        if field.action == "truncate_ip":
            return _truncated
        if field.kind is None:
            raise TypeError(f"{field.path}: a token has a kind")
        remembered = self._tokens.setdefault(field.kind, {})
        return partial(self._token, field.kind, remembered, field.action == "vault" and self._vault)

    def _token(
        self, kind: str, remembered: dict[str, str], sealed: bool, value: Any, met: list[tuple[str, str, Any]]
    ) -> Any:
        if type(value) is not str:
            if type(value) is int:
                value = str(value)
            elif type(value) is list:
                return [
                    None if type(item) is list else self._token(kind, remembered, sealed, item, met) for item in value
                ]
            else:
                return _as_text(value, lambda text: self._token(kind, remembered, sealed, text, met))
        if not value:
            return value
        made = remembered.get(value)
        if made is None:
            if is_token(value):
                met.append((kind, value, None))
                return value
            made = token(self._key, kind=kind, value=value)
            remember(remembered, value, made)
        met.append((kind, made, value if sealed else True))
        return made


def _plan(fields: Iterable[PrivateFieldSpec], maker: _Maker) -> Fields:
    root = Fields()
    for item in fields:
        *above, last = (part.removesuffix("[]") for part in item.path.split("."))
        node = root
        for name in above:
            node = node.inner.setdefault(name, Fields())
        node.changes[last] = maker.change(item)
    return root


def _dropped(_value: Any, _met: list[tuple[str, str, Any]]) -> Any:
    return DROPPED


def _truncated(value: Any, met: list[tuple[str, str, Any]]) -> Any:
    if type(value) is str:
        return network_of(value) if len(value) <= _LONGEST_REMEMBERED else None
    if type(value) is list:
        return [None if type(item) is list else _truncated(item, met) for item in value]
    return None


def _as_text(value: Any, make: Callable[[str], Any]) -> Any:
    """The token of a number that is a text of its own kind, as readers of exact numbers have it; else nothing."""
    text = str(value) if isinstance(value, str) else ""
    return make(text) if text.lstrip("-").isdigit() else None


def remember(kept: dict[str, str], value: str, answer: str) -> None:
    """Keep an answer for the events that follow; not without end, and not for texts without end."""
    if len(kept) >= _MOST_REMEMBERED:
        kept.clear()
    if len(value) <= _LONGEST_REMEMBERED:
        kept[value] = answer
