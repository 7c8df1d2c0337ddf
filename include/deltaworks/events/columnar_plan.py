"""How events of each type are read: into slots, whose columns are made at once, or by rows, and why.

`row_path_reason` says of a pipeline why none of its events has slots, `EventPlan.of` of a type of event. What neither
refuses is decoded, and what a plan makes of it is what the row path would; what a plan is not sure of it names, and the
row path reads that anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from deltaworks.events.columnar_redaction import ColumnarRedaction, EventTypeRedactor, ScanCandidates
from deltaworks.events.columnar_structs import (
    FieldTree,
    NotColumnarError,
    Path,
    StructLayout,
    add_field,
    create_layout,
    nested_field_type,
)
from deltaworks.events.columns import convert_column
from deltaworks.events.event_ids import unambiguous_ids
from deltaworks.events.event_times import join_time_parts
from deltaworks.events.events import Router
from deltaworks.events.source_fields import RECORD_FIELD, reads_record_fields
from deltaworks.events.table_columns import ColumnKey, EventColumn, TableColumns
from deltaworks.events.undeclared_fields import ReadFields, undeclared_fields
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources.selection import partition_columns_of
from deltaworks.specs.times import TimeFormat
from deltaworks.specs.types import Array, ColumnType, Decimal, Map, Primitive, Struct

#: What was counted of each event as it was stripped, as of `slot_stripping.COUNTED`.
REDACTION_COUNTS = "counts"
_TIMESTAMP = Primitive("timestamp")
#: A decimal of more digits may take a whole number beyond 64 bits, which orjson makes a double of and msgspec does not.
_MAX_64_BIT_DIGITS = 18


def row_parser_reason(spec: PipelineSpec, router: Router) -> str | None:
    """Why all events of a pipeline are read by rows; None where that depends on their type."""
    reasons = {
        "the payloads are no JSON": spec.source.format != "json",
        "fields are looked up or masked in the events": bool(spec.enrich or spec.private),
        "what becomes of personal data depends on their record": _redacts_by_record(spec),
        "events have fields of their object's key": bool(partition_columns_of(spec.source)),
        "events have fields of their record": reads_record_fields(spec),
        "events have fields of their wrapper": bool(spec.unwrap and spec.unwrap.keep),
        "their tables depend on more than their name": not router.by_name_only,
        "their name lies inside another field": "." in (spec.event.name.path or ""),
        "their time is when they arrived": not spec.event.time.path,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    """A column of a type of event, whatever tables have it; `required` in one of them."""

    item: EventColumn
    required: bool
    #: Whether its slot takes nothing but what the type says, on every level.
    types_checked: bool


@dataclass(frozen=True, slots=True)
class PlannedArrays:
    """Columns of events by `EventColumn.key`, their `time` and `id`, and `COUNTS` where they were stripped.

    `unsure` are the places of events that the row path has to read, `refused` of those that are kept nowhere.
    """

    columns: dict[Any, pa.Array]
    fallback_rows: set[int]
    opted_out_rows: set[int]


@dataclass(frozen=True, slots=True, eq=False)
class EventPlan:
    """How events of one name become columns.

    Attributes:
        tables: where they go, in order.
        nulls: what some table keeps as a field that no column takes; where it is there, the row path reads the event.
        parts: the same, of what lies in objects that are read whole: which fields of theirs are read.
        takes_others: whether fields that nobody reads may be given slots.
        strip: what strips personal data, where the pipeline has any.
    """

    name: str
    tables: tuple[str, ...]
    layout: StructLayout
    tree: FieldTree
    columns: tuple[PlannedColumn, ...]
    time: tuple[Path, ...]
    time_form: TimeFormat
    ids: tuple[Path, ...]
    name_path: Path | None
    undeclared_paths: frozenset[Path]
    partly_read_paths: tuple[tuple[Path, ReadFields], ...]
    accepts_unread_fields: bool
    redactor: EventTypeRedactor | None = None

    @classmethod
    def compile(
        cls,
        spec: PipelineSpec,
        name: str,
        tables: tuple[str, ...],
        by_table: Mapping[str, TableColumns],
        unread_fields: Sequence[Path] = (),
        *,
        redaction: ColumnarRedaction | None = None,
    ) -> EventPlan:
        """The plan of events called `name`, which go to `tables`.

        Args:
            others: fields that nobody reads, which events have all the same.
            stripping: what strips personal data, where `spec` declares any.

        Raises:
            Unslotted: the row path reads them; why.
        """
        columns = [by_table[table] for table in tables]
        time, ids = _split_paths(spec.event.time.path), _split_paths(spec.event.id)
        name_path = None if spec.event.name.path is None else (spec.event.name.path,)
        tree: FieldTree = {}
        for path in (*time, *ids):
            add_field(tree, path, Any)
        items = [item for of_table in columns for item in of_table.columns]
        planned = _plan_columns(tree, items, name_path, shared_paths=(*time, *ids))
        if spec.privacy is not None and redaction is None:
            raise NotColumnarError("there is nothing to strip their personal data with")
        redactor = None if redaction is None else EventTypeRedactor(redaction, tree, name=name, name_path=name_path)
        personal = () if redactor is None else redactor.redacted_paths
        for path in unread_fields:
            add_field(tree, path, Any)
        undeclared_paths, partly_read_paths = _undeclared_paths(tree, [of_table for of_table in columns if of_table.keeps_undeclared_fields])
        return cls(
            name=name,
            tables=tables,
            layout=create_layout(tree, tag=None if name_path is None else (name_path[0], name)),
            tree=tree,
            columns=tuple(
                one if key[0] not in personal else PlannedColumn(one.item, one.required, types_checked=False)
                for key, one in planned.items()
            ),
            time=time,
            time_form=spec.event.time.time_format,
            ids=ids,
            name_path=name_path,
            undeclared_paths=undeclared_paths,
            partly_read_paths=partly_read_paths,
            accepts_unread_fields=not any(of_table.keeps_undeclared_fields for of_table in columns),
            redactor=redactor,
        )

    def to_arrays(
        self, events: Sequence[Any], arrivals: Callable[[], Sequence[int]], suspects: ScanCandidates
    ) -> PlannedArrays:
        """The columns of decoded events.

        Args:
            arrivals: when each came in, milliseconds since 1970, for what strips them.
            suspects: by place those that are to be scanned for emails and phone numbers, with their records.
        """
        values: dict[Path, Sequence[Any]] = {}
        self.layout.collect_values(events, values)
        if self.name_path is not None:
            values[self.name_path] = [self.name] * len(events)
        arrays: dict[Any, pa.Array] = {}
        unsure, refused = set[int](), set[int]()
        if self.redactor is not None:
            stripped = self.redactor.redact(values, len(events), arrivals=arrivals, scan_candidates=suspects)
            unsure, refused = stripped.fallback_rows, set(stripped.opted_out_rows)
            arrays[REDACTION_COUNTS] = stripped.counts_array()
        unsure |= self._rows_with_undeclared_fields(values)
        for planned in self.columns:
            item = planned.item
            array, misfits = convert_column(
                values[item.path], item.kind, times=item.times, types_checked=planned.types_checked
            )
            unsure.update(misfits)
            if planned.required:
                unsure.update(_null_indexes(array))
            arrays[item.key] = array
        instants = join_time_parts([values[path] for path in self.time])
        arrays["time"], misfits = convert_column(instants, _TIMESTAMP, times=self.time_form)
        unsure.update(misfits, _null_indexes(arrays["time"]))
        texts = unambiguous_ids([values[path] for path in self.ids], len(events))
        arrays["id"] = pa.array(texts, pa.string())
        if self.ids:
            unsure.update(_null_indexes(arrays["id"]))
        return PlannedArrays(arrays, unsure - refused, refused)

    def _rows_with_undeclared_fields(self, values: Mapping[Path, Sequence[Any]]) -> set[int]:
        """The events of which some table keeps fields that none of its columns takes."""
        unsure: set[int] = set()
        for path in self.undeclared_paths:
            held = values[path]
            if held.count(None) < len(held):
                unsure.update(row for row, value in enumerate(held) if value is not None)
        for path, fields in self.partly_read_paths:
            name = path[-1]
            read: ReadFields = {name: fields}
            unsure.update(
                row
                for row, value in enumerate(values[path])
                if value is not None and undeclared_fields({name: value}, read)
            )
        return unsure


def _plan_columns(
    tree: FieldTree, items: Iterable[EventColumn], name_path: Path | None, *, shared_paths: Sequence[Path]
) -> dict[ColumnKey, PlannedColumn]:
    """Columns by their key, once each, with slots for them in `tree`.

    Args:
        apart: fields that something else reads too, whose slots take anything.

    Raises:
        Unslotted: one of them may take whole numbers beyond 64 bits.
    """
    planned: dict[ColumnKey, PlannedColumn] = {}
    for item in items:
        if _may_exceed_64_bits(item.kind):
            raise NotColumnarError(f"a whole number beyond 64 bits would fit {item.name}: {item.kind}")
        required = item.required or (item.key in planned and planned[item.key].required)
        if item.path == name_path:
            planned[item.key] = PlannedColumn(item, required, types_checked=False)
            continue
        kind = nested_field_type(item.kind)
        alone = item.path not in (*shared_paths, *(key[0] for key in planned if key != item.key))
        add_field(tree, item.path, kind if alone else Any)
        planned[item.key] = PlannedColumn(item, required, types_checked=alone and kind is not Any)
    # A field that two columns read differently has a slot for anything, so that neither can trust in its type.
    return {
        key: one
        if not one.types_checked or _type_at(tree, key[0]) is not Any
        else PlannedColumn(one.item, one.required, types_checked=False)
        for key, one in planned.items()
    }


def paths_without_field(event: Mapping[str, Any], tree: FieldTree, above: Path = ()) -> list[Path]:
    """The fields of an event that have no slot."""
    paths = []
    for name, value in event.items():
        if name not in tree:
            paths.append((*above, name))
        elif type(tree[name]) is dict and type(value) is dict:
            paths += paths_without_field(value, tree[name], (*above, name))
    return paths


def _redacts_by_record(spec: PipelineSpec) -> bool:
    """Whether a rule of `privacy` is about fields of the record that an event came in."""
    regulation = None if spec.privacy is None else spec.privacy.regulation
    rules = [] if regulation is None else [rule.when for rule in (regulation.refused, regulation.child) if rule]
    return any(path.split(".")[0].removesuffix("[]") == RECORD_FIELD for when in rules for path in when)


def _split_paths(texts: Sequence[str]) -> tuple[Path, ...]:
    return tuple(tuple(text.split(".")) for text in texts)


def _type_at(tree: FieldTree, path: Path) -> Any:
    held: Any = tree
    for name in path:
        held = held[name]
    return held


def _null_indexes(array: pa.Array) -> list[int]:
    return pc.indices_nonzero(pc.is_null(array)).to_pylist() if array.null_count else []


def _may_exceed_64_bits(kind: ColumnType) -> bool:
    match kind:
        case Decimal(precision):
            return precision > _MAX_64_BIT_DIGITS
        case Array(inner) | Map(inner):
            return _may_exceed_64_bits(inner)
        case Struct(fields):
            return any(_may_exceed_64_bits(field) for _, field in fields)
    return False


def _undeclared_paths(
    tree: FieldTree, tables: Sequence[TableColumns]
) -> tuple[frozenset[Path], tuple[tuple[Path, ReadFields], ...]]:
    """What of the slots these tables keep as fields that no column takes: whole, and in part.

    Raises:
        Unslotted: a table has columns that it was given while it ran.
    """
    nulls: set[Path] = set()
    parts: list[tuple[Path, ReadFields]] = []

    def walk(below: FieldTree, fields: ReadFields, above: Path) -> None:
        for name, kind in below.items():
            path = (*above, name)
            inner = fields.get(name)
            if name not in fields:
                nulls.add(path)
            elif inner is not None and type(kind) is dict:
                walk(kind, inner, path)
            elif inner is not None:
                parts.append((path, inner))

    for of_table in tables:
        if of_table.has_evolved_columns:
            raise NotColumnarError("a table of theirs was given columns while it ran")
        walk(tree, of_table.read_fields, ())
    return frozenset(nulls), tuple(parts)
