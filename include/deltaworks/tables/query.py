"""SQL over the lake without a JVM: a DuckDB connection with all tables as views.

DuckDB's Delta extension is not used, because it must be downloaded. Views over deltalake's Arrow datasets read the same
snapshot, and push down filters and columns.

`deltaworks.tables.spark_catalog` registers the same names in a Spark session, and `deltaworks.catalogs` keeps the
catalogs of other engines up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from pathlib import Path

import duckdb
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from deltaworks.control import paths
from deltaworks.errors import ContractError
from deltaworks.specs.base import describe_duration
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.dag_ids import dag_id
from deltaworks.specs.gold import view_order
from deltaworks.specs.mutation import DELETED_COLUMN, ORG_COLUMN
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.schedules import next_run, schedules_enabled
from deltaworks.specs.table import TableSpec
from deltaworks.tables.lake import Lake, duckdb_source

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
    catalog: Catalog,
    *,
    statement: str = "",
    open_table: Callable[[str], DeltaTable | None] | None = None,
    on_unreadable: Callable[[str, str], None] = lambda name, problem: None,
) -> tuple[duckdb.DuckDBPyConnection, list[str]]:
    """Opens a connection with every existing table as `<pipeline>.<table>`. Returns it with the table names.

    Contains gold, live, keyed, bronze, reference and quarantine tables, `file_quarantine`, tables maintained by
    mutations, the ledger and progress tables, and declared views. Rows deleted by mutations are excluded.
    `<table>_named` is a mutable table whose ids are shown with their names. A table that cannot be read raises its
    error when it is queried; other tables are not affected. The connection is a snapshot: open a new one to see later
    commits.

    Args:
        statement: the query to run. Tables that neither the query nor its views mention are not opened. Empty opens
            all.
        open_table: opens the table at a key, None if it does not exist; by default at its newest version.
        on_unreadable: called with the name of each table that cannot be read, and the reason.
    """
    lake = Lake(catalog.environment.lake)
    open_table = open_table or lake.open
    connection = duckdb.connect(":memory:")
    connection.execute("SET TimeZone = 'UTC'")
    names: list[str] = []
    problems: dict[str, str] = {}
    text = "" if _CATALOG_STATEMENT.search(statement) else statement.lower()
    for pipeline, spec in catalog.pipelines.items():
        connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{pipeline}"')
        searched_text = _expand_views(spec, text)
        for name, key in table_keys(spec).items():
            if searched_text and not _may_be_referenced(spec, name, searched_text):
                continue
            try:
                table = open_table(key)
                if table is None:
                    continue
                bind_table(connection, lake, table, schema=pipeline, name=name)
                names.append(f"{pipeline}.{name}")
            except (ContractError, DeltaError, pa.ArrowException) as error:
                problems[f"{pipeline}.{name}"] = describe_unreadable(f"{pipeline}.{name}", error)
        names += bind_views(connection, spec, names, problems, folder=catalog.folder(pipeline))
    for name, problem in problems.items():
        bind_problem(connection, name, problem)
        on_unreadable(name, problem)
    return connection, [*names, *problems]


def bind_views(
    connection: duckdb.DuckDBPyConnection,
    spec: PipelineSpec,
    existing: Collection[str],
    problems: dict[str, str],
    *,
    folder: Path,
) -> list[str]:
    """Creates the views over a pipeline's bound tables: `file_quarantine`, views with names, declared views.

    Views over missing tables are not created. Returns the names of the created views, as `<pipeline>.<view>`.

    Args:
        existing: names of the bound tables, as `<pipeline>.<table>`.
        problems: reasons of tables that cannot be read, by name. Views over them are added.
        folder: of the pipeline, with the SQL files of its views.
    """
    names = list(existing)
    created: list[str] = []
    if f"{spec.pipeline}.{QUARANTINE}" in names:
        bind_file_quarantine(connection, spec.pipeline)
        created.append(f"{spec.pipeline}.file_quarantine")
    created += _create_named_views(connection, spec, [*names, *created])
    return created + _create_declared_views(connection, spec, [*names, *created], problems, folder=folder)


def describe_unreadable(name: str, error: Exception) -> str:
    """Returns why a table cannot be read, for listings of tables."""
    if isinstance(error, ContractError):
        return f"{error.message} Next: {error.hint}"
    return f"{name} cannot be read: {' '.join(str(error).split())}"


def bind_problem(connection: duckdb.DuckDBPyConnection, name: str, problem: str) -> None:
    """Creates the view `name`, with its schema, which raises the problem when it is queried."""
    schema, _, view = name.partition(".")
    text = problem.replace("'", "''")
    connection.execute(f'CREATE OR REPLACE VIEW "{schema}"."{view}" AS SELECT error(\'{text}\') AS problem')


def table_keys(spec: PipelineSpec) -> dict[str, str]:
    """Returns the object keys of a pipeline's queryable tables by name, including tables that do not exist yet."""
    declared = [table.name for table in spec.tables] + [table.name for table in spec.live]
    declared += [keyed.name for keyed in spec.keyed_tables]
    declared += [table.name for table in spec.gold.tables] + [*spec.engine_tables]
    declared += [reference.name for reference in spec.references] + [model.name for model in spec.models]
    declared += [spec.mutations.names, spec.mutations.intervals] if spec.mutations is not None else []
    keys = {name: paths.table(spec.pipeline, name) for name in declared}
    return keys | {name: paths.pipeline_control(spec.pipeline, name) for name in LEDGER_TABLES}


