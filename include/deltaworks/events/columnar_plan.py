"""Plans how events of each type are parsed: decoded into structs and converted by columns, or by the row parser.

A plan yields the same rows as the row parser. Events that it cannot convert with certainty are left to the row parser.
If a pipeline has no plans, `row_parser_reason` returns why; for a single event type, `EventPlan.compile` raises the
reason.
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
from deltaworks.events.envelope import join_time_parts, unambiguous_ids
from deltaworks.events.events import Router
from deltaworks.events.source_fields import RECORD_FIELD, reads_record_fields
from deltaworks.events.table_columns import ColumnKey, EventColumn, TableColumns
from deltaworks.events.undeclared_fields import ReadFields, undeclared_fields
from deltaworks.specs.base import path_names
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources import partition_columns_of
from deltaworks.specs.times import TimeFormat
from deltaworks.specs.types import Array, ColumnType, Decimal, Map, Primitive, Struct

#: Key of the redaction counts per event, in the order of `columnar_redaction.COUNT_KINDS`.
REDACTION_COUNTS = "counts"
_TIMESTAMP = Primitive("timestamp")
#: Decimals with more digits accept integers beyond 64 bits, which orjson parses as doubles and msgspec as integers.
_MAX_64_BIT_DIGITS = 18


def row_parser_reason(spec: PipelineSpec, router: Router) -> str | None:
    """Returns why all events of a pipeline need the row parser; None if some types may have a plan."""
    reasons = {
        "the payloads are not JSON": spec.source.format != "json",
        "fields are looked up or masked in the events": bool(spec.enrich or spec.private),
        "redaction depends on the metadata of their record": _redacts_by_record(spec),
        "events have fields from their object's key": bool(partition_columns_of(spec.source)),
        "events have fields from their record": reads_record_fields(spec),
        "events have fields from their wrapper": bool(spec.unwrap and spec.unwrap.keep),
        "their tables depend on more than their name": not router.by_name_only,
        "their name lies inside another field": len(path_names(spec.event.name.path or "name")) > 1,
        "their time is the arrival time": not spec.event.time.path,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    """A column of an event type, shared by the type's tables. It is `required` if any of these tables requires it."""

    item: EventColumn
    required: bool
    #: True if the decoder has already checked the values' types on every nesting level.
    types_checked: bool


@dataclass(frozen=True, slots=True)
class PlannedArrays:
    """Columns of converted events by `EventColumn.key`, with the extra keys `time`, `id` and, if redacted,
    `REDACTION_COUNTS`.

    Attributes:
        fallback_rows: indexes of events left to the row parser.
        opted_out_rows: indexes of events to drop because their subject has opted out.
    """

    columns: dict[Any, pa.Array]
    fallback_rows: set[int]
    opted_out_rows: set[int]


