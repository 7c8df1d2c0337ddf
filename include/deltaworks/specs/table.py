"""Spec of a bronze table: which events it receives, its columns, and rules that check its rows.

Rules are SQL conditions on each row, validated against the column types when the spec is read. A row passes a rule
unless it is false; like SQL's CHECK, null passes. The dialect is DuckDB's. An expression can only use the row's
columns: no other table, aggregate, clock or random function. Valid rules are cached: DuckDB's import would double the
time of each DAG parse and each command.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from deltaworks.specs.base import FieldPath, KeyPath, Name, Problem, Spec, as_tuple, raise_problems, suggest_name
from deltaworks.specs.keyed import KeyedSpec, KeyedTable, keyed_problems
from deltaworks.specs.mutation import (
    MUTABLE_COLUMNS,
    NOTIFICATION_COLUMNS,
    ORG_COLUMN,
    ChangeNotificationSpec,
    MutableSpec,
)
from deltaworks.specs.privacy import EraseReason, RetentionDays, TableErase
from deltaworks.specs.result_cache import ResultCache, cache_folder, code_digest
from deltaworks.specs.spec_change_effects import (
    CHANGES_MEANING,
    NEXT_MAINTENANCE,
    NEXT_START,
    Edit,
    Effect,
    NamedItems,
    OptionalSection,
)
from deltaworks.specs.spec_errors import closest_match
from deltaworks.specs.times import CHANGES_TIMES, PatternText, TimeFormat, TimeUnit, ZoneName, time_format_problems
from deltaworks.specs.types import (
    VARIANT,
    Array,
    ColumnType,
    Decimal,
    Map,
    Primitive,
    TypeText,
    contains_type,
    parse_type,
)

if TYPE_CHECKING:
    import duckdb

_DUCKDB_NAMES = {
    "string": "VARCHAR",
    "int": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "timestamp": "TIMESTAMPTZ",
    "binary": "BLOB",
    VARIANT: "VARIANT",
}
_UNKNOWN_COLUMN = re.compile(r'[Cc]olumn(?: named)? "([^"]+)"')
#: Clock functions that SQL writes without parentheses.
_CLOCK_FUNCTIONS = frozenset({"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"})
#: DuckDB settings without access to files, network or downloaded extensions.
_SANDBOX_CONFIG = {
    "threads": "1",
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
#: Maximum number of cached rules, more than a project has.
MAX_CACHED_RULES = 2_000
#: The code that decides, together with DuckDB, whether a rule is valid.
_CODE_FILES = (Path(__file__), Path(__file__).with_name("types.py"))


# Rules.


class TableRuleSpec(Spec):
    """A condition on each row, and what happens to rows for which it is false."""

    name: Name
    check: Annotated[str, StringConstraints(min_length=1)]
    on_fail: Literal["warn", "quarantine", "fail"] = "quarantine"
    alert_percent: float | None = Field(
        default=None,
        ge=0,
        lt=100,
        description="with `warn`: percentage of the last hour's rows above which an alert is raised; by default never",
    )
    alert_rows_min: int = Field(default=100, ge=1, description="minimum number of rows in that hour for the alert")

    @model_validator(mode="after")
    def _check_alert(self) -> Self:
        if self.alert_percent is not None and self.on_fail != "warn":
            text = f"alert_percent is a key of on_fail: warn, and this is {self.on_fail}: remove it"
            raise_problems([(("alert_percent",), text)])
        return self


def open_duckdb() -> duckdb.DuckDBPyConnection:
    """Opens an isolated in-memory DuckDB: one thread, UTC, no files and no network."""
    import duckdb

    connection = duckdb.connect(":memory:", config=dict(_SANDBOX_CONFIG))
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def duckdb_type(kind: ColumnType) -> str:
    """Returns the DuckDB name of a type."""
    match kind:
        case Primitive(name):
            return _DUCKDB_NAMES[name]
        case Decimal(precision, scale):
            return f"DECIMAL({precision},{scale})"
        case Array(element):
            return f"{duckdb_type(element)}[]"
        case Map(value):
            return f"MAP(VARCHAR, {duckdb_type(value)})"
        case _:
            fields = ", ".join(f'"{name}" {duckdb_type(field)}' for name, field in kind.fields)
            return f"STRUCT({fields})"


def select_item(check: str) -> str:
    """Returns a rule as an item of a SELECT list. Line breaks end a trailing comment, which would hide the SQL after
    it.
    """
    return f"(\n{check}\n)"


def table_rule_problem(check: str, columns: Mapping[str, str]) -> str | None:
    """Returns the error of a rule over columns with these types; None if it is valid."""
    return _cached_problem(check, tuple(columns.items()))


@functools.lru_cache(maxsize=1024)
def _cached_problem(check: str, columns: tuple[tuple[str, str], ...]) -> str | None:
    code = code_digest(("duckdb",), _CODE_FILES)
    cache = _rule_cache(cache_folder() / "valid_rules.json")
    digest = hashlib.sha256(json.dumps([code, check, columns]).encode()).hexdigest()
    if code and digest in cache:
        return None
    problem = _validate(check, columns)
    if code and problem is None:
        cache.put(digest, True)
        cache.save()
    return problem


@functools.lru_cache(maxsize=4)
def _rule_cache(file: Path) -> ResultCache[bool]:
    return ResultCache(file, max_entries=MAX_CACHED_RULES, is_valid=lambda value: value is True)


def _validate(check: str, columns: tuple[tuple[str, str], ...]) -> str | None:
    """Validates a rule with DuckDB. Does nothing without DuckDB, for example in a Lambda function that only receives
    events.
    """
    try:
        import duckdb
    except ModuleNotFoundError:
        return None

    with open_duckdb() as connection:
        forbidden_use = _forbidden_use(connection, check)
        if forbidden_use is not None:
            return forbidden_use
        declared = ", ".join(f'"{name}" {duckdb_type(parse_type(kind))}' for name, kind in columns)
        connection.execute(f"CREATE TABLE rows_ ({declared})").fetchall()
        connection.execute("INSERT INTO rows_ DEFAULT VALUES").fetchall()
        query = f"SELECT {select_item(check)} FROM (SELECT * FROM rows_) AS row_"
        try:
            # A WHERE condition allows no aggregate and no window function.
            kinds = [str(kind) for kind in connection.sql(f"{query} WHERE {select_item(check)}").types]
            # Constants are only parsed on execution: comparing a text with a number fails here instead of in a batch.
            connection.execute(query).fetchall()
        except duckdb.Error as error:
            return _duckdb_message(error, [name for name, _ in columns])
    return None if kinds == ["BOOLEAN"] else f"the result is {', '.join(kinds)}, not boolean"


def _forbidden_use(connection: duckdb.DuckDBPyConnection, check: str) -> str | None:
    """Returns a construct in the expression's syntax tree that rules must not use; None if there is none."""
    ((serialized,),) = connection.execute(
        "SELECT json_serialize_sql($1::VARCHAR)", [f"SELECT {select_item(check)}"]
    ).fetchall()
    parsed = json.loads(serialized)
    if parsed.get("error"):
        return f"invalid SQL expression: {str(parsed.get('error_message', '')).splitlines()[0]}"
    statements = parsed["statements"]
    node = statements[0]["node"]
    if len(statements) != 1 or node.get("type") != "SELECT_NODE" or len(node["select_list"]) != 1:
        return "write one expression"
    if (node.get("from_table") or {}).get("type") not in (None, "EMPTY"):
        return "a rule can only read its row, not a table"
    for part in _ast_nodes(node["select_list"]):
        if part.get("class") == "SUBQUERY":
            return "a rule can only read its row: remove the SELECT"
        name = str(part.get("function_name", "")).lower()
        if part.get("class") == "COLUMN_REF" and str(part["column_names"][0]).lower() in _CLOCK_FUNCTIONS:
            name = str(part["column_names"][0]).lower()
        if name in _volatile_functions():
            return f"{name}() is nondeterministic; for the arrival time use _ingested_at"
    return None


