"""Registers the lake's tables and views in the catalog of a Spark session that has no metastore.

Names are those of `deltaworks sql`: a mutable table is shown without its deleted rows, `file_quarantine` and
`<table>_named` exist, and declared views do if they are the same in Spark. The catalog is in memory: it ends with its
application, and all sessions of the application share it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from deltaworks.control.foreign_errors import describe_cause
from deltaworks.errors import ContractError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.gold import view_order
from deltaworks.specs.mutation import DELETED_COLUMN, ORG_COLUMN
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import TableSpec
from deltaworks.tables.changes import sql_literal
from deltaworks.tables.lake import Lake
from deltaworks.tables.query import LEDGER_TABLES, QUARANTINE, describe_unreadable, name_column, named_views, table_keys
from deltaworks.tables.view_translation import UntranslatableViewError, view_in_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILE_QUARANTINE: Final = "file_quarantine"
_REASON_LENGTH: Final = 300


@dataclass(frozen=True, slots=True)
class Registration:
    """What a session needs to have all tables and views by name.

    Args:
        schemas: the pipelines with a table.
        statements: the statement that creates a table or view, by its name `<pipeline>.<name>`, in an order in which
            each finds what it reads.
        missing: the tables that do not exist yet.
        excluded: why the other tables and views are not registered, by name.
    """

    schemas: list[str] = field(default_factory=list)
    statements: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    excluded: dict[str, str] = field(default_factory=dict)

    @property
    def script(self) -> list[str]:
        """All statements. Running them again adds new tables and changes no entry but views."""
        return [*map(_create_schema, self.schemas), *self.statements.values()]


def registration(catalog: Catalog, pipelines: Collection[str] = (), *, existing: Collection[str] = ()) -> Registration:
    """Returns the statements that register all existing tables and views, and what is excluded.

    Opens each table that is not registered yet.

    Args:
        pipelines: by default all.
        existing: names of registered tables, which need neither a look nor a statement.

    Raises:
        ConfigError: PIPELINE_UNKNOWN.
    """
    lake, result = Lake(catalog.environment.lake), Registration()
    for pipeline in pipelines or catalog.pipelines:
        spec, before = catalog.pipeline(pipeline), len(result.statements)
        names = {name for name in table_keys(spec) if f"{pipeline}.{name}" in existing}
        for name, key in table_keys(spec).items():
            if name in names:
                continue
            full_name = f"{pipeline}.{name}"
            try:
                table = lake.open(key)
            except (ContractError, DeltaError) as error:
                result.excluded[full_name] = describe_unreadable(full_name, error)
                continue
            if table is None:
                result.missing.extend([] if name in LEDGER_TABLES else [full_name])
                continue
            location = catalog.environment.lake.spark_uri(key)
            result.statements[full_name] = _table_statement(_full_name(pipeline, name), table, location)
            names.add(name)
        for name, statement in _engine_views(spec, names):
            result.statements[f"{pipeline}.{name}"] = statement
        _add_declared_views(catalog, spec, names, result)
        if len(result.statements) > before:
            result.schemas.append(pipeline)
    return result


def _table_statement(entry: str, table: DeltaTable, location: str) -> str:
    """Returns the statement that creates the entry of a table.

    A table whose rows can be marked as deleted is a view by path, so that no name shows these rows.
    """
    if any(field.name == DELETED_COLUMN for field in table.schema().fields):
        rows = f"SELECT * FROM delta.{_quoted(location)} WHERE NOT coalesce({_quoted(DELETED_COLUMN)}, false)"
        return _view(entry, rows)
    return f"CREATE TABLE IF NOT EXISTS {entry} USING delta LOCATION {sql_literal(location, 'string')}"


def _engine_views(spec: PipelineSpec, names: set[str]) -> Iterator[tuple[str, str]]:
    """Yields `file_quarantine` and views with names, and adds them to the names."""
    if QUARANTINE in names:
        names.add(_FILE_QUARANTINE)
        reason = "reasons[0].code AS reason, reasons[0].detail AS detail"
        rows = (
            f"SELECT quarantine_date, object_key, {reason}, _ingested_at, _batch_id, _seq "
            f"FROM {_full_name(spec.pipeline, QUARANTINE)} WHERE _position = -1"
        )
        yield _FILE_QUARANTINE, _view(_full_name(spec.pipeline, _FILE_QUARANTINE), rows)
    for name, table in named_views(spec).items():
        if table.name in names and name not in names:
            names.add(name)
            yield name, _view(_full_name(spec.pipeline, name), _named_rows(spec, table, names))


def _named_rows(spec: PipelineSpec, table: TableSpec, names: Collection[str]) -> str:
    id_column = table.mutable.id if table.mutable is not None else ""
    shown, join = f"rows_.{_quoted(id_column)}", ""
    if spec.mutations is not None and spec.mutations.names in names:
        org = _quoted(ORG_COLUMN)
        join = (
            f" LEFT JOIN {_full_name(spec.pipeline, spec.mutations.names)} AS names_ "
            f"ON names_.{org} = rows_.{org} AND names_.id = {shown}"
        )
        shown = f"coalesce(names_.name, {shown})"
    column = _quoted(name_column(table, id_column))
    return f"SELECT rows_.*, {shown} AS {column} FROM {_full_name(spec.pipeline, table.name)} AS rows_{join}"


def _add_declared_views(catalog: Catalog, spec: PipelineSpec, names: set[str], result: Registration) -> None:
    """Adds the declared views over existing tables, and those that are not the same in Spark to `excluded`."""
    for view in view_order(spec.views):
        name = f"{spec.pipeline}.{view.name}"
        if missing := [read for read in view.reads if read not in names]:
            result.excluded[name] = f"the catalog does not have {', '.join(missing)}"
            continue
        try:
            sql = view_in_spark((catalog.folder(spec.pipeline) / view.sql).read_text(encoding="utf-8"))
        except (UntranslatableViewError, OSError, UnicodeDecodeError) as error:
            result.excluded[name] = str(error)
            continue
        # The WITH clause binds the tables, so that the view reads its own pipeline's tables in any session.
        tables = ", ".join(
            f"{_quoted(read)} AS (SELECT * FROM {_full_name(spec.pipeline, read)})" for read in view.reads
        )
        names.add(view.name)
        result.statements[name] = _view(_full_name(spec.pipeline, view.name), f"WITH {tables} SELECT * FROM ({sql})")


class SparkCatalog:
    """The catalog of an application, in which tables and views are registered as they appear. Used by one thread.

    Args:
        on_progress: called before each statement, which may take seconds.
    """

    def __init__(self, spark: SparkSession, *, on_progress: Callable[[], None] = lambda: None) -> None:
        self._spark, self._on_progress = spark, on_progress
        self._statements: dict[str, str] = {}

    def register(self, catalog: Catalog, pipelines: Collection[str] = ()) -> dict[str, str]:
        """Registers what the catalog lacks, replaces or drops views that changed, and returns why others are excluded.

        Entries that a session dropped come back. Needs the settings of `deltaworks.specs.spark_conf`, which
        `build_session` applies.

        Raises:
            ConfigError: PIPELINE_UNKNOWN.
        """
        names = {pipeline: self._names(pipeline) for pipeline in pipelines or catalog.pipelines}
        existing = {f"{pipeline}.{name}" for pipeline, of_pipeline in names.items() for name in of_pipeline or ()}
        needed = registration(catalog, pipelines, existing=existing)
        excluded = dict(needed.excluded)
        for schema in (schema for schema in needed.schemas if names[schema] is None):
            self._spark.sql(_create_schema(schema))
        for name, statement in needed.statements.items():
            if name in existing and self._statements.get(name) == statement:
                continue
            self._on_progress()
            if reason := self._create(name, statement):
                excluded[name] = reason
            else:
                self._statements[name] = statement
        # A view that changed to an excluded one must not answer with its former text.
        for name in excluded.keys() & self._statements.keys():
            self._drop_view(name)
            del self._statements[name]
        return excluded

    def _names(self, pipeline: str) -> set[str] | None:
        """Returns the entries of a schema; None if there is none. A statement would be a query in the UI each time."""
        entries: Any = self._spark._jsparkSession.sharedState().externalCatalog()
        return set(entries.listTables(pipeline).mkString(" ").split()) if entries.databaseExists(pipeline) else None

    def _create(self, name: str, statement: str) -> str:
        """Runs a statement; returns why it is excluded, empty if it is registered.

        DuckDB subtracts dates to a number of days, Spark to an interval: a view that shows one has other values.
        """
        try:
            self._spark.sql(statement)
            fields = self._spark.table(name).schema.fields if "VIEW" in statement.split("`", 1)[0] else ()
        except Exception as error:  # any error of Spark is reported for this entry alone
            return describe_cause(error)[:_REASON_LENGTH]
        intervals = [one.name for one in fields if "interval" in one.dataType.simpleString()]
        if intervals:
            self._drop_view(name)
            return f"in Spark {', '.join(intervals)} would be an interval"
        return ""

    def _drop_view(self, name: str) -> None:
        self._spark.sql(f"DROP VIEW IF EXISTS {_full_name(*name.split('.'))}")


def register_tables(spark: SparkSession, catalog: Catalog, pipelines: Collection[str] = ()) -> dict[str, str]:
    """Registers all existing tables and views in a session's catalog, and returns why others are excluded, by name.

    Call it at the start of a session, and again after new tables were created.
    """
    return SparkCatalog(spark).register(catalog, pipelines)


def external_session_settings(catalog: Catalog) -> Iterator[tuple[str, str]]:
    """Yields the settings that a Spark session outside of Deltaworks needs to read the lake, without credentials."""
    from deltaworks.specs.spark_conf import SESSION_SETTINGS

    for name in ("spark.sql.extensions", "spark.sql.catalog.spark_catalog", "spark.sql.session.timeZone"):
        yield name, SESSION_SETTINGS[name][0]
    lake = catalog.environment.lake
    if lake.scheme == "s3":
        yield f"spark.hadoop.fs.s3a.bucket.{lake.bucket}.endpoint.region", lake.region
        yield f"spark.hadoop.fs.s3a.bucket.{lake.bucket}.path.style.access", str(lake.path_style).lower()


def _create_schema(schema: str) -> str:
    return f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)}"


def _view(name: str, rows: str) -> str:
    """Returns a view whose columns follow those of its tables."""
    return f"CREATE OR REPLACE VIEW {name} WITH SCHEMA EVOLUTION AS {rows}"


def _full_name(pipeline: str, name: str) -> str:
    return f"{_quoted(pipeline)}.{_quoted(name)}"


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
