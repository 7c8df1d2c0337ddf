"""Adds results of look-ups to events, then masks private fields such as IP addresses, while events are parsed.

Look-ups run first, because a truncated address would give other results. Masks run before columns, quarantine reasons
and log lines are created, which must not contain addresses. Results are cached by value. Events are processed one by
one, because a second pass over a chunk would double the cost.

Log files contain user agents in URL encoding, from old servers encoded twice; they are decoded up to two times. Their
regular expressions are those of uap-core, matched by ua-parser's library in Rust: a new text takes about 50 µs instead
of a millisecond.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from deltaworks.events.events import path_getter
from deltaworks.events.task_findings import TaskFindings
from deltaworks.privacy.tokens.redactor import format_ip, parse_ip, truncate_ip
from deltaworks.specs.base import format_path, path_names
from deltaworks.specs.enrich import EnrichSpec, PrivateSpec
from deltaworks.specs.pipeline import PipelineSpec

if TYPE_CHECKING:
    from deltaworks.events.lookup_databases import AddressLookup, PinnedDatabases


LookupResult = dict[str, Any] | None
#: Maximum number of cached results, and maximum length of a cached text.
_MAX_CACHED_RESULTS, _MAX_CACHED_CHARACTERS = 20_000, 512


class LookupsAndMasks:
    """Applies the `enrich` and `private` sections of a pipeline. Not thread-safe."""

    def __init__(self, spec: PipelineSpec, databases: PinnedDatabases | None) -> None:
        """Opens the databases of all declared look-ups.

        Raises:
            ConfigError: ENRICHMENT_UNREADABLE, a database cannot be opened.
            TransientError: ENRICHMENT_REPLACED.
        """
        self._masks = [_NestedMask(declared) for declared in spec.private]
        independent = _independent_field_names(spec)
        self._independent_fields = [_FieldLookupsAndMask(name, spec, databases) for name in independent]
        paths = {(name,) for name in independent}
        nested = [declared for declared in spec.enrich if path_names(declared.path) not in paths]
        self._nested_lookups = [_NestedLookup(declared, databases) for declared in nested]
        self._nested_masks = [mask for mask in self._masks if path_names(mask.path) not in paths]

    def apply(self, event: dict[str, Any], findings: TaskFindings) -> None:
        """Adds look-up results to an event and masks it, in place. Invalid addresses are dropped and counted in
        `findings`.

        Raises:
            ConfigError: ENRICHMENT_UNREADABLE, a database is corrupt.
        """
        for lookup in self._nested_lookups:
            lookup.apply(event)
        for field in self._independent_fields:
            if field.apply(event):
                findings.invalid_addresses[format_path([field.name])] += 1
        for mask in self._nested_masks:
            if mask.apply(event):
                findings.invalid_addresses[mask.path] += 1

    def mask_reread(self, event: Any) -> Any:
        """Masks an event that is parsed a second time from its bytes, in place and without look-ups."""
        if type(event) is dict:
            for mask in self._masks:
                mask.apply(event)
        return event


def _independent_field_names(spec: PipelineSpec) -> list[str]:
    """Returns the top-level fields whose look-ups and masks affect no other declared path. Their order does not
    matter."""
    texts = [*(declared.path for declared in spec.enrich), *(declared.path for declared in spec.private)]
    paths = list(map(path_names, texts))
    parents = {path[0] for path in paths if len(path) > 1}
    return sorted({path[0] for path in paths if len(path) == 1} - parents)


class _FieldLookupsAndMask:
    """All look-ups and the mask of one top-level field. Their combined result is cached by the field's value."""

    def __init__(self, name: str, spec: PipelineSpec, databases: PinnedDatabases | None) -> None:
        self.name = name
        lookups = [declared for declared in spec.enrich if path_names(declared.path) == (name,)]
        self._lookups = [(declared.output_field, _create_lookup(declared, databases)) for declared in lookups]
        #: Results for values that are not texts. They are null, and overwrite fields of the same name sent by a
        #: producer.
        self._null_results: dict[str, LookupResult] = {declared.output_field: None for declared in lookups}
        masks = (declared.keep for declared in spec.private if path_names(declared.path) == (name,))
        self._mask_mode = next(masks, None)
        self._cache: dict[str, tuple[dict[str, LookupResult], str | None]] = {}

    def apply(self, event: dict[str, Any]) -> bool:
        """Adds the results, then masks the value, in place. Returns whether the value should be an address but is
        invalid.

        Raises:
            ConfigError: ENRICHMENT_UNREADABLE.
        """
        name, mask_mode = self.name, self._mask_mode
        value = event.pop(name, None) if mask_mode == "nothing" else event.get(name)
        if type(value) is not str:
            event.update(self._null_results)
            if value is None or mask_mode != "network":
                return False
            event[name] = None
            return True
        outcome = self._cache.get(value)
        if outcome is None:
            outcome = self._compute(value)
            _cache_result(self._cache, value, outcome)
        results, network = outcome
        event.update(results)
        if mask_mode != "network":
            return False
        event[name] = network
        return network is None

    def _compute(self, value: str) -> tuple[dict[str, LookupResult], str | None]:
        network = truncate_ip(value) if self._mask_mode == "network" else None
        return {name: lookup(value) for name, lookup in self._lookups}, network


