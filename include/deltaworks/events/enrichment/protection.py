"""Events on their way to rows: what is looked up of them is added, then what is private of them is masked.

In this order, since a network has other answers than its addresses; and before any column, reason or log line is made,
since none of them may hold an address. A value is looked up once, however many events have it, as long as there are not
too many of them. Events are taken one by one as they are read: to come back to a chunk of them costs twice as much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from deltaworks.events.enrichment.addresses import network_text, packed, written
from deltaworks.events.events import path_getter
from deltaworks.events.task_findings import TaskFindings
from deltaworks.specs.enrich import EnrichSpec, PrivateSpec
from deltaworks.specs.pipeline import PipelineSpec

if TYPE_CHECKING:
    from deltaworks.events.enrichment.databases import AddressReader, Databases

Answers = dict[str, Any] | None
#: Answers that are kept for the events that follow, and the longest texts that are kept with theirs.
_MOST_ANSWERS, _LONGEST = 20_000, 512


class Protection:
    """What a pipeline declares under `enrich` and `private`. Used by one thread."""

    def __init__(self, spec: PipelineSpec, databases: Databases | None) -> None:
        """As `spec` declares.

        Raises:
            ConfigError: ENRICHMENT_UNREADABLE, a database cannot be opened.
            TransientError: ENRICHMENT_REPLACED.
        """
        self._masks = [_Mask(declared) for declared in spec.private]
        alone = _fields_alone(spec)
        self._fields = [_Field(name, spec, databases) for name in alone]
        self._look_ups = [_LookUp(declared, databases) for declared in spec.enrich if declared.of not in alone]
        self._other_masks = [mask for mask in self._masks if mask.path not in alone]

    def apply(self, event: dict[str, Any], findings: TaskFindings) -> None:
        """Add the answers to an event and mask it, in place. Values that are no addresses are counted.

        Raises:
            ConfigError: ENRICHMENT_UNREADABLE, a look-up failed for the database's sake.
        """
        for look_up in self._look_ups:
            look_up.apply(event)
        for field in self._fields:
            if field.apply(event):
                findings.invalid_addresses[field.name] += 1
        for mask in self._other_masks:
            if mask.apply(event):
                findings.invalid_addresses[mask.path] += 1

    def masked(self, event: Any) -> Any:
        """One event that was read again, masked in place; it has no answers."""
        if type(event) is dict:
            for mask in self._masks:
                mask.apply(event)
        return event


def _fields_alone(spec: PipelineSpec) -> list[str]:
    """The fields of events that are looked up or masked and lie within no other path that is: the common case, in
    which it makes no difference which field is first."""
    paths = [*(declared.of for declared in spec.enrich), *(declared.path for declared in spec.private)]
    above = {path.split(".")[0] for path in paths if "." in path}
    return sorted({path for path in paths if "." not in path} - above)


class _Field:
    """Everything that is done with one field of events: one look at what is known of its value, for all of it."""

    def __init__(self, name: str, spec: PipelineSpec, databases: Databases | None) -> None:
        self.name = name
        look_ups = [declared for declared in spec.enrich if declared.of == name]
        self._look_ups = [(declared.output_field, _answers_of(declared, databases)) for declared in look_ups]
        #: What an event has whose value is no text: whatever a producer sends below these names is not ours.
        self._unanswered: dict[str, Answers] = {declared.output_field: None for declared in look_ups}
        self._keep = next((declared.keep for declared in spec.private if declared.path == name), None)
        self._outcomes: dict[str, tuple[dict[str, Answers], str | None]] = {}

    def apply(self, event: dict[str, Any]) -> bool:
        """Add the answers, then mask the value, in place; whether it was to be a network and is no address.

        Raises:
            ConfigError: ENRICHMENT_UNREADABLE.
        """
        name, keep = self.name, self._keep
        value = event.pop(name, None) if keep == "nothing" else event.get(name)
        if type(value) is not str:
            event.update(self._unanswered)
            if value is None or keep != "network":
                return False
            event[name] = None
            return True
        outcome = self._outcomes.get(value)
        if outcome is None:
            outcome = self._of(value)
            _remember(self._outcomes, value, outcome)
        answers, network = outcome
        event.update(answers)
        if keep != "network":
            return False
        event[name] = network
        return network is None

    def _of(self, value: str) -> tuple[dict[str, Answers], str | None]:
        network = network_text(value) if self._keep == "network" else None
        return {name: answer(value) for name, answer in self._look_ups}, network


class _LookUp:
    """One look-up at a path, below `_<name>` of its event."""

    def __init__(self, declared: EnrichSpec, databases: Databases | None) -> None:
        self._field = declared.output_field
        self._read = path_getter(tuple(declared.of.split(".")))
        self._answers_of = _answers_of(declared, databases)
        self._answers: dict[str, Answers] = {}

    def apply(self, event: dict[str, Any]) -> None:
        """Add the answer, in place.

        Raises:
            ConfigError: ENRICHMENT_UNREADABLE.
        """
        value = self._read(event)
        # Whatever a producer sends below this name is not ours: it never stands for an answer.
        if type(value) is not str:
            event[self._field] = None
        elif value in self._answers:
            event[self._field] = self._answers[value]
        else:
            event[self._field] = self._answers_of(value)
            _remember(self._answers, value, event[self._field])


def _answers_of(declared: EnrichSpec, databases: Databases | None) -> Callable[[str], Answers]:
    if declared.kind == "user_agent":
        # Its thousand expressions are read where a pipeline asks for them.
        from deltaworks.events.enrichment.user_agents import taken_apart

        return taken_apart
    if databases is None or declared.database is None:
        raise TypeError(f"{declared.name}: databases are fixed before a pass that looks addresses up")
    fields = {name: tuple(path.split(".")) for name, path in declared.fields.items()}
    return partial(_of_address, databases.reader(declared.database), fields)


def _of_address(reader: AddressReader, fields: dict[str, tuple[str, ...]], value: str) -> Answers:
    address = packed(value)
    record = None if address is None else reader.record(written(address))
    return None if record is None else {name: _value_in(record, path) for name, path in fields.items()}


def _value_in(record: Any, path: tuple[str, ...]) -> Any:
    """What lies at a path of names, and of places in lists, in a record of a database."""
    for name in path:
        if isinstance(record, dict):
            record = record.get(name)
        elif isinstance(record, list) and name.isdecimal() and int(name) < len(record):
            record = record[int(name)]
        else:
            return None
    return record.hex() if isinstance(record, bytes | bytearray) else record


class _Mask:
    """What is kept of the value at one path."""

    def __init__(self, declared: PrivateSpec) -> None:
        self.path = declared.path
        *self._above, self._name = declared.path.split(".")
        self._keep = declared.keep
        self._networks: dict[str, str | None] = {}

    def apply(self, event: dict[str, Any]) -> bool:
        """Mask an event in place; whether its value was no address."""
        holder = _holder(event, self._above) if self._above else event
        if holder is None:
            return False
        if self._keep == "nothing":
            holder.pop(self._name, None)
            return False
        value = holder.get(self._name)
        if value is None:
            return False
        if type(value) is not str:
            network = None
        elif value in self._networks:
            network = self._networks[value]
        else:
            network = network_text(value)
            _remember(self._networks, value, network)
        holder[self._name] = network
        return network is None


def _remember(kept: dict[str, Any], value: str, answer: Any) -> None:
    """Keep an answer for the events that follow; not without end, and not for texts without end."""
    if len(kept) >= _MOST_ANSWERS:
        kept.clear()
    if len(value) <= _LONGEST:
        kept[value] = answer


def _holder(event: dict[str, Any], above: Sequence[str]) -> dict[str, Any] | None:
    """The object that holds the last name of a path. What is no object on the way to it, and might hold it all the
    same (a list of objects, a text of JSON), is not kept at all."""
    holder = event
    for name in above:
        inner = holder.get(name)
        if inner is None:
            return None
        if type(inner) is not dict:
            del holder[name]
            return None
        holder = inner
    return holder
