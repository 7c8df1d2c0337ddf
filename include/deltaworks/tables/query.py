"""SQL over the lake without a JVM: a DuckDB connection with all tables as views.

DuckDB's Delta extension is not used, because it must be downloaded. Views over deltalake's Arrow datasets read the same
snapshot, and push down filters and columns. `VERSION AS OF 12` and `TIMESTAMP AS OF '2026-05-01'` after a table read
older versions, with Spark's syntax.

For external engines the same tables are registered in a Spark catalog: a session's own, a Hive metastore or Unity
Catalog. It stores only names and locations, so registered tables need no updates.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import sqlglot
from deltalake import DeltaTable
from sqlglot import exp
from sqlglot.errors import ErrorLevel, SqlglotError

from deltaworks.control import paths
from deltaworks.errors import ConfigError, ContractError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.gold import view_order
from deltaworks.specs.mutation import DELETED_COLUMN, ORG_COLUMN
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import TableSpec
from deltaworks.tables.lake import Lake, duckdb_source
from deltaworks.tables.versions import Versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Selects the quarantine rows that represent an entire object: deleted, unreadable, empty or in another format than
#: declared.
_FILE_QUARANTINE = """
    CREATE VIEW "{schema}"."file_quarantine" AS
    SELECT quarantine_date, object_key, reasons[1].code AS reason, reasons[1].detail AS detail, _ingested_at, _batch_id,
        _seq
    FROM "{schema}"."quarantine" WHERE _position = -1
"""
QUARANTINE = "quarantine"
LEDGER_TABLES = ("checkpoint_store", "batch_metadata_store", "progress")
#: Matches statements that may use time travel. Only for these, `deltaworks.tables.query` is loaded.
AS_OF_CLAUSE = re.compile(
    r"\b(?:VERSION|TIMESTAMP|SYSTEM_TIME)\s+AS\s+OF\b|\bAT\s*\(\s*(?:VERSION|TIMESTAMP)\s*=>", re.IGNORECASE
)
#: Matches statements that list tables. For these, all tables must be opened.
_CATALOG_STATEMENT = re.compile(
    r"\b(?:show|desc|describe|pragma|information_schema)\b|\b(?:duckdb|pg|sqlite)_", re.IGNORECASE
)


def connect(
    catalog: Catalog, *, statement: str = "", open_table: Callable[[str], DeltaTable | None] | None = None
) -> tuple[duckdb.DuckDBPyConnection, list[str]]:
    """Opens a connection with every existing table as `<pipeline>.<table>`. Returns it with the table names.

    Contains gold, live, keyed, bronze, reference and quarantine tables, `file_quarantine`, tables maintained by
    mutations, the ledger and progress tables, and declared views. Rows deleted by mutations are excluded.
    `<table>_named` is a mutable table whose ids are shown with their names. The connection is a snapshot: open a new
    one to see later commits.

    Args:
        statement: the query to run. Tables that neither the query nor its views mention are not opened. Empty opens
            all.
        open_table: opens the table at a key, None if it does not exist; by default at its newest version.
    """
    lake = Lake(catalog.environment.lake)
    open_table = open_table or lake.open
    connection = duckdb.connect(":memory:")
    connection.execute("SET TimeZone = 'UTC'")
    names = []
    text = "" if _CATALOG_STATEMENT.search(statement) else statement.lower()
    for pipeline, spec in catalog.pipelines.items():
        connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{pipeline}"')
        searched_text = _expand_views(spec, text)
        for name, key in table_keys(spec).items():
            if searched_text and not _may_be_referenced(spec, name, searched_text):
                continue
            table = open_table(key)
            if table is None:
                continue
            bind_table(connection, lake, table, schema=pipeline, name=name)
            names.append(f"{pipeline}.{name}")
        if f"{pipeline}.{QUARANTINE}" in names:
            bind_file_quarantine(connection, pipeline)
            names.append(f"{pipeline}.file_quarantine")
        names += _create_named_views(connection, spec, names)
        names += _create_declared_views(connection, spec, names, folder=catalog.folder(pipeline))
    return connection, names


def table_keys(spec: PipelineSpec) -> dict[str, str]:
    """Returns the object keys of a pipeline's queryable tables by name, including tables that do not exist yet."""
    declared = [table.name for table in spec.tables] + [table.name for table in spec.live]
    declared += [keyed.name for keyed in spec.keyed_tables]
    declared += [table.name for table in spec.gold.tables] + [*spec.engine_tables]
    declared += [reference.name for reference in spec.references] + [model.name for model in spec.models]
    declared += [spec.mutations.names, spec.mutations.intervals] if spec.mutations is not None else []
    keys = {name: paths.table(spec.pipeline, name) for name in declared}
    return keys | {name: paths.pipeline_control(spec.pipeline, name) for name in LEDGER_TABLES}


