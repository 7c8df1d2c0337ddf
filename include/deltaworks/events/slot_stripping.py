"""Personal data in decoded events: stripped in their slots, a field of some hundred events at once.

What comes of it is what the walker makes of each event: the same values, counts and identities. Every distinct value
becomes a token once. An event that this is not sure of (a number beyond 64 bits where an identifier should be, a text
that is taken out, a subject that was erased) is named, and the row path strips it by itself.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from operator import ne
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from deltaworks.events.origins import RECORD_FIELD
from deltaworks.events.slot_fields import SlotCondition, StrippedFields, is_wide, leaves, slot_of
from deltaworks.events.slots import Path, Tree, Unslotted
from deltaworks.privacy.walker import DROPPED, Change, Walker, remember
from deltaworks.specs.privacy import TOKEN_ACTIONS

#: What is counted of each event, in this order.
COUNTED: Final = ("tokens", "child", "scan_email", "scan_phone")
_TOKENS, _CHILD = COUNTED.index("tokens"), COUNTED.index("child")
#: Takes note of an identity: its subject, kind, token and value, and when the event came in.
Note = Callable[[str, str, str, str | None, int], None]
#: Events that are to be scanned, by place, with what the records they came in say of themselves.
Suspects = Mapping[int, Mapping[str, Any] | None]
Met = list[tuple[str, str, Any]]
Slotted = dict[Path, Sequence[Any]]


@dataclass(slots=True)
class Stripped:
    """What was met in events: `counts` as of `COUNTED`, a row an event; and places of events among them.

    `refused` are to be kept nowhere; `unsure` are left half-stripped, and the row path has to read them.
    """

    counts: npt.NDArray[np.int64]
    refused: list[int] = field(default_factory=list)
    unsure: set[int] = field(default_factory=set)
    #: Tokens by place, where they were met one by one; and those of children.
    met: dict[int, Met] = field(default_factory=dict)
    of_children: dict[int, Met] = field(default_factory=dict)

    def counts_array(self) -> pa.Array:
        """The counts as one array, which is filtered as the columns are."""
        return pa.FixedSizeListArray.from_arrays(pa.array(self.counts.reshape(-1)), len(COUNTED))

    def count_met(self) -> None:
        """Count the tokens that were met one by one."""
        for place, met in chain(self.met.items(), self.of_children.items()):
            self.counts[place, _TOKENS] += sum(value is not None for _, _, value in met)


def counted(counts: pa.Array) -> Counter[str]:
    """The sum of counts, without those that are none."""
    sums = counts.flatten().to_numpy(zero_copy_only=False).reshape(-1, len(COUNTED)).sum(axis=0)
    return Counter({kind: int(events) for kind, events in zip(COUNTED, sums, strict=True) if events})


class SlotStripping:
    """Strips decoded events of a pipeline. Used by one thread: tokens are remembered for events of every type."""

    def __init__(self, walker: Walker, note: Note) -> None:
        self.walker = walker
        self.note = note
        self._memories: dict[str, dict[str, str]] = {}

    def memory(self, kind: str) -> dict[str, str]:
        """The tokens of values of a kind that were met lately; those of tokens are themselves."""
        return self._memories.setdefault(kind, {})


@dataclass(frozen=True, slots=True)
class _Tokens:
    """A slot whose value becomes a token. `sealed` where the value goes to the vault."""

    slot: Path
    kind: str
    sealed: bool
    change: Change
    memory: dict[str, str]

    def made(self, values: Sequence[Any], stripped: Stripped) -> list[Any]:
        """What stands for each value, and the tokens counted; what is no text by itself is noted in `stripped.met`."""
        memory = self.memory
        try:
            made = list(map(memory.get, values))
        except TypeError:  # lists and objects
            made = [memory.get(value) if type(value) is str else None for value in values]
        single: list[int] = []
        if None in made:
            for place, (value, token) in enumerate(zip(values, made, strict=True)):
                if token is not None or value is None:
                    continue
                if type(value) is str and value:
                    changed = made[place] = self.change(value, [])
                    remember(memory, value, changed)
                elif _has_wide(value):
                    stripped.unsure.add(place)
                else:
                    single.append(place)
        changed_ones = np.fromiter(map(ne, made, values), np.bool_, len(made))
        for place in single:
            made[place] = self.change(values[place], stripped.met.setdefault(place, []))
            changed_ones[place] = False
        stripped.counts[:, _TOKENS] += changed_ones
        return made


class SlotStrip:
    """Strips the events of one type.

    Raises:
        Unslotted: the row path has to; why.
    """

    def __init__(self, stripping: SlotStripping, tree: Tree, *, name: str, name_path: Path | None) -> None:
        """Give the fields that are stripped, and those that decide about it, slots in `tree`."""
        self._stripping = stripping
        self._walker = walker = stripping.walker
        self._fields = StrippedFields(walker, tree, name_path)
        self._refused = SlotCondition(walker.refused, tree, name_path)
        self._child = SlotCondition(walker.child, tree, name_path)
        subjects = [slot_of(tree, tuple(path.split(".")), name_path) for path in walker.spec.subject]
        self._subjects = [subject for subject in subjects if subject is not None]
        self._tokens: list[_Tokens] = []
        self._changes: list[tuple[Path, Change]] = []
        for slot, (index, is_own) in self._fields.slots.items():
            item, change = walker.spec.fields[index], walker.fields.at(slot)
            if is_own and item.action in TOKEN_ACTIONS and item.kind is not None:
                memory = stripping.memory(item.kind)
                self._tokens.append(_Tokens(slot, item.kind, item.action == "vault", change, memory))
            else:
                self._changes.append((slot, change))
        scanner = walker.scanner
        if scanner is not None:
            counts: Counter[str] = Counter()
            scanner.scan({"": name if name_path is not None else ""}, counts)
            if counts:
                raise Unslotted("their name is what is looked for in texts")
        self._tree, self._name_path = tree, name_path
        self._scanned: list[Path] | None = None

    @property
    def slots(self) -> Collection[Path]:
        """The slots whose values change."""
        return self._fields.of_child

    def strip(
        self, values: Slotted, count: int, *, arrivals: Callable[[], Sequence[int]], suspects: Suspects
    ) -> Stripped:
        """Strip events in place: what their slots hold, by path.

        Args:
            arrivals: when each came in, milliseconds since 1970; called where that matters.
            suspects: by place those whose texts may have what is scanned for.
        """
        stripped = Stripped(np.zeros((count, len(COUNTED)), np.int64))
        refused = stripped.refused = self._refused.places(values, count, stripped.unsure)
        children = [place for place in self._child.places(values, count, stripped.unsure) if place not in refused]
        as_sent = {slot: values[slot] for slot in self._fields.of_child} if children else {}
        apart = {*refused, *children}
        raw: Slotted = {}
        for tokens in self._tokens:
            held = values[tokens.slot] = _without(values[tokens.slot], apart)
            if held.count(None) < count:
                raw[tokens.slot], values[tokens.slot] = held, tokens.made(held, stripped)
        for slot, change in self._changes:
            held = values[slot] = _without(values[slot], apart)
            if held.count(None) < count:
                values[slot] = _changed(held, change, stripped)
        if children:
            self._strip_children(values, as_sent, children, arrivals(), stripped)
        stripped.count_met()
        self._scan(values, suspects, stripped)
        self._suppress(values, raw, stripped)
        if stripped.counts[:, _TOKENS].any():
            self._note(values, raw, arrivals(), stripped)
        return stripped

    def _strip_children(
        self, values: Slotted, as_sent: Slotted, places: Sequence[int], arrivals: Sequence[int], stripped: Stripped
    ) -> None:
        if self._fields.child_is_unsure:
            stripped.unsure.update(places)
            return
        columns = {slot: list(values[slot]) for slot in as_sent}
        for place in places:
            fields = self._walker.fields_of_child(arrivals[place])
            met = stripped.of_children[place] = []
            stripped.counts[place, _CHILD] = 1
            for slot, held in as_sent.items():
                value = held[place]
                if value is None:
                    continue
                if _has_wide(value):
                    stripped.unsure.add(place)
                kept = fields.at(slot)(value, met)
                columns[slot][place] = None if kept is DROPPED else kept
        values.update(columns)

    def _scan(self, values: Slotted, suspects: Suspects, stripped: Stripped) -> None:
        scanner = self._walker.scanner
        if scanner is None or not suspects:
            return
        if self._scanned is None:  # once all fields have their slots
            self._scanned = [*leaves(self._tree), *([] if self._name_path is None else [self._name_path])]
        for place, record in suspects.items():
            if place in stripped.refused:
                continue
            texts: dict[Any, Any] = {slot: values[slot][place] for slot in self._scanned}
            if record is not None:
                # An event has its record there, whatever it had itself; others have the same one.
                texts[RECORD_FIELD,] = copy.deepcopy(dict(record))
            counts: Counter[str] = Counter()
            scanner.scan(texts, counts)
            for kind, hits in counts.items():
                if kind in COUNTED:
                    stripped.counts[place, COUNTED.index(kind)] += hits
                else:
                    stripped.unsure.add(place)

    def _suppress(self, values: Slotted, raw: Slotted, stripped: Stripped) -> None:
        """Leave events of erased subjects to the row path, which knows until when they are not taken."""
        if not self._walker.suppresses:
            return
        for slot in raw:
            made = values[slot]
            named = self._walker.suppressed_among({token for token in made if type(token) is str})
            if named:
                stripped.unsure.update(
                    place for place, token in enumerate(made) if type(token) is str and token in named
                )
        for place, met in chain(stripped.met.items(), stripped.of_children.items()):
            if self._walker.suppressed_among({token for _, token, _ in met}):
                stripped.unsure.add(place)

    def _note(self, values: Slotted, raw: Slotted, arrivals: Sequence[int], stripped: Stripped) -> None:
        """Note the identities of the events of which a token was made here, each with when it came in first."""
        note = self._stripping.note
        count = len(arrivals)
        has_made = stripped.counts[:, _TOKENS] > 0
        has_made[list(stripped.unsure)] = False
        subjects = self._subjects_of(values, count)
        lasting = has_made.copy()
        lasting[list(stripped.of_children)] = False
        places = np.flatnonzero(lasting).tolist()
        if any(one > other for one, other in pairwise(arrivals)):
            places.sort(key=arrivals.__getitem__)
        places.reverse()  # of equal ones the last stays
        whose = [subjects[place] for place in places]
        at_ms = [arrivals[place] for place in places]
        for tokens in self._tokens:
            if tokens.slot not in raw:
                continue
            column, sent = values[tokens.slot], raw[tokens.slot]
            made = [column[place] if type(sent[place]) is str else None for place in places]
            if not tokens.sealed and made == whose:
                continue
            sealed = [sent[place] if one else None for place, one in zip(places, made, strict=True)]
            firsts = dict(zip(zip(whose, made, sealed if tokens.sealed else made, strict=True), at_ms, strict=True))
            for (subject, token, value), first_ms in firsts.items():
                if token:
                    _note_one(note, subject, (tokens.kind, token, None if value == token else value), first_ms)
        of_children = stripped.of_children if self._walker.keeps_identities_of_children else {}
        for place, met in chain(stripped.met.items(), of_children.items()):
            for item in met if has_made[place] else ():
                _note_one(note, subjects[place], item, arrivals[place])

    def _subjects_of(self, values: Slotted, count: int) -> list[str | None]:
        """The token of the subject of each event: the first that is there."""
        subjects: list[str | None] = [None] * count
        for subject in self._subjects:
            own = values[subject.slot]
            if not subject.below and {str, type(None)}.issuperset(map(type, own)):
                # A text there is a token by now, or empty.
                subjects = [first or second or None for first, second in zip(subjects, own, strict=True)]
                continue
            for place, before in enumerate(subjects):
                if before is None:
                    value = subject.value(values, place)
                    subjects[place] = value or None if type(value) is str else None
        return subjects


def _changed(values: Sequence[Any], change: Change, stripped: Stripped) -> list[Any]:
    """The values, changed one by one."""
    changed: list[Any] = []
    for place, value in enumerate(values):
        kept = None
        if _has_wide(value):
            stripped.unsure.add(place)
        elif value is not None:
            met: Met = []
            kept = change(value, met)
            if met:
                stripped.met.setdefault(place, []).extend(met)
        changed.append(None if kept is DROPPED else kept)
    return changed


def _note_one(note: Note, subject: str | None, met: tuple[str, str, Any], at_ms: int) -> None:
    kind, token, value = met
    sealed = value if type(value) is str else None
    whose = subject or token
    if sealed is not None or whose != token:
        note(whose, kind, token, sealed, at_ms)


def _without(values: Sequence[Any], places: Collection[int]) -> Sequence[Any]:
    if not places:
        return values
    return [None if place in places else value for place, value in enumerate(values)]


def _has_wide(value: Any) -> bool:
    """Whether it is or holds a whole number beyond 64 bits, or is nested too deeply to tell."""
    if type(value) is not list and type(value) is not dict:
        return is_wide(value)
    try:
        orjson.dumps(value)
    except TypeError:
        return True
    return False
