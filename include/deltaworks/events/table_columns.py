"""Builds the columns of one table: declared columns, evolved columns and undeclared fields.

Files of a prepared batch may differ from the table's current schema. A table may be suspended because a column's
declared type differs from its type on disk; the fan-out then still writes files with the declared type. After the
declaration is corrected, committing these files unchanged would break readers. So they are compared with the table, and
rewritten if all values convert exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from deltaworks.control import paths
from deltaworks.control.records.prepared import PreparedBatch, PreparedTable
from deltaworks.errors import ContractError
from deltaworks.events.columns import ConversionErrors, convert_column
from deltaworks.events.events import parent_objects
from deltaworks.events.evolution import EvolvedColumn, value_kind
from deltaworks.events.formats.value_conversion import parse_text
from deltaworks.events.reasons import Reason, ReasonCode
from deltaworks.events.source_fields import PARTITION_FIELD
from deltaworks.events.task_findings import TaskFindings
from deltaworks.events.undeclared_fields import (
    json_text,
    json_type,
    leaf_fields,
    read_fields,
    rescued_json,
    restore_field,
    undeclared_fields,
)
from deltaworks.specs.base import format_path, path_names
from deltaworks.specs.mutation import MUTABLE_COLUMNS
from deltaworks.specs.pipeline_sections import EventSpec
from deltaworks.specs.table import ENVELOPE_COLUMNS, RESCUED_COLUMN, REST_COLUMN, ColumnSpec, TableSpec
from deltaworks.specs.times import ISO_8601, TimeFormat
from deltaworks.specs.types import ColumnType, parse_type
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.files import WrittenFile, open_parquet, read_parquet, write_file
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.variant import delta_schema, encode_json, variant_array

Reasons = dict[int, list[Reason]]
ColumnKey = tuple[tuple[str, ...], ColumnType, TimeFormat, bool]


def add_errors(reasons: Reasons, errors: ConversionErrors, path: str) -> None:
    """Adds a reason for each conversion error of the values at `path`."""
    for index, error in errors.items():
        reasons.setdefault(index, []).append(Reason(error.code, f"{path}{error.path}", error.detail))


def add_missing(reasons: Reasons, array: pa.Array, errors: ConversionErrors, path: str) -> None:
    """Adds a reason for each absent value at `path`; values that failed to convert have a reason already."""
    if not array.null_count:
        return
    for index in pc.indices_nonzero(pc.is_null(array)).to_pylist():
        if index not in errors:
            missing = Reason(ReasonCode.MISSING_REQUIRED, path, f"{path} is missing")
            reasons.setdefault(index, []).append(missing)


@dataclass(frozen=True, slots=True)
class EventColumn:
    """A column and the path of its values in an event. With `values_are_text`, values are texts to be parsed."""

    name: str
    path: tuple[str, ...]
    kind: ColumnType
    times: TimeFormat = ISO_8601
    required: bool = False
    values_are_text: bool = False

    @property
    def key(self) -> ColumnKey:
        """Key that is equal for equal columns of several tables."""
        return self.path, self.kind, self.times, self.values_are_text

    def values(self, parents: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Returns the column's values from the parent objects; texts are parsed in text formats."""
        values = [parent.get(self.path[-1]) for parent in parents]
        return [parse_text(value, self.kind) for value in values] if self.values_are_text else values

    def add_reasons(self, reasons: Reasons, array: pa.Array, errors: ConversionErrors) -> None:
        """Adds a reason for each value of this column that fails to convert, or is required and missing."""
        path = format_path(self.path)
        add_errors(reasons, errors, path)
        if self.required:
            add_missing(reasons, array, errors, path)


class SharedColumns:
    """Columns of the same events. Each is built once and shared by all tables."""

    def __init__(self, events: Sequence[Mapping[str, Any]]) -> None:
        self.events = events
        self._parents: dict[tuple[str, ...], Sequence[Mapping[str, Any]]] = {(): events}
        self._converted: dict[ColumnKey, tuple[pa.Array, ConversionErrors]] = {}

    def column(self, item: EventColumn) -> tuple[pa.Array, ConversionErrors]:
        """Returns the column as an array, and its conversion errors by index."""
        key = item.key
        if key not in self._converted:
            parent = item.path[:-1]
            if parent not in self._parents:
                self._parents[parent] = parent_objects(self.events, parent)
            self._converted[key] = convert_column(item.values(self._parents[parent]), item.kind, times=item.times)
        return self._converted[key]


