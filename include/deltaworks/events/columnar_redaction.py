"""Redacts decoded events column by column, a few hundred events at a time.

The result equals redacting each event with `Redactor`: same values, counts and identities. Each distinct value is
tokenized once. Events that cannot be redacted with certainty are left to the row parser: an identifier beyond 64 bits,
a text to drop, an erased subject. A declared field either has its own struct field, or is nested in the value of one,
for example in a list.
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

from deltaworks.events.columnar_structs import FieldTree, NotColumnarError, Path
from deltaworks.events.source_fields import RECORD_FIELD
from deltaworks.privacy.tokens.redactor import DROPPED, EventCondition, Redactor, Transform, cache_value
from deltaworks.specs.base import format_path, path_names, paths_overlap
from deltaworks.specs.privacy import TOKEN_ACTIONS

Values = Mapping[Path, Sequence[Any]]
#: Types that a condition can compare.
_SCALARS: Final = frozenset({str, bool, int, float})
_MIN_INT64, _MAX_UINT64 = -(1 << 63), (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class StructFieldPath:
    """Location of a value: a struct field, and a path within the field's value. `subpath` is empty for the value
    itself.
    """

    field_path: Path
    subpath: Path = ()

    def value(self, values: Values, index: int) -> Any:
        """Returns the value of the event at `index`, or None."""
        value = values[self.field_path][index]
        for name in self.subpath:
            value = value.get(name) if type(value) is dict else None
        return value


def resolve_path(tree: FieldTree, path: Path, name_path: Path | None) -> StructFieldPath | None:
    """Returns the struct field that contains a path; adds a field if needed.

    Returns None if the path leads to an object whose fields are struct fields of their own.

    Args:
        name_path: the field of the event's name. It has no struct field, but its value is available.
    """
    subtree = tree
    for depth, name in enumerate(path, 1):
        if path[:depth] == name_path:
            return StructFieldPath(path[:depth], path[depth:])
        entry = subtree.setdefault(name, Any)
        if type(entry) is not dict:
            return StructFieldPath(path[:depth], path[depth:])
        subtree = entry
    return None


def leaf_paths(tree: FieldTree, prefix: Path = ()) -> list[Path]:
    """Returns the paths of all struct fields that hold values and not nested structs."""
    paths: list[Path] = []
    for name, kind in tree.items():
        paths += leaf_paths(kind, (*prefix, name)) if type(kind) is dict else [(*prefix, name)]
    return paths


class ColumnarCondition:
    """Selects the events in which every path has one of its expected values."""

    def __init__(self, condition: EventCondition | None, tree: FieldTree, name_path: Path | None) -> None:
        paths = [] if condition is None else condition.paths
        fields = [(resolve_path(tree, path, name_path), values) for path, values in paths]
        # Such a path leads to an object, which equals no expected value.
        self._fields = [] if any(field is None for field, _ in fields) else fields

    def matching_indexes(self, values: Values, count: int, fallback_rows: set[int]) -> list[int]:
        """Returns the sorted indexes of matching events; adds events that the row parser must check to
        `fallback_rows`."""
        indexes: Sequence[int] = range(count) if self._fields else ()
        for declared, expected in self._fields:
            if declared is None or values[declared.field_path].count(None) == count:
                return []
            matching = []
            for index in indexes:
                value = declared.value(values, index)
                if exceeds_64_bits(value):
                    fallback_rows.add(index)
                elif type(value) in _SCALARS and (type(value), value) in expected:
                    matching.append(index)
            indexes = matching
        return list(indexes)


class RedactedFields:
    """Struct fields to redact, with the index of their declaration in `privacy`.

    Raises:
        NotColumnarError: a column reads a field nested in a personal field.
    """

    def __init__(self, redactor: Redactor, tree: FieldTree, name_path: Path | None) -> None:
        self.fields: dict[Path, tuple[int, bool]] = {}
        names = [path_names(item.path) for item in redactor.spec.fields]
        for index, path in enumerate(names):
            field = resolve_path(tree, path, name_path)
            if field is None or field.field_path == name_path:
                raise NotColumnarError(f"columns read fields inside the personal field {format_path(path)}")
            self.fields[field.field_path] = index, not field.subpath
        child = redactor.spec.regulation.child
        dropped = [] if child is None else [path_names(path) for path in child.drop]
        fields = [resolve_path(tree, path, name_path) for path in dropped]
        #: True if fields to drop for children overlap with each other or with other personal fields; only the row
        #: parser supports this.
        self.child_needs_row_parser = any(field is None or field.field_path == name_path for field in fields) or any(
            one != other and paths_overlap(one, other) for one in dropped for other in (*names, *dropped)
        )
        self.child_fields = list(
            dict.fromkeys([*self.fields, *(field.field_path for field in fields if field is not None)])
        )


def exceeds_64_bits(value: Any) -> bool:
    """Returns whether a value is an integer beyond 64 bits, which the row parser reads as a double."""
    return type(value) is int and not _MIN_INT64 <= value <= _MAX_UINT64


#: Columns of `RedactedBlock.counts`.
COUNT_KINDS: Final = ("tokens", "child", "scan_email", "scan_phone")
_TOKENS_INDEX, _CHILD_INDEX = COUNT_KINDS.index("tokens"), COUNT_KINDS.index("child")
#: Function that records an identity: subject, kind, token, value, and arrival time in milliseconds.
RecordIdentity = Callable[[str, str, str, str | None, int], None]
#: Events to scan for emails and phone numbers, by index, with their record metadata.
ScanCandidates = Mapping[int, Mapping[str, Any] | None]
TokenFindings = list[tuple[str, str, Any]]
FieldValues = dict[Path, Sequence[Any]]


@dataclass(slots=True)
class RedactedBlock:
    """Result of redacting a block of events.

    Attributes:
        counts: one row per event, with the columns of `COUNT_KINDS`.
        opted_out_rows: indexes of events to drop because their subject has opted out.
        fallback_rows: indexes of events left to the row parser; they may be partly redacted.
    """

    counts: npt.NDArray[np.int64]
    opted_out_rows: list[int] = field(default_factory=list)
    fallback_rows: set[int] = field(default_factory=set)
    #: Tokens of values nested in lists and objects, by event index, and the tokens of children's events.
    found_tokens: dict[int, TokenFindings] = field(default_factory=dict)
    child_tokens: dict[int, TokenFindings] = field(default_factory=dict)

    def counts_array(self) -> pa.Array:
        """Returns the counts as an Arrow array, so that they can be filtered together with the columns."""
        return pa.FixedSizeListArray.from_arrays(pa.array(self.counts.reshape(-1)), len(COUNT_KINDS))

    def count_found_tokens(self) -> None:
        """Adds the tokens in `found_tokens` and `child_tokens` to the counts."""
        for index, tokens in chain(self.found_tokens.items(), self.child_tokens.items()):
            self.counts[index, _TOKENS_INDEX] += sum(value is not None for _, _, value in tokens)


def sum_counts(counts: pa.Array) -> Counter[str]:
    """Returns the totals by kind over all events, without zeros."""
    sums = counts.flatten().to_numpy(zero_copy_only=False).reshape(-1, len(COUNT_KINDS)).sum(axis=0)
    return Counter({kind: int(events) for kind, events in zip(COUNT_KINDS, sums, strict=True) if events})


class ColumnarRedaction:
    """Redaction state that is shared by all event types of a pipeline; caches tokens. Not thread-safe."""

    def __init__(self, redactor: Redactor, record_identity: RecordIdentity) -> None:
        self.redactor = redactor
        self.record_identity = record_identity
        self._token_caches: dict[str, dict[str, str]] = {}

    def token_cache(self, kind: str) -> dict[str, str]:
        """Returns the cache of tokens by value for one kind of identifier. A token is cached as its own token."""
        return self._token_caches.setdefault(kind, {})


@dataclass(frozen=True, slots=True)
class _TokenField:
    """A struct field whose values are replaced by tokens. With `goes_to_vault` the original value is stored in the
    vault.
    """

    field_path: Path
    kind: str
    goes_to_vault: bool
    transform: Transform
    cache: dict[str, str]

    def tokenize(self, values: Sequence[Any], block: RedactedBlock) -> list[Any]:
        """Returns the token of each value and counts new tokens. Tokens of lists and objects go to
        `block.found_tokens`.
        """
        memory = self.cache
        try:
            tokens = list(map(memory.get, values))
        except TypeError:  # lists and objects are not hashable
            tokens = [memory.get(value) if type(value) is str else None for value in values]
        uncached: list[int] = []
        if None in tokens:
            for index, (value, token) in enumerate(zip(values, tokens, strict=True)):
                if token is not None or value is None:
                    continue
                if type(value) is str and value:
                    changed = tokens[index] = self.transform(value, [])
                    cache_value(memory, value, changed)
                elif _may_exceed_64_bits(value):
                    block.fallback_rows.add(index)
                else:
                    uncached.append(index)
        is_new_token = np.fromiter(map(ne, tokens, values), np.bool_, len(tokens))
        for index in uncached:
            tokens[index] = self.transform(values[index], block.found_tokens.setdefault(index, []))
            is_new_token[index] = False
        block.counts[:, _TOKENS_INDEX] += is_new_token
        return tokens


class EventTypeRedactor:
    """Redacts the events of one type.

    Raises:
        NotColumnarError: these events need the row parser; the message gives the reason.
    """

    def __init__(self, redaction: ColumnarRedaction, tree: FieldTree, *, name: str, name_path: Path | None) -> None:
        """Adds struct fields to `tree` for all fields that are redacted or read by a condition."""
        self._redaction = redaction
        self._redactor = redactor = redaction.redactor
        self._fields = RedactedFields(redactor, tree, name_path)
        self._opt_out_condition = ColumnarCondition(redactor.opt_out_condition, tree, name_path)
        self._child_condition = ColumnarCondition(redactor.child, tree, name_path)
        subjects = [resolve_path(tree, path_names(path), name_path) for path in redactor.spec.subject]
        self._subjects = [subject for subject in subjects if subject is not None]
        self._token_fields: list[_TokenField] = []
        self._other_transforms: list[tuple[Path, Transform]] = []
        for field_path, (index, is_own) in self._fields.fields.items():
            item, change = redactor.spec.fields[index], redactor.fields.transform_at(field_path)
            if is_own and item.action in TOKEN_ACTIONS and item.kind is not None:
                memory = redaction.token_cache(item.kind)
                self._token_fields.append(_TokenField(field_path, item.kind, item.action == "vault", change, memory))
            else:
                self._other_transforms.append((field_path, change))
        scanner = redactor.scanner
        if scanner is not None:
            counts: Counter[str] = Counter()
            scanner.scan({"": name if name_path is not None else ""}, counts)
            if counts:
                raise NotColumnarError("their name contains an email or a phone number")
        self._tree, self._name_path = tree, name_path
        self._scanned: list[Path] | None = None

    @property
    def redacted_paths(self) -> Collection[Path]:
        """Paths of the struct fields whose values may change."""
        return self._fields.child_fields

    def redact(
        self, values: FieldValues, count: int, *, arrivals: Callable[[], Sequence[int]], scan_candidates: ScanCandidates
    ) -> RedactedBlock:
        """Redacts a block of events in place.

        Args:
            values: field values by path.
            arrivals: returns the arrival times in milliseconds since 1970; called only if needed.
            scan_candidates: events whose texts may contain emails or phone numbers, by index.
        """
        block = RedactedBlock(np.zeros((count, len(COUNT_KINDS)), np.int64))
        opted_out = block.opted_out_rows = self._opt_out_condition.matching_indexes(values, count, block.fallback_rows)
        children = [
            index
            for index in self._child_condition.matching_indexes(values, count, block.fallback_rows)
            if index not in opted_out
        ]
        original_values = (
            {field_path: values[field_path] for field_path in self._fields.child_fields} if children else {}
        )
        excluded = {*opted_out, *children}
        raw: FieldValues = {}
        for tokens in self._token_fields:
            column = values[tokens.field_path] = _null_out(values[tokens.field_path], excluded)
            if column.count(None) < count:
                raw[tokens.field_path], values[tokens.field_path] = column, tokens.tokenize(column, block)
        for field_path, change in self._other_transforms:
            column = values[field_path] = _null_out(values[field_path], excluded)
            if column.count(None) < count:
                values[field_path] = _transform_values(column, change, block)
        if children:
            self._redact_children(values, original_values, children, arrivals(), block)
        block.count_found_tokens()
        self._scan_texts(values, scan_candidates, block)
        self._defer_suppressed(values, raw, block)
        if block.counts[:, _TOKENS_INDEX].any():
            self._record_identities(values, raw, arrivals(), block)
        return block

    def _redact_children(
        self,
        values: FieldValues,
        original_values: FieldValues,
        indexes: Sequence[int],
        arrivals: Sequence[int],
        block: RedactedBlock,
    ) -> None:
        if self._fields.child_needs_row_parser:
            block.fallback_rows.update(indexes)
            return
        columns = {field_path: list(values[field_path]) for field_path in original_values}
        for index in indexes:
            fields = self._redactor.child_transforms(arrivals[index])
            identities = block.child_tokens[index] = []
            block.counts[index, _CHILD_INDEX] = 1
            for field_path, column in original_values.items():
                value = column[index]
                if value is None:
                    continue
                if _may_exceed_64_bits(value):
                    block.fallback_rows.add(index)
                result = fields.transform_at(field_path)(value, identities)
                columns[field_path][index] = None if result is DROPPED else result
        values.update(columns)

    def _scan_texts(self, values: FieldValues, scan_candidates: ScanCandidates, block: RedactedBlock) -> None:
        scanner = self._redactor.scanner
        if scanner is None or not scan_candidates:
            return
        if self._scanned is None:  # set later, when all struct fields are known
            self._scanned = [*leaf_paths(self._tree), *([] if self._name_path is None else [self._name_path])]
        for index, record in scan_candidates.items():
            if index in block.opted_out_rows:
                continue
            texts: dict[Any, Any] = {field_path: values[field_path][index] for field_path in self._scanned}
            if record is not None:
                # The record's metadata overwrites a field of the same name in the event.
                texts[RECORD_FIELD,] = copy.deepcopy(dict(record))
            counts: Counter[str] = Counter()
            scanner.scan(texts, counts)
            for kind, hits in counts.items():
                if kind in COUNT_KINDS:
                    block.counts[index, COUNT_KINDS.index(kind)] += hits
                else:
                    block.fallback_rows.add(index)

    def _defer_suppressed(self, values: FieldValues, raw: FieldValues, block: RedactedBlock) -> None:
        """Leaves events of erased subjects to the row parser, which checks how long the subject is suppressed."""
        if not self._redactor.has_suppressions:
            return
        for field_path in raw:
            tokens = values[field_path]
            named = self._redactor.suppressed_tokens({token for token in tokens if type(token) is str})
            if named:
                block.fallback_rows.update(
                    index for index, token in enumerate(tokens) if type(token) is str and token in named
                )
        for index, identities in chain(block.found_tokens.items(), block.child_tokens.items()):
            if self._redactor.suppressed_tokens({token for _, token, _ in identities}):
                block.fallback_rows.add(index)

    def _record_identities(
        self, values: FieldValues, raw: FieldValues, arrivals: Sequence[int], block: RedactedBlock
    ) -> None:
        """Records the identities behind new tokens, each with its earliest arrival time."""
        record = self._redaction.record_identity
        count = len(arrivals)
        has_new_tokens = block.counts[:, _TOKENS_INDEX] > 0
        has_new_tokens[list(block.fallback_rows)] = False
        subjects = self._event_subjects(values, count)
        is_adult = has_new_tokens.copy()
        is_adult[list(block.child_tokens)] = False
        indexes = np.flatnonzero(is_adult).tolist()
        if any(one > other for one, other in pairwise(arrivals)):
            indexes.sort(key=arrivals.__getitem__)
        indexes.reverse()  # a dict keeps the last of equal keys
        index_subjects = [subjects[index] for index in indexes]
        at_ms = [arrivals[index] for index in indexes]
        for tokens in self._token_fields:
            if tokens.field_path not in raw:
                continue
            column, sent = values[tokens.field_path], raw[tokens.field_path]
            new_tokens = [column[index] if type(sent[index]) is str else None for index in indexes]
            if not tokens.goes_to_vault and new_tokens == index_subjects:
                continue
            sealed = [sent[index] if one else None for index, one in zip(indexes, new_tokens, strict=True)]
            firsts = dict(
                zip(
                    zip(index_subjects, new_tokens, sealed if tokens.goes_to_vault else new_tokens, strict=True),
                    at_ms,
                    strict=True,
                )
            )
            for (subject, token, value), first_ms in firsts.items():
                if token:
                    _record_one(record, subject, (tokens.kind, token, None if value == token else value), first_ms)
        child_tokens = block.child_tokens if self._redactor.stores_child_identities else {}
        for index, identities in chain(block.found_tokens.items(), child_tokens.items()):
            for item in identities if has_new_tokens[index] else ():
                _record_one(record, subjects[index], item, arrivals[index])

    def _event_subjects(self, values: FieldValues, count: int) -> list[str | None]:
        """Returns the subject token of each event, from the first subject field that has a value."""
        subjects: list[str | None] = [None] * count
        for subject in self._subjects:
            column = values[subject.field_path]
            if not subject.subpath and {str, type(None)}.issuperset(map(type, column)):
                # All texts have been replaced by tokens here, or are empty.
                subjects = [first or second or None for first, second in zip(subjects, column, strict=True)]
                continue
            for index, subject_token in enumerate(subjects):
                if subject_token is None:
                    value = subject.value(values, index)
                    subjects[index] = value or None if type(value) is str else None
        return subjects


def _transform_values(values: Sequence[Any], transform: Transform, block: RedactedBlock) -> list[Any]:
    """Transforms values one by one."""
    changed: list[Any] = []
    for index, value in enumerate(values):
        result = None
        if _may_exceed_64_bits(value):
            block.fallback_rows.add(index)
        elif value is not None:
            identities: TokenFindings = []
            result = transform(value, identities)
            if identities:
                block.found_tokens.setdefault(index, []).extend(identities)
        changed.append(None if result is DROPPED else result)
    return changed


def _record_one(record: RecordIdentity, subject: str | None, identity: tuple[str, str, Any], at_ms: int) -> None:
    kind, token, value = identity
    sealed = value if type(value) is str else None
    token_subject = subject or token
    if sealed is not None or token_subject != token:
        record(token_subject, kind, token, sealed, at_ms)


def _null_out(values: Sequence[Any], indexes: Collection[int]) -> Sequence[Any]:
    if not indexes:
        return values
    return [None if index in indexes else value for index, value in enumerate(values)]


def _may_exceed_64_bits(value: Any) -> bool:
    """Returns whether a value is or contains an integer beyond 64 bits; True if it is nested too deeply to check."""
    if type(value) is not list and type(value) is not dict:
        return exceeds_64_bits(value)
    try:
        orjson.dumps(value)
    except TypeError:
        return True
    return False