def named_views(spec: PipelineSpec) -> Mapping[str, TableSpec]:
    """Returns a pipeline's mutable tables by the name of the view that resolves their ids to names."""
    return {f"{table.name}_named": table for table in spec.tables if table.mutable is not None}


def bind_table(connection: duckdb.DuckDBPyConnection, lake: Lake, table: DeltaTable, *, schema: str, name: str) -> None:
    """Creates the view `schema.name` over the table at its open version, without rows deleted by mutations."""
    connection.register(f"{schema}__{name}", duckdb_source(lake, table))
    mutable = any(field.name == DELETED_COLUMN for field in table.schema().fields)
    not_deleted = f' WHERE NOT coalesce("{DELETED_COLUMN}", false)' if mutable else ""
    connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
    connection.execute(f'CREATE VIEW "{schema}"."{name}" AS SELECT * FROM "{schema}__{name}"{not_deleted}')


def bind_file_quarantine(connection: duckdb.DuckDBPyConnection, schema: str) -> None:
    """Creates the view `file_quarantine` in a schema that has `quarantine`."""
    connection.execute(_FILE_QUARANTINE.format(schema=schema))


def bind_named_view(
    connection: duckdb.DuckDBPyConnection,
    spec: PipelineSpec,
    table: TableSpec,
    *,
    schema: str,
    rows: str,
    names: str | None,
) -> None:
    """Creates the view of a mutable table in which ids are shown with names; ids without a name are shown unchanged.

    Args:
        schema: schema of the view.
        rows: schema of the table.
        names: schema of the names table; None if there is none.
    """
    id_column = table.mutable.id if table.mutable is not None else ""
    display_name, names_join = f'rows_."{id_column}"', ""
    if spec.mutations is not None and names is not None:
        names_join = (
            f'LEFT JOIN "{names}"."{spec.mutations.names}" AS names_ '
            f'ON names_."{ORG_COLUMN}" = rows_."{ORG_COLUMN}" AND names_.id = {display_name}'
        )
        display_name = f"coalesce(names_.name, {display_name})"
    connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
    connection.execute(
        f'CREATE VIEW "{schema}"."{table.name}_named" AS '
        f'SELECT rows_.*, {display_name} AS "{_name_column(table, id_column)}" '
        f'FROM "{rows}"."{table.name}" AS rows_ {names_join}'
    )


def _may_be_referenced(spec: PipelineSpec, name: str, text: str) -> bool:
    """Returns whether a lower-case statement may refer to a table, directly or through its view with names."""
    return name.lower() in text or (spec.mutations is not None and name == spec.mutations.names and "_named" in text)


def _expand_views(spec: PipelineSpec, text: str) -> str:
    """Returns the statement with the names of the tables appended that its declared views read."""
    for view in reversed(view_order(spec.views)):
        if text and view.name.lower() in text:
            text = " ".join((text, *view.reads)).lower()
    return text


def _create_declared_views(
    connection: duckdb.DuckDBPyConnection, spec: PipelineSpec, existing: Collection[str], *, folder: Path
) -> list[str]:
    """Creates the pipeline's declared views, except those over missing tables.

    A view with invalid SQL is created too, and raises its error when it is queried. Other views are not affected.
    """
    created: list[str] = []
    for view in view_order(spec.views):
        if any(f"{spec.pipeline}.{name}" not in {*existing, *created} for name in view.reads):
            continue
        file = folder / view.sql
        # The WITH clause binds the tables, so that the view reads its own pipeline's tables with any search path.
        tables = ", ".join(
            f'"{name}" AS NOT MATERIALIZED (SELECT * FROM "{spec.pipeline}"."{name}")' for name in view.reads
        )
        create_view = f'CREATE VIEW "{spec.pipeline}"."{view.name}" AS'
        try:
            sql = file.read_text(encoding="utf-8").rstrip().rstrip(";")
            # A closing bracket in the text could end the brackets below and start a second statement, so the text is
            # parsed on its own first.
            statement_types = [statement.type for statement in connection.extract_statements(sql)]
            if statement_types != [duckdb.StatementType.SELECT]:
                raise duckdb.ParserException("write one SELECT and nothing else")
            connection.execute(f'{create_view} WITH {tables} SELECT * FROM (\n{sql}\n) AS "view"')
        except (duckdb.Error, OSError, UnicodeDecodeError) as error:
            problem = f"{file}: {' '.join(str(error).split())}".replace("'", "''")
            connection.execute(f"{create_view} SELECT error('{problem}') AS problem")
        created.append(f"{spec.pipeline}.{view.name}")
    return created