#: Maximum length of reported paths, because producers choose the field names.
_MAX_PATH_CHARACTERS = 200


class TableColumns:
    """Builds the columns of one table from events.

    Args:
        values_are_text: all fields are texts, except the look-up results.
        lookup_fields: fields with results of look-ups.
    """

    def __init__(
        self,
        table: TableSpec,
        event: EventSpec,
        evolved: tuple[EvolvedColumn, ...] = (),
        *,
        values_are_text: bool = False,
        lookup_fields: Collection[str] = (),
    ) -> None:
        self._table = table
        #: True if undeclared fields are stored or rejected.
        self.keeps_undeclared_fields = table.evolve != "ignore"
        self.columns = [
            _event_column(spec, values_are_text=values_are_text, lookup_fields=lookup_fields) for spec in table.columns
        ]
        self._evolved = [(column, parse_type(column.type)) for column in evolved]
        #: True if schema evolution may have added columns.
        self.has_evolved_columns = bool(evolved)
        self.read_fields = read_fields(table, event, tuple(column.path for column in evolved), lookup_fields)
        mutation_schema = arrow_schema(dict(MUTABLE_COLUMNS) if table.mutable is not None else {})
        self._mutation_columns = [(field.name, field.type) for field in mutation_schema]
        self.schema = arrow_schema(dict(ENVELOPE_COLUMNS) | {spec.name: spec.type for spec in table.columns})

    def convert(self, shared: SharedColumns) -> tuple[list[pa.Array], Reasons]:
        """Returns the declared columns as arrays, and the reasons of rejected events by index."""
        reasons: Reasons = {}
        arrays = []
        for item in self.columns:
            array, errors = shared.column(item)
            item.add_reasons(reasons, array, errors)
            arrays.append(array)
        return arrays, reasons

    def add_undeclared_fields(
        self,
        rows: pa.Table,
        events: Sequence[dict[str, Any]],
        findings: TaskFindings,
        load_lossless: Callable[[int], Any],
    ) -> pa.Table:
        """Returns `rows` of accepted `events`, extended by evolved columns and the column of undeclared fields.

        Args:
            load_lossless: returns the event at an index with number literals, or None; called if a double may be
                rounded.

        Raises:
            ContractError: FIELD_UNDECLARED, if the table declares `evolve: fail`.
        """
        evolve = self._table.evolve
        extras = [undeclared_fields(event, self.read_fields) for event in events]
        if evolve == "fail":
            self._reject_undeclared(rows, extras)
            return rows
        arrays = [self._evolved_column(index, events, extras) for index in range(len(self._evolved))]
        if evolve == "add_columns":
            self._report_new_fields(extras, findings)
        rows = rows.append_column(*self._rest_column(extras, load_lossless))
        for (evolved, _), array in zip(self._evolved, arrays, strict=True):
            rows = rows.append_column(evolved.name, array)
        return rows

    def with_mutation_columns(self, rows: pa.Table) -> pa.Table:
        """Returns `rows` with the columns that mutations set later; all values are null.

        Nulls are written explicitly, because readers cannot skip a file without statistics for the column.
        """
        for name, field in self._mutation_columns:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, field))
        return rows

    def _evolved_column(self, index: int, events: Sequence[dict[str, Any]], extras: list[dict[str, Any]]) -> pa.Array:
        """Returns the values of an evolved column. Values of another type remain undeclared."""
        evolved, kind = self._evolved[index]
        parents = parent_objects(events, evolved.path[:-1]) if len(evolved.path) > 1 else events
        values = [parent.get(evolved.path[-1]) for parent in parents]
        array, errors = convert_column(values, kind)
        for row in errors:
            restore_field(extras[row], evolved.path, values[row])
        return array

    def _rest_column(
        self, extras: Sequence[dict[str, Any]], load_lossless: Callable[[int], Any]
    ) -> tuple[str, pa.Array]:
        """Returns name and values of the column for undeclared fields."""
        texts = [rescued_json(extra, partial(load_lossless, index)) for index, extra in enumerate(extras)]
        if self._table.keep_rest == "text":
            return RESCUED_COLUMN, pa.array(texts, pa.string())
        variants = [None if text is None else _variant(text, extra) for text, extra in zip(texts, extras, strict=True)]
        return REST_COLUMN, variant_array(variants)

    def _report_new_fields(self, extras: Sequence[dict[str, Any]], findings: TaskFindings) -> None:
        paths = {evolved.path for evolved, _ in self._evolved}
        for extra in extras:
            for path, value in leaf_fields(extra, self.read_fields):
                if path not in paths:
                    findings.record_new_field(self._table.name, path, value_kind(value))

    def _reject_undeclared(self, rows: pa.Table, extras: Sequence[dict[str, Any]]) -> None:
        for index, extra in enumerate(extras):
            if extra:
                # Errors go to logs, heartbeats and alerts, which must not contain event values.
                path, value = leaf_fields(extra, self.read_fields)[0]
                name = format_path(path)[:_MAX_PATH_CHARACTERS]
                raise ContractError(
                    "FIELD_UNDECLARED",
                    f"Table {self._table.name!r} has no column for field {name!r} (JSON type {json_type(value)}) "
                    f"in event {rows['_position'][index]} of file event {rows['_seq'][index]}, and declares "
                    "evolve: fail.",
                )


