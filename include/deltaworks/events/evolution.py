"""Schema evolution for tables that declare `evolve: add_columns`.

Parsing a batch reports fields that no column reads. If some of them can become columns, the batch is parsed a second
time with these columns, so that their values are not lost. The prepared batch names the columns, and they are added to
the table before its commit. Only the first batch with a new field pays for the second parse.

The table's own schema stores the path of an added column as field metadata.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from deltalake import CommitProperties, DeltaTable, Field, Transaction
from deltalake.schema import PrimitiveType

from deltaworks.errors import ContractError
from deltaworks.events.task_findings import Path
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import RESCUED_COLUMN, TableSpec
from deltaworks.tables.commit import Step, check_owner_epoch, guarded_commit, refresh

PATH_METADATA = "deltaworks.path"
#: Maximum number of added columns per table. Further fields stay in the rescued column.
MAX_EVOLVED_COLUMNS = 200
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
#: Column type by the set of kinds that a field's values have. Fields with other combinations stay in the rescued
#: column.
_TYPE_OF_KINDS = {
    frozenset({"str"}): "string",
    frozenset({"bool"}): "boolean",
    frozenset({"int"}): "long",
    frozenset({"float"}): "double",
    frozenset({"int", "float"}): "double",
}


@dataclass(frozen=True, slots=True)
class EvolvedColumn:
    """A column added by schema evolution: name, path of its values in an event, and type."""

    name: str
    path: Path
    type: str


EvolvedColumns = Mapping[str, tuple[EvolvedColumn, ...]]


def value_kind(value: Any) -> str:
    """Returns the kind of a value, which determines the type of a new column. Integers beyond 64 bits have none.

    They were parsed as doubles, in which different ids may be equal.
    """
    if type(value) in (int, float) and not -(1 << 63) <= value < 1 << 63:
        return "large"
    return type(value).__name__


def evolved_columns(handle: DeltaTable, table: TableSpec) -> tuple[EvolvedColumn, ...]:
    """Returns the columns added to a table so far, from its loaded schema."""
    if table.evolve != "add_columns":
        return ()
    declared = table.column_types()
    return tuple(
        EvolvedColumn(field.name, tuple(json.loads(str(field.metadata[PATH_METADATA]))), str(field.type.type))
        for field in handle.schema().fields
        if PATH_METADATA in field.metadata and field.name not in declared
    )


def new_columns(
    spec: PipelineSpec, evolved: EvolvedColumns, new_fields: Mapping[str, Mapping[Path, Iterable[str]]]
) -> dict[str, tuple[EvolvedColumn, ...]]:
    """Returns the columns to add for newly found fields, for the tables in `evolved`. Fields with mixed types
    get none."""
    columns = {}
    for name, paths in sorted(new_fields.items()):
        if name not in evolved:
            continue
        present = evolved[name]
        used_names = {column.lower() for column in spec.table(name).column_types()} | {RESCUED_COLUMN}
        used_names |= {column.name.lower() for column in present}
        added: list[EvolvedColumn] = []
        for path, kinds in sorted(paths.items()):
            kind = _TYPE_OF_KINDS.get(frozenset(kinds))
            column = _unused_name(path, used_names) if kind else None
            if kind is None or column is None or len(present) + len(added) >= MAX_EVOLVED_COLUMNS:
                continue
            used_names.add(column.lower())
            added.append(EvolvedColumn(column, path, kind))
        if added:
            columns[name] = tuple(added)
    return columns


def _unused_name(path: Path, used_names: set[str]) -> str | None:
    """Returns the field's name, or a name built from its path if a column has the former in any case."""
    for name in (path[-1], "_".join(path)):
        if _NAME.fullmatch(name) and name.lower() not in used_names:
            return name
    return None


def merge_evolved(evolved: EvolvedColumns, added: EvolvedColumns) -> EvolvedColumns:
    """Returns the columns of both mappings by table."""
    return {name: (*evolved.get(name, ()), *added.get(name, ())) for name in {**evolved, **added}}


def to_records(columns: Sequence[EvolvedColumn]) -> tuple[dict[str, Any], ...]:
    """Converts columns to the form stored in a prepared batch."""
    return tuple({**asdict(column), "path": list(column.path)} for column in columns)


def add_columns(
    table: DeltaTable, records: Sequence[Mapping[str, Any]], *, owner: Step | None, user_metadata: str
) -> None:
    """Adds the columns recorded in a prepared batch to a table. Idempotent; existing columns stay unchanged.

    Raises:
        FencedError: OWNER_FENCED.
        ContractError: TABLE_SCHEMA_DIFFERS, a column of that name has another type.
        ConcurrencyError: COMMIT_CONTENDED.
    """

    def attempt(_: int) -> bool:
        refresh(table)
        missing = _missing_columns(table, records)
        if not missing:
            return False
        if owner is not None:
            check_owner_epoch(table, owner)
        properties = CommitProperties(
            custom_metadata={"userMetadata": user_metadata},
            max_commit_retries=0,
            app_transactions=[Transaction(owner.app_id, owner.version)] if owner is not None else [],
        )
        table.alter.add_columns(missing, commit_properties=properties)
        refresh(table)
        return True

    guarded_commit(table.table_uri, attempt, action="add columns")


def _missing_columns(table: DeltaTable, records: Sequence[Mapping[str, Any]]) -> list[Field]:
    on_disk = {field.name.lower(): field for field in table.schema().fields}
    missing = []
    for record in records:
        kind = PrimitiveType(record["type"])
        present = on_disk.get(record["name"].lower())
        if present is None:
            metadata = {PATH_METADATA: json.dumps(record["path"])}
            missing.append(Field(record["name"], kind, nullable=True, metadata=metadata))
        elif present.type != kind or present.name != record["name"]:
            raise ContractError(
                "TABLE_SCHEMA_DIFFERS",
                f"{table.table_uri}: column {present.name!r} has type {present.type}, but a prepared batch adds "
                f"{record['name']!r} as {record['type']}.",
                hint="Rename the column that was added by hand; the batch is committed then.",
            )
    return missing