def _create_named_views(
    connection: duckdb.DuckDBPyConnection, spec: PipelineSpec, existing: Collection[str]
) -> list[str]:
    """Creates the views of mutable tables in which ids are shown with names."""
    created = []
    pipeline = spec.pipeline
    for view, table in named_views(spec).items():
        if f"{pipeline}.{table.name}" not in existing or f"{pipeline}.{view}" in existing:
            continue
        has_names = spec.mutations is not None and f"{pipeline}.{spec.mutations.names}" in existing
        bind_named_view(connection, spec, table, schema=pipeline, rows=pipeline, names=pipeline if has_names else None)
        created.append(f"{pipeline}.{view}")
    return created


def _name_column(table: TableSpec, id_column: str) -> str:
    """Returns the name of the column with names, such as `contact_name` for `contact_id`; unique in the table."""
    preferred = f"{id_column.removesuffix('_id')}_name"
    return preferred if preferred not in table.column_types() else f"{id_column}_shown"


#: Suffix of the view without rows deleted by mutations. The table itself contains these rows, flagged as deleted.
CURRENT_SUFFIX = "_current"


def registration_statements(
    catalog: Catalog,
    pipelines: Collection[str] = (),
    *,
    into: str = "",
    scheme: str = "s3a",
) -> tuple[list[str], list[str]]:
    """Returns the Spark SQL statements that register all existing tables, and the names of missing tables.

    The statements can be run repeatedly: new tables are added, and existing entries are neither changed nor dropped.
    Opens each table.

    Args:
        pipelines: by default all.
        into: the Spark catalog, such as `unity`; by default the session's own.
        scheme: URI scheme for a lake on S3: `s3a` for Spark, `s3` for Unity, Trino and Glue.

    Raises:
        ConfigError: PIPELINE_UNKNOWN.
    """
    lake, storage = Lake(catalog.environment.lake), catalog.environment.lake
    statements: list[str] = []
    missing: list[str] = []
    for pipeline in pipelines or catalog.pipelines:
        keys = table_keys(catalog.pipeline(pipeline))
        schema = f"{_quoted(into)}.{_quoted(pipeline)}" if into else _quoted(pipeline)
        created: list[str] = []
        for name, key in keys.items():
            table = lake.open(key)
            if table is None:
                missing += [] if name in LEDGER_TABLES else [f"{pipeline}.{name}"]
                continue
            location = storage.uri(key).replace("s3://", f"{scheme}://", 1)
            created.append(
                f"CREATE TABLE IF NOT EXISTS {schema}.{_quoted(name)} USING delta LOCATION '{_escaped(location)}'"
            )
            if (
                any(field.name == DELETED_COLUMN for field in table.schema().fields)
                and name + CURRENT_SUFFIX not in keys
            ):
                created.append(_create_view(f"{schema}.{_quoted(name + CURRENT_SUFFIX)}", f"{schema}.{_quoted(name)}"))
        if created:
            statements += [f"CREATE SCHEMA IF NOT EXISTS {schema}", *created]
    return statements, missing


def register_tables(spark: SparkSession, catalog: Catalog, pipelines: Collection[str] = (), *, into: str = "") -> int:
    """Registers all existing tables in a session's catalog. Returns the number of tables and views.

    Call it at the start of a session, and again after new tables were created. Needs the settings of
    `deltaworks.specs.spark_conf`, which `build_session` applies.
    """
    statements, _ = registration_statements(catalog, pipelines, into=into)
    for statement in statements:
        spark.sql(statement)
    return sum(not statement.startswith("CREATE SCHEMA") for statement in statements)


def external_session_settings(catalog: Catalog) -> Iterator[tuple[str, str]]:
    """Yields the settings that a Spark session outside of Deltaworks needs to read the lake, without credentials."""
    from deltaworks.specs.spark_conf import SESSION_SETTINGS

    for name in ("spark.sql.extensions", "spark.sql.catalog.spark_catalog", "spark.sql.session.timeZone"):
        yield name, SESSION_SETTINGS[name][0]
    lake = catalog.environment.lake
    if lake.scheme == "s3":
        yield f"spark.hadoop.fs.s3a.bucket.{lake.bucket}.endpoint.region", lake.region
        yield f"spark.hadoop.fs.s3a.bucket.{lake.bucket}.path.style.access", str(lake.path_style).lower()