def _event_column(spec: ColumnSpec, *, values_are_text: bool, lookup_fields: Collection[str]) -> EventColumn:
    path = path_names(spec.path)
    texts = (values_are_text and path[0] not in lookup_fields) or path[0] == PARTITION_FIELD
    return EventColumn(spec.name, path, parse_type(spec.type), spec.time_format, spec.required, texts)


def _variant(text: str, extra: dict[str, Any]) -> dict[str, bytes]:
    """Returns the JSON of undeclared fields as a variant. Those nested too deeply for it are texts."""
    try:
        return encode_json(text)
    except RecursionError:
        return encode_json(json_text({name: _text_if_nested(value) for name, value in extra.items()}))


def _text_if_nested(value: Any) -> Any:
    return json_text(value) if isinstance(value, dict | list) else value


def conform_prepared_table(
    lake: Lake, table: DeltaTable, batch: PreparedBatch, prepared_table: PreparedTable
) -> PreparedTable:
    """Returns the table's part of a prepared batch with files that match the table's schema, rewritten if necessary.

    Idempotent: files of an interrupted rewrite become orphans, and the step decides which files are committed.

    Raises:
        ContractError: PREPARED_FILES_INCOMPATIBLE, a value does not convert exactly or the table lacks a column.
    """
    key = paths.table(batch.pipeline, prepared_table.table)
    files = [WrittenFile(**record) for record in prepared_table.files]
    # The commit of the batch adds these columns to the table.
    new_columns = frozenset(str(record["name"]) for record in prepared_table.new_columns)
    conformed = [
        _conform_file(lake, table, key, file, batch_id=batch.batch_id, new_columns=new_columns) for file in files
    ]
    if conformed == files:
        return prepared_table
    return prepared_table.replace(files=tuple(asdict(file) for file in conformed))


def _conform_file(
    lake: Lake, table: DeltaTable, key: str, file: WrittenFile, *, batch_id: int, new_columns: frozenset[str]
) -> WrittenFile:
    root = arrow_path(lake.storage, key)
    on_disk = {field.name: field.type for field in table.schema().fields}
    with lake.filesystem.open_input_file(f"{root}/{file.path}") as source:
        schema = open_parquet(source).schema_arrow
    types = {field.name: field.type for field in delta_schema(schema).fields}
    unknown = sorted(set(types) - set(on_disk) - new_columns)
    if unknown:
        raise _incompatible_files_error(table, batch_id, f"the table has no column {', '.join(unknown)}")
    different = [name for name, kind in types.items() if name in on_disk and on_disk[name] != kind]
    if not different:
        return file
    schema_on_disk = pa.schema(table.schema().to_arrow())
    with lake.filesystem.open_input_file(f"{root}/{file.path}") as source:
        rows = read_parquet(source)
    for name in different:
        try:
            column = rows.column(name).cast(schema_on_disk.field(name).type, safe=True)
        except pa.ArrowException:
            # Arrow's message contains the value, so it is not chained.
            raise _incompatible_files_error(
                table, batch_id, f"{name} has a value that does not fit {on_disk[name]}"
            ) from None
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    for name, value in file.partition.items():
        rows = rows.append_column(name, pa.array([value] * rows.num_rows, pa.string()))
    return write_file(lake.filesystem, root, rows, partition=file.partition)


def _incompatible_files_error(table: DeltaTable, batch_id: int, why: str) -> ContractError:
    return ContractError(
        "PREPARED_FILES_INCOMPATIBLE",
        f"{table.table_uri}: files of batch {batch_id} do not match the table's schema: {why}.",
    )