def how_a_table_is_created(spec: PipelineSpec, name: str, *, now: datetime) -> str:
    """Returns what creates a declared table that does not exist yet: the stream, a scheduled run, or a command."""
    pipeline = spec.pipeline
    gold = next((table for table in spec.gold.tables if table.name == name), None)
    if gold is not None:
        command = f"`deltaworks gold build {pipeline} --tables {name}` builds it now"
        lag = spec.gold.lag_of(name)
        if gold in spec.gold.stream_refreshed_tables and lag is not None:
            return f"The stream builds it within {describe_duration(lag)} of its first rows; {command}."
        return f"{_scheduled(spec.gold.schedule, dag_id(pipeline, 'gold'), 'builds it', now)}{command}."
    model = next((model for model in spec.models if name in (model.name, model.warnings)), None)
    if model is not None:
        command = f"`deltaworks models train {pipeline} {model.name}` trains it now"
        return f"{_scheduled(spec.training.schedule, dag_id(pipeline, 'models'), 'trains it', now)}{command}."
    view = next((view for view in spec.views if view.name == name), None)
    if view is not None:
        return f"It is a view of {', '.join(view.reads)}, which must exist first."
    if any(reference.name == name for reference in spec.references):
        return f"`deltaworks gold build {pipeline}` reads it from its file."
    return f"Start the stream, or wait until it has started: `deltaworks status` shows the state of {pipeline}."


def _scheduled(schedule: str | None, dag: str, verb: str, now: datetime) -> str:
    if schedule is None or not schedules_enabled():
        return ""
    return f"{dag} {verb} at {next_run(schedule, now):%Y-%m-%d %H:%M} UTC; "


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
        f'SELECT rows_.*, {display_name} AS "{name_column(table, id_column)}" '
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
    connection: duckdb.DuckDBPyConnection,
    spec: PipelineSpec,
    existing: Collection[str],
    problems: dict[str, str],
    *,
    folder: Path,
) -> list[str]:
    """Creates the pipeline's declared views, except those over missing tables.

    A view with invalid SQL is created too, and raises its error when it is queried. Other views are not affected. A
    view over a table or view that cannot be read is added to `problems`.
    """
    created: list[str] = []
    for view in view_order(spec.views):
        unreadable = [problems[name] for read in view.reads if (name := f"{spec.pipeline}.{read}") in problems]
        if unreadable:
            problems[f"{spec.pipeline}.{view.name}"] = unreadable[0]
            continue
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
            bind_problem(connection, f"{spec.pipeline}.{view.name}", f"{file}: {' '.join(str(error).split())}")
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


def name_column(table: TableSpec, id_column: str) -> str:
    """Returns the name of the column with names, such as `contact_name` for `contact_id`; unique in the table."""
    preferred = f"{id_column.removesuffix('_id')}_name"
    return preferred if preferred not in table.column_types() else f"{id_column}_shown"