def _create_view(view: str, table: str) -> str:
    return (
        f"CREATE OR REPLACE VIEW {view} AS SELECT * FROM {table} WHERE NOT coalesce({_quoted(DELETED_COLUMN)}, false)"
    )


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


_DIALECT = "duckdb"
_SYNTAX_HINT = "Write PIPELINE.TABLE VERSION AS OF 12, or TIMESTAMP AS OF '2026-05-01 06:00', which is UTC."


@dataclass(frozen=True, slots=True)
class _TableReference:
    """A table with an AS OF clause in a statement: position `start` to `end` (exclusive), and the requested version or
    time.
    """

    parts: tuple[str, ...]
    kind: str
    value: exp.Expression
    start: int
    end: int


class TimeTravel:
    """Creates views of the past versions that a statement reads, in one connection."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, catalog: Catalog) -> None:
        self._connection, self._catalog = connection, catalog
        self._lake = Lake(catalog.environment.lake)
        self._tables: dict[str, Versions] = {}
        self._created_views: set[tuple[str, str]] = set()
        self._read_versions: list[tuple[Versions, int]] = []

    def rewrite(self, statement: str) -> str:
        """Returns the statement with each AS OF clause replaced by a reference to the view of that version.

        Raises:
            ConfigError: AS_OF_INVALID, not a version or time of a table.
            ContractError: TABLE_VERSION_UNAVAILABLE, TABLE_LOG_GAP.
        """
        for reference in sorted(_table_references(statement), key=lambda mention: mention.start, reverse=True):
            view_name = ".".join(f'"{part}"' for part in self._view_for(reference))
            statement = statement[: reference.start] + view_name + statement[reference.end :]
        return statement

    def missing_files_error(self) -> ContractError | None:
        """Returns the error if files of a requested version no longer exist; None if all exist."""
        return next(
            filter(None, (versions.missing_files_error(version) for versions, version in self._read_versions)), None
        )

    def _view_for(self, reference: _TableReference) -> tuple[str, str]:
        """Returns schema and name of the view that replaces a table reference."""
        qualified_name = ".".join(reference.parts)
        pipelines = {*self._catalog.pipelines, *self._catalog.invalid_pipelines()}
        pipeline, table = reference.parts[0].lower(), reference.parts[-1].lower()
        if len(reference.parts) != 2 or pipeline not in pipelines:
            raise _as_of_error(f"{qualified_name} is not a table of a pipeline; only these have versions.")
        value = self._as_of_value(reference)
        spec = self._catalog.pipelines.get(pipeline)
        keys = {} if spec is None else table_keys(spec)
        if spec is not None and table == "file_quarantine" and self._versions(spec, QUARANTINE).newest >= 0:
            schema = self._create_view(spec, QUARANTINE, value)
            self._create_once(schema, table, lambda: bind_file_quarantine(self._connection, schema))
            return schema, table
        if spec is not None and table in named_views(spec) and table not in keys:
            return self._create_named_view(spec, table, value), table
        if spec is None or table not in keys or self._versions(spec, table).newest < 0:
            # The table does not exist; DuckDB's error lists the existing ones.
            return pipeline, table
        return self._create_view(spec, table, value), table

    def _create_view(self, spec: PipelineSpec, table: str, value: int | dt.datetime) -> str:
        """Creates the view of a table at a version or time, once per connection. Returns its schema."""
        versions = self._versions(spec, table)
        version = value if isinstance(value, int) else versions.version_at(value)
        schema = f"{spec.pipeline}@v{version}"
        self._create_once(
            schema,
            table,
            lambda: bind_table(self._connection, self._lake, versions.open(version), schema=schema, name=table),
        )
        self._read_versions.append((versions, version))
        return schema

    def _create_named_view(self, spec: PipelineSpec, view: str, value: int | dt.datetime) -> str:
        """Creates the view of a mutable table with names as of a time, once per connection. Returns its schema."""
        if isinstance(value, int):
            raise _as_of_error(
                f"{spec.pipeline}.{view} consists of two tables with different versions.", clause="TIMESTAMP"
            )
        table = named_views(spec)[view]
        schema, names = f"{spec.pipeline}@{value:%Y-%m-%dT%H:%M:%S.%f}", None
        if spec.mutations is not None and not self._versions(spec, spec.mutations.names).was_created_after(value):
            names = self._create_view(spec, spec.mutations.names, value)
        rows = self._create_view(spec, table.name, value)
        self._create_once(
            schema, view, lambda: bind_named_view(self._connection, spec, table, schema=schema, rows=rows, names=names)
        )
        return schema

    def _create_once(self, schema: str, table: str, create: Callable[[], None]) -> None:
        if (schema, table) not in self._created_views:
            create()
            self._created_views.add((schema, table))

    def _versions(self, spec: PipelineSpec, table: str) -> Versions:
        key = table_keys(spec)[table]
        if key not in self._tables:
            self._tables[key] = Versions(self._lake, key, name=f"{spec.pipeline}.{table}")
        return self._tables[key]

    def _as_of_value(self, reference: _TableReference) -> int | dt.datetime:
        """Evaluates the version or time of an AS OF clause; any expression without a table is allowed."""
        text = reference.value.sql(_DIALECT)
        kind = "BIGINT" if reference.kind == "VERSION" else "TIMESTAMPTZ"
        try:
            rows = self._connection.execute(f"SELECT CAST(({text}) AS {kind})").fetchall()
        except duckdb.Error as error:
            raise _as_of_error(f"{text} is no {reference.kind.lower()} of {'.'.join(reference.parts)}.") from error
        value: Any = rows[0][0]
        if value is None:
            raise _as_of_error(f"{text} is no {reference.kind.lower()} of {'.'.join(reference.parts)}: it is null.")
        if isinstance(value, int):
            return value
        at: dt.datetime = value.astimezone(dt.UTC)
        return at


def _table_references(statement: str) -> Iterator[_TableReference]:
    # sqlglot logs a warning for statements it cannot parse; DuckDB reports them.
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    try:
        trees = sqlglot.parse(statement, read=_DIALECT, error_level=ErrorLevel.RAISE)
        tokens = sqlglot.tokenize(statement, read=_DIALECT)
    except SqlglotError as error:
        raise _as_of_error(f"The statement cannot be read: {str(error).splitlines()[0]}") from error
    for tree in trees:
        for table in tree.find_all(exp.Table) if tree is not None else ():
            clause = table.args.get("version") or table.args.get("when")
            if clause is not None:
                yield _table_reference(statement, tokens, table, clause)


def _table_reference(statement: str, tokens: list[Any], table: exp.Table, clause: exp.Expression) -> _TableReference:
    parts, kind, value = table.parts, str(clause.args.get("kind")), clause.args["expression"]
    if isinstance(clause, exp.Version):
        kind = "AS OF" if kind == "AS OF" else "BETWEEN"
    positions = [part.meta for part in parts]
    if kind == "BETWEEN" or not all("end" in position for position in positions):
        raise _as_of_error(f"{table.sql(_DIALECT)} has no valid version or time.")
    position = next(index for index, token in enumerate(tokens) if token.end == positions[-1]["end"])
    is_at_syntax = not isinstance(clause, exp.Version)
    while tokens[position].text.upper() != ("=>" if is_at_syntax else "OF"):
        position += 1
    end = _last_token_of(statement, tokens, position + 1, value)
    return _TableReference(
        parts=tuple(part.name for part in parts),
        kind="VERSION" if (kind if is_at_syntax else str(clause.this)) == "VERSION" else "TIMESTAMP",
        value=value,
        start=positions[0]["start"],
        end=(tokens[end + 1].end if is_at_syntax else tokens[end].end) + 1,
    )


def _last_token_of(statement: str, tokens: list[Any], first: int, value: exp.Expression) -> int:
    """Returns the index of the last token of the expression that starts at token `first`; sqlglot does not
    record it."""
    for last in range(first, len(tokens)):
        try:
            if sqlglot.parse_one(statement[tokens[first].start : tokens[last].end + 1], read=_DIALECT) == value:
                # sqlglot parses `current_timestamp` to the same node with and without brackets.
                return last + 2 if [token.text for token in tokens[last + 1 : last + 3]] == ["(", ")"] else last
        except SqlglotError:
            continue
    raise _as_of_error(f"The end of {value.sql(_DIALECT)} is ambiguous: put it in brackets.")


def _as_of_error(message: str, *, clause: str = "") -> ConfigError:
    return ConfigError("AS_OF_INVALID", message, hint=f"Write {clause} AS OF and a time." if clause else _SYNTAX_HINT)