@dataclass(frozen=True, slots=True, eq=False)
class EventPlan:
    """Plan for converting events of one name to columns.

    Attributes:
        tables: tables of these events, in order.
        undeclared_paths: struct fields that some table has no column for. An event with a value there needs the row
            parser.
        partly_read_paths: same for objects of which columns read only some fields, with those fields.
        accepts_unread_fields: whether struct fields may be added for fields that no column reads.
        redactor: redacts personal data, if the pipeline declares any.
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
        """Compiles the plan for events named `name` that go to `tables`.

        Args:
            unread_fields: fields of these events that no column reads.
            redaction: shared redaction state, if `spec` declares personal data.

        Raises:
            NotColumnarError: these events need the row parser; the message gives the reason.
        """
        columns = [by_table[table] for table in tables]
        time, ids = _split_paths(spec.event.time.path), _split_paths(spec.event.id)
        name_path = None if spec.event.name.path is None else path_names(spec.event.name.path)
        tree: FieldTree = {}
        for path in (*time, *ids):
            add_field(tree, path, Any)
        items = [item for table_columns in columns for item in table_columns.columns]
        planned = _plan_columns(tree, items, name_path, shared_paths=(*time, *ids))
        if spec.privacy is not None and redaction is None:
            raise NotColumnarError("redaction keys for their personal data are missing")
        redactor = None if redaction is None else EventTypeRedactor(redaction, tree, name=name, name_path=name_path)
        personal = () if redactor is None else redactor.redacted_paths
        for path in unread_fields:
            add_field(tree, path, Any)
        undeclared_paths, partly_read_paths = _undeclared_paths(
            tree, [table_columns for table_columns in columns if table_columns.keeps_undeclared_fields]
        )
        return cls(
            name=name,
            tables=tables,
            layout=create_layout(tree, tag=None if name_path is None else (name_path[0], name)),
            tree=tree,
            columns=tuple(
                planned_column
                if key[0] not in personal
                else PlannedColumn(planned_column.item, planned_column.required, types_checked=False)
                for key, planned_column in planned.items()
            ),
            time=time,
            time_form=spec.event.time.time_format,
            ids=ids,
            name_path=name_path,
            undeclared_paths=undeclared_paths,
            partly_read_paths=partly_read_paths,
            accepts_unread_fields=not any(table_columns.keeps_undeclared_fields for table_columns in columns),
            redactor=redactor,
        )

    def to_arrays(
        self, events: Sequence[Any], arrivals: Callable[[], Sequence[int]], scan_candidates: ScanCandidates
    ) -> PlannedArrays:
        """Converts decoded events to columns.

        Args:
            arrivals: returns the arrival times in milliseconds since 1970; called only for redaction.
            scan_candidates: events to scan for emails and phone numbers, by index, with their record metadata.
        """
        values: dict[Path, Sequence[Any]] = {}
        self.layout.collect_values(events, values)
        if self.name_path is not None:
            values[self.name_path] = [self.name] * len(events)
        arrays: dict[Any, pa.Array] = {}
        fallback_rows, opted_out = set[int](), set[int]()
        if self.redactor is not None:
            block = self.redactor.redact(values, len(events), arrivals=arrivals, scan_candidates=scan_candidates)
            fallback_rows, opted_out = block.fallback_rows, set(block.opted_out_rows)
            arrays[REDACTION_COUNTS] = block.counts_array()
        fallback_rows |= self._rows_with_undeclared_fields(values)
        for planned in self.columns:
            item = planned.item
            array, errors = convert_column(
                values[item.path], item.kind, times=item.times, types_checked=planned.types_checked
            )
            fallback_rows.update(errors)
            if planned.required:
                fallback_rows.update(_null_indexes(array))
            arrays[item.key] = array
        instants = join_time_parts([values[path] for path in self.time])
        arrays["time"], errors = convert_column(instants, _TIMESTAMP, times=self.time_form)
        fallback_rows.update(errors, _null_indexes(arrays["time"]))
        texts = unambiguous_ids([values[path] for path in self.ids], len(events))
        arrays["id"] = pa.array(texts, pa.string())
        if self.ids:
            fallback_rows.update(_null_indexes(arrays["id"]))
        return PlannedArrays(arrays, fallback_rows - opted_out, opted_out)

    def _rows_with_undeclared_fields(self, values: Mapping[Path, Sequence[Any]]) -> set[int]:
        """Returns the indexes of events that have undeclared fields which a table must store."""
        fallback_rows: set[int] = set()
        for path in self.undeclared_paths:
            column_values = values[path]
            if column_values.count(None) < len(column_values):
                fallback_rows.update(row for row, value in enumerate(column_values) if value is not None)
        for path, fields in self.partly_read_paths:
            name = path[-1]
            read_fields: ReadFields = {name: fields}
            fallback_rows.update(
                row
                for row, value in enumerate(values[path])
                if value is not None and undeclared_fields({name: value}, read_fields)
            )
        return fallback_rows


def _plan_columns(
    tree: FieldTree, items: Iterable[EventColumn], name_path: Path | None, *, shared_paths: Sequence[Path]
) -> dict[ColumnKey, PlannedColumn]:
    """Returns the distinct columns of all tables by key, and adds their struct fields to `tree`.

    Args:
        shared_paths: fields of the event's time and id. They are read twice, so their struct fields accept any value.

    Raises:
        NotColumnarError: a column accepts integers beyond 64 bits.
    """
    planned: dict[ColumnKey, PlannedColumn] = {}
    for item in items:
        if _may_exceed_64_bits(item.kind):
            raise NotColumnarError(f"{item.name}: {item.kind} accepts integers beyond 64 bits")
        required = item.required or (item.key in planned and planned[item.key].required)
        if item.path == name_path:
            planned[item.key] = PlannedColumn(item, required, types_checked=False)
            continue
        kind = nested_field_type(item.kind)
        is_exclusive = item.path not in (*shared_paths, *(key[0] for key in planned if key != item.key))
        add_field(tree, item.path, kind if is_exclusive else Any)
        planned[item.key] = PlannedColumn(item, required, types_checked=is_exclusive and kind is not Any)
    # If two columns read a field with different types, its struct field accepts any value, so types are not checked.
    return {
        key: column
        if not column.types_checked or _type_at(tree, key[0]) is not Any
        else PlannedColumn(column.item, column.required, types_checked=False)
        for key, column in planned.items()
    }


def paths_without_field(event: Mapping[str, Any], tree: FieldTree, prefix: Path = ()) -> list[Path]:
    """Returns the fields of an event that have no struct field."""
    paths = []
    for name, value in event.items():
        if name not in tree:
            paths.append((*prefix, name))
        elif type(tree[name]) is dict and type(value) is dict:
            paths += paths_without_field(value, tree[name], (*prefix, name))
    return paths


def _redacts_by_record(spec: PipelineSpec) -> bool:
    """Returns whether a rule of `privacy` depends on the record's metadata."""
    regulation = None if spec.privacy is None else spec.privacy.regulation
    rules = [] if regulation is None else [rule.when for rule in (regulation.opt_out, regulation.child) if rule]
    return any(path_names(path)[0] == RECORD_FIELD for when in rules for path in when)


def _split_paths(texts: Sequence[str]) -> tuple[Path, ...]:
    return tuple(map(path_names, texts))


def _type_at(tree: FieldTree, path: Path) -> Any:
    entry: Any = tree
    for name in path:
        entry = entry[name]
    return entry


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
    """Returns struct fields that these tables store as undeclared: those not read at all, and objects read in part.

    Raises:
        NotColumnarError: schema evolution added columns to a table.
    """
    nulls: set[Path] = set()
    parts: list[tuple[Path, ReadFields]] = []

    def walk(subtree: FieldTree, fields: ReadFields, prefix: Path) -> None:
        for name, kind in subtree.items():
            path = (*prefix, name)
            inner = fields.get(name)
            if name not in fields:
                nulls.add(path)
            elif inner is not None and type(kind) is dict:
                walk(kind, inner, path)
            elif inner is not None:
                parts.append((path, inner))

    for of_table in tables:
        if of_table.has_evolved_columns:
            raise NotColumnarError("schema evolution added columns to one of their tables")
        walk(tree, of_table.read_fields, ())
    return frozenset(nulls), tuple(parts)