def _ast_nodes(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from _ast_nodes(item)


@functools.lru_cache(maxsize=1)
def _volatile_functions() -> frozenset[str]:
    with open_duckdb() as connection:
        names = connection.execute(
            "SELECT function_name FROM duckdb_functions() WHERE stability IN ('VOLATILE', 'CONSISTENT_WITHIN_QUERY')"
        ).fetchall()
    return frozenset(str(name).lower() for (name,) in names) | _CLOCK_FUNCTIONS


def _duckdb_message(error: Exception, columns: list[str]) -> str:
    text = str(error).splitlines()[0]
    unknown = _UNKNOWN_COLUMN.search(text)
    if unknown is None or unknown[1] in columns:
        return text
    nearest = difflib.get_close_matches(unknown[1], columns, n=1, cutoff=0.5)
    advice = f"did you mean {nearest[0]!r}?" if nearest else f"its columns are {', '.join(columns)}"
    return f"no column {unknown[1]!r} in this table; {advice}"


Scalar = str | int | float | bool
Evolve = Literal["ignore", "rescue", "add_columns", "fail"]

#: Columns that the engine adds to every bronze table. Declared columns cannot use these names.
ENVELOPE_COLUMNS: tuple[tuple[str, str], ...] = (
    ("event_id", "string"),
    ("event_name", "string"),
    ("event_time", "timestamp"),
    ("event_date", "date"),
    ("_ingested_at", "timestamp"),
    ("_batch_id", "long"),
    ("_seq", "long"),
    ("_position", "long"),
)
#: Columns for undeclared fields, in tables with schema evolution: as JSON, and as VARIANT with `keep_rest: variant`.
RESCUED_COLUMN = "_rescued"
REST_COLUMN = "_rest"
DUPLICATE_COLUMN = "_duplicate"  # true if a row repeats an earlier event
RESERVED_TABLES = ("quarantine",)
#: Types whose partition values all readers serialize in the same way in a Delta log.
PARTITION_TYPES = ("string", "int", "long", "boolean", "date")

_FIXED_ON_DISK = Edit(
    Effect.NEW_GENERATION,
    "Existing files cannot be converted. Declare it under a new name and fill that with `deltaworks reprocess "
    "{pipeline} --tables NEW_NAME --from-start`; or recreate all tables: `deltaworks stop {pipeline}`, "
    "`deltaworks pipelines start-over {pipeline}`.",
)
_ROUTING_CHANGE = Edit(
    Effect.BACKFILL,
    "Earlier rows follow the old declaration. After a restart: `deltaworks reprocess {pipeline} --tables {table} "
    "--from-start`.",
)
_COLUMNS = NamedItems(
    added=Edit(
        Effect.BACKFILL,
        "It is null in earlier rows. After a restart: `deltaworks reprocess {pipeline} --tables {table} --from-start`.",
    ),
    removed=Edit(Effect.RESTART, "The column remains in the table and is null in new rows."),
)
_REST_CHANGE = Edit(
    Effect.BACKFILL,
    "Undeclared fields of earlier rows remain in the other column, which is null in new rows. After a restart: "
    "`deltaworks reprocess {pipeline} --tables {table} --from-start`.",
)
_RULES_CHANGE = Edit(
    Effect.RESTART,
    "Applies from the stream's next start. Rows quarantined by an old rule remain there until they are replayed.",
)
_DUPLICATES_CHANGE = Edit(
    Effect.RESTART,
    "Applies from the stream's next start. Earlier rows are not flagged, but new rows are compared with them.",
)
_MUTABLE_CHANGE = OptionalSection(
    Edit(
        Effect.RESTART,
        "The stream adds the columns `_deleted` and `_mutation` at its next start, or keeps existing ones. "
        "Requests also change earlier rows if these have the origin columns.",
    )
)
_KEYED_CHANGE = OptionalSection(
    Edit(
        Effect.RESTART,
        "The stream builds a new keyed table from all rows of {table} at its next start; a removed one remains "
        "and is no longer updated.",
    )
)
_ANNOUNCES_CHANGE = Edit(Effect.RESTART, "Applies from the stream's next start.")


# Columns and tables.


class ColumnSpec(Spec):
    """A column of a bronze table and the path of its value in events."""

    name: Annotated[Name, _FIXED_ON_DISK]
    path: Annotated[FieldPath, CHANGES_MEANING]
    type: Annotated[TypeText, _FIXED_ON_DISK]
    required: Annotated[bool, NEXT_START] = False
    unit: Annotated[TimeUnit, CHANGES_MEANING] = "iso8601"
    description: Annotated[str, NEXT_START] = ""
    format: Annotated[PatternText | None, CHANGES_TIMES] = None
    zone: Annotated[ZoneName | None, CHANGES_TIMES] = None

    @model_validator(mode="after")
    def _check_time_format(self) -> Self:
        problems: list[Problem] = [((key,), text) for key, text in time_format_problems(self.time_format)]
        kind, pattern = parse_type(self.type), self.time_format.pattern
        for key in ("format", "zone"):
            if getattr(self, key) is not None and not contains_type(kind, "timestamp", "date"):
                problems.append(
                    ((key,), (f"it only applies to timestamp or date columns; {self.name!r} is {self.type}"))
                )
        if (
            self.zone is not None
            and pattern is not None
            and not pattern.has_time_of_day
            and not contains_type(kind, "timestamp")
        ):
            problems.append((("zone",), "a date without a time of day is the same in every zone; remove it"))
        raise_problems(problems)
        return self

    @property
    def time_format(self) -> TimeFormat:
        """The format of the column's times; None for other columns."""
        return TimeFormat(self.unit, self.format, self.zone)


class DuplicatesSpec(Spec):
    """Flags repeated events on arrival, by comparing their ids with those of the last `flag_within_days` days.

    Each Python worker needs 16 bytes per id, for the newest `max_ids` ids at most.
    """

    flag_within_days: int = Field(ge=1, le=400)
    max_ids: int = Field(default=20_000_000, ge=1)


class TableSpec(Spec):
    """A bronze table: which events it receives and its columns."""

    name: Annotated[Name, _FIXED_ON_DISK]
    description: Annotated[str, NEXT_START] = ""
    when: Annotated[dict[FieldPath, Annotated[tuple[Scalar, ...], BeforeValidator(as_tuple)]], _ROUTING_CHANGE] = Field(
        default_factory=dict
    )
    catch_all: Annotated[bool | Literal["rest"], _ROUTING_CHANGE] = False
    columns: Annotated[tuple[ColumnSpec, ...], _COLUMNS] = ()
    partition_by: Annotated[tuple[str, ...], _FIXED_ON_DISK] = ("event_date",)
    zorder_by: Annotated[tuple[str, ...], NEXT_MAINTENANCE] = ()
    cluster_by: Annotated[tuple[str, ...], _FIXED_ON_DISK] = Field(default=(), max_length=4)
    writer: Annotated[Literal["fan_out", "spark"], NEXT_START] = "fan_out"
    evolve: Annotated[Evolve, NEXT_START] = "ignore"
    keep_rest: Annotated[Literal["text", "variant"], _REST_CHANGE] = "text"
    rules: Annotated[tuple[TableRuleSpec, ...], _RULES_CHANGE] = ()
    duplicates: Annotated[DuplicatesSpec | None, _DUPLICATES_CHANGE] = None
    mutable: Annotated[MutableSpec | None, _MUTABLE_CHANGE] = None
    announces: Annotated[ChangeNotificationSpec | None, _ANNOUNCES_CHANGE] = None
    keyed: Annotated[KeyedSpec | None, _KEYED_CHANGE] = None
    retention_days: RetentionDays = None
    erase: TableErase = "rows"
    erase_reason: EraseReason = ""

    @model_validator(mode="before")
    @classmethod
    def _default_partitions(cls, declared: Any) -> Any:
        if isinstance(declared, dict) and declared.get("cluster_by") and "partition_by" not in declared:
            return {**declared, "partition_by": ()}
        return declared

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        raise_problems(
            [
                *_column_problems(self),
                *_layout_problems(self),
                *_rule_problems(self),
                *_mutable_problems(self),
                *_announcing_problems(self),
                *(keyed_problems(self.keyed, self.column_types()) if self.keyed is not None else ()),
                *_writer_problems(self),
            ]
        )
        return self

    def column_types(self) -> dict[str, str]:
        """Returns all columns with their types in table order: envelope columns first, notification columns last."""
        if self.announces is not None:
            return {column.name: column.type for column in self.columns} | NOTIFICATION_COLUMNS
        types = dict(ENVELOPE_COLUMNS) | {column.name: column.type for column in self.columns}
        if self.evolve in ("rescue", "add_columns"):
            types |= {REST_COLUMN: VARIANT} if self.keep_rest == "variant" else {RESCUED_COLUMN: "string"}
        types |= {DUPLICATE_COLUMN: "boolean"} if self.duplicates is not None else {}
        return types | (dict(MUTABLE_COLUMNS) if self.mutable is not None else {})

    def keyed_table(self) -> KeyedTable | None:
        """Returns the keyed table derived from this table; None if it declares none."""
        if self.keyed is None:
            return None
        return KeyedTable(
            name=self.keyed.table or f"latest_{self.name}",
            history=self.name,
            by=self.keyed.by,
            newest_by=self.keyed.newest_by,
            deleted_when=self.keyed.deleted_when,
            partition_by=self.keyed.partition_by,
            history_types=self.column_types(),
            is_history_mutable=self.mutable is not None,
        )


def _engine_columns(table: TableSpec) -> tuple[tuple[str, str], ...]:
    """Returns the columns that the engine adds."""
    return ENVELOPE_COLUMNS if table.announces is None else tuple(NOTIFICATION_COLUMNS.items())


def _column_problems(table: TableSpec) -> Iterator[Problem]:
    """Yields problems in `when` and `catch_all`, and in the names of columns."""
    if table.name in RESERVED_TABLES:
        yield ("name",), f"the name {table.name!r} is reserved; choose another"
    if table.announces is None and bool(table.catch_all) == bool(table.when):
        yield (
            (),
            "give `when` a condition, or set catch_all: true for all events, or catch_all: rest for events that "
            "match no `when`",
        )
    engine = {name for name, _ in _engine_columns(table)}
    first: dict[str, KeyPath] = {}
    for index, column in enumerate(table.columns):
        key_path: KeyPath = ("columns", index, "name")
        if column.name in engine:
            yield key_path, (f"column {column.name} is added by the engine and cannot be declared; choose another name")
        elif column.name in first:
            text = f"column {column.name} is declared twice; give one of them another name"
            yield key_path, text, (first[column.name],)
        first.setdefault(column.name, key_path)


def _layout_problems(table: TableSpec) -> Iterator[Problem]:
    """Yields problems with partition, Z-order and clustering columns."""
    types = dict(_engine_columns(table)) | {column.name: column.type for column in table.columns}
    for field in ("partition_by", "zorder_by", "cluster_by"):
        for index, key in enumerate(getattr(table, field)):
            if key not in types:
                yield (field, index), f"{key!r} is not a column of this table; {_nearest_column(key, types)}"
            elif field == "partition_by" and types[key] not in PARTITION_TYPES:
                allowed = ", ".join(PARTITION_TYPES)
                yield (field, index), f"{key!r} is a {types[key]}; partition types are {allowed}"
            elif field == "zorder_by" and key in table.partition_by:
                yield (field, index), f"{key} is a partition column: Z-order cannot use it"
    if not table.cluster_by:
        return
    if table.partition_by or table.zorder_by:
        yield (
            ("cluster_by",),
            "cluster_by replaces partition_by and zorder_by: declare it without them",
        )
    if table.writer != "spark":
        yield ("cluster_by",), "cluster_by needs writer: spark; delta-rs cannot commit to clustered tables"
    if table.mutable is not None or table.announces is not None:
        yield ("cluster_by",), "cluster_by requires an append-only table, neither mutable nor announcing"


def _nearest_column(name: str, columns: Iterable[str]) -> str:
    nearest = closest_match(name, columns)
    return f"did you mean {nearest!r}?" if nearest is not None else f"its columns are {', '.join(columns)}"


def _rule_problems(table: TableSpec) -> Iterator[Problem]:
    types = dict(ENVELOPE_COLUMNS) | {column.name: column.type for column in table.columns}
    first: dict[str, KeyPath] = {}
    for index, rule in enumerate(table.rules):
        key_path: KeyPath = ("rules", index, "name")
        if rule.name in first:
            yield key_path, f"rule {rule.name!r} is declared twice", (first[rule.name],)
        first.setdefault(rule.name, key_path)
        problem = table_rule_problem(rule.check, types)
        if problem is not None:
            yield ("rules", index, "check"), f"rule {rule.name!r}: {problem}"


def _writer_problems(table: TableSpec) -> Iterator[Problem]:
    """Yields options that the table's `writer` or `evolve` does not support."""
    if table.keep_rest == "variant" and table.evolve not in ("rescue", "add_columns"):
        yield (
            ("keep_rest",),
            f"keep_rest: variant needs evolve: rescue or add_columns; evolve: {table.evolve} stores no undeclared "
            "fields",
        )
    if table.evolve == "add_columns" and table.writer == "spark":
        yield (
            ("evolve",),
            "evolve: add_columns needs writer: fan_out; with writer: spark use evolve: rescue",
        )
    if table.duplicates is not None and (table.writer == "spark" or "event_id" in table.partition_by):
        yield (
            ("duplicates",),
            "duplicates need writer: fan_out, and event_id cannot be a partition column",
        )


def _mutable_problems(table: TableSpec) -> Iterator[Problem]:
    """Yields problems in `mutable`: current and original values need separate columns."""
    mutable = table.mutable
    if mutable is None:
        return
    columns = {column.name: column for column in table.columns}
    if ORG_COLUMN not in columns or columns[ORG_COLUMN].type != "string":
        yield ("mutable",), f"a mutable table needs a column {ORG_COLUMN!r} of type string"
    pairs = _mutable_columns(mutable)
    for key_path, name in pairs:
        if name not in columns:
            yield key_path, f"there is no column {name!r} in this table; {suggest_name(name, columns)}"
        elif name in table.partition_by:
            yield key_path, f"{name!r} is a partition column: changing values and their originals cannot be"
    named = [name for _, name in pairs]
    for name in sorted({name for name in named if named.count(name) > 1}):
        yield ("mutable",), f"column {name!r} is used twice; each value needs its own column"
    if mutable.id in columns and columns[mutable.id].type != "string":
        yield ("mutable", "id"), f"{mutable.id!r} is {columns[mutable.id].type}; ids must be of type string"
    yield from _origin_problems(columns, mutable.id, mutable.origin, ("mutable", "origin"))
    for name, origin in mutable.fields.items():
        yield from _origin_problems(columns, name, origin, ("mutable", "fields", name))


def _mutable_columns(mutable: MutableSpec) -> list[tuple[tuple[str | int, ...], str]]:
    """Returns the columns named in `mutable`, each with its key path."""
    key_paths: list[tuple[tuple[str | int, ...], str]] = [
        (("mutable", "id"), mutable.id),
        (("mutable", "origin"), mutable.origin),
    ]
    for name, origin in mutable.fields.items():
        key_paths += [(("mutable", "fields", name), name), (("mutable", "fields", name), origin)]
    return key_paths


def _origin_problems(
    columns: Mapping[str, ColumnSpec], name: str, origin: str, key_path: tuple[str | int, ...]
) -> Iterator[Problem]:
    if name not in columns or origin not in columns:
        return
    current, original = columns[name], columns[origin]
    if (current.path, current.type, current.time_format) != (original.path, original.type, original.time_format):
        written = ", ".join(filter(None, (current.path, current.type, current.unit, current.format, current.zone)))
        yield (
            key_path,
            f"{origin!r} is the original of {name!r}: give it the same path, type, unit, format and zone ({written})",
        )


def _announcing_problems(table: TableSpec) -> Iterator[Problem]:
    """Yields options that a notification table cannot have."""
    if table.announces is None:
        return
    for name in ("when", "catch_all", "rules", "duplicates", "mutable", "keyed"):
        if getattr(table, name):
            yield (
                (name,),
                f"{table.name!r} announces {table.announces.table!r} and receives no events: remove {name}",
            )
    if table.evolve != "ignore":
        yield ("evolve",), f"{table.name!r} announces {table.announces.table!r} and cannot evolve: remove evolve"