class _NestedLookup:
    """A look-up of the value at a nested path; the result goes to the event's field `_<name>`."""

    def __init__(self, declared: EnrichSpec, databases: PinnedDatabases | None) -> None:
        self._field = declared.output_field
        self._get_value = path_getter(path_names(declared.path))
        self._lookup = _create_lookup(declared, databases)
        self._cache: dict[str, LookupResult] = {}

    def apply(self, event: dict[str, Any]) -> None:
        """Adds the look-up's result to an event, in place.

        Raises:
            ConfigError: ENRICHMENT_UNREADABLE.
        """
        value = self._get_value(event)
        # Overwrites a field of this name that a producer sent.
        if type(value) is not str:
            event[self._field] = None
        elif value in self._cache:
            event[self._field] = self._cache[value]
        else:
            event[self._field] = self._lookup(value)
            _cache_result(self._cache, value, event[self._field])


def _create_lookup(declared: EnrichSpec, databases: PinnedDatabases | None) -> Callable[[str], LookupResult]:
    if declared.kind == "user_agent":
        # Imported on demand, because it loads a thousand regular expressions.
        return parse_user_agent
    if databases is None or declared.database is None:
        raise TypeError(f"{declared.name}: databases must be pinned before addresses are looked up")
    fields = {name: tuple(path.split(".")) for name, path in declared.fields.items()}
    return partial(_lookup_address, databases.open_lookup(declared.database), fields)


def _lookup_address(reader: AddressLookup, fields: dict[str, tuple[str, ...]], value: str) -> LookupResult:
    address = parse_ip(value)
    record = None if address is None else reader.lookup(format_ip(address))
    return None if record is None else {name: _value_in(record, path) for name, path in fields.items()}


def _value_in(record: Any, path: tuple[str, ...]) -> Any:
    """Returns the value in a database record at a path of names and list indexes."""
    for name in path:
        if isinstance(record, dict):
            record = record.get(name)
        elif isinstance(record, list) and name.isdecimal() and int(name) < len(record):
            record = record[int(name)]
        else:
            return None
    return record.hex() if isinstance(record, bytes | bytearray) else record


class _NestedMask:
    """A mask for the value at a nested path."""

    def __init__(self, declared: PrivateSpec) -> None:
        self.path = declared.path
        *self._parent_names, self._name = path_names(declared.path)
        self._mode = declared.keep
        self._cache: dict[str, str | None] = {}

    def apply(self, event: dict[str, Any]) -> bool:
        """Masks an event in place. Returns whether the value should be an address but is invalid."""
        parent = _parent_object(event, self._parent_names) if self._parent_names else event
        if parent is None:
            return False
        if self._mode == "nothing":
            parent.pop(self._name, None)
            return False
        value = parent.get(self._name)
        if value is None:
            return False
        if type(value) is not str:
            network = None
        elif value in self._cache:
            network = self._cache[value]
        else:
            network = truncate_ip(value)
            _cache_result(self._cache, value, network)
        parent[self._name] = network
        return network is None


def _cache_result(cache: dict[str, Any], value: str, result: Any) -> None:
    """Caches a result unless the value is too long. A full cache is cleared first."""
    if len(cache) >= _MAX_CACHED_RESULTS:
        cache.clear()
    if len(value) <= _MAX_CACHED_CHARACTERS:
        cache[value] = result


def _parent_object(event: dict[str, Any], parent_names: Sequence[str]) -> dict[str, Any] | None:
    """Returns the object that contains the last name of a path.

    A value on the path that is not an object but could contain the field (a list, a JSON text) is removed from the
    event.
    """
    parent = event
    for name in parent_names:
        inner = parent.get(name)
        if inner is None:
            return None
        if type(inner) is not dict:
            del parent[name]
            return None
        parent = inner
    return parent


#: Longer texts are cut, to bound the cost of matching a thousand regular expressions.
MAX_CHARACTERS = 2_048
_MAX_DECODINGS = 2
_BOT_DEVICE_FAMILY = "Spider"


def url_decode(text: str) -> str:
    """Removes up to two levels of URL encoding."""
    for _ in range(_MAX_DECODINGS):
        plain = unquote(text, errors="replace")
        if plain == text:
            break
        text = plain
    return text


def parse_user_agent(text: str) -> dict[str, Any] | None:
    """Parses a user agent to a dict of the `USER_AGENT_FIELDS`, with None for unknown ones. Returns None for an empty
    text.
    """
    plain = url_decode(text)[:MAX_CHARACTERS].strip()
    if not plain:
        return None
    import ua_parser

    # Invalid UTF-8 cannot be matched.
    parsed = ua_parser.parse(plain if plain.isascii() else plain.encode("utf-8", "replace").decode())
    browser, system, device = parsed.user_agent, parsed.os, parsed.device
    return {
        "browser": browser.family if browser else None,
        "browser_version": _version(browser.major, browser.minor, browser.patch) if browser else None,
        "os": system.family if system else None,
        "os_version": _version(system.major, system.minor, system.patch) if system else None,
        "device": device.family if device else None,
        "brand": device.brand if device else None,
        "model": device.model if device else None,
        "is_bot": device is not None and device.family == _BOT_DEVICE_FAMILY,
    }


def _version(*parts: str | None) -> str | None:
    present = []
    for part in parts:
        if not part:
            break
        present.append(part)
    return ".".join(present) or None
