"""DuckDB sessions of the SQL server: read-only, confined to the tables that a user may read, one query at a time.

A session is a DuckDB database of its own, so that the memory limit holds for each query, and no query can affect
another. Users with equal access share sessions one after the other. Opening one takes tens of milliseconds, so they
stay open; before each query its tables are bound to the snapshots it reads.

Personal columns are null for users without the right to read them. They keep name, place and type, so that saved
queries, dashboards and the pipeline's own views work for all users. Personal are:

- in bronze tables and quarantine: columns that read a field declared in `privacy`, also as a part of a struct, and
  `event_id` if the id of events is such a field; undeclared fields, which are `_rest`, `_rescued` and columns that
  schema evolution has added; the raw event of quarantine;
- in other tables of the pipeline (gold, live, keyed, reference tables): columns of the same names. Values that are or
  contain a token are null in all other columns too, also in pipelines that read gold of others.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import duckdb
import pyarrow as pa

from deltaworks.control import paths
from deltaworks.errors import ConfigError
from deltaworks.privacy.tokens.envelope_encryption import RANDOM_TOKEN_PREFIX, TOKEN_LENGTH, TOKEN_PREFIX
from deltaworks.specs.base import nearest_names_hint
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.dag_ids import PROJECT
from deltaworks.specs.descriptions import bronze_personal_columns
from deltaworks.specs.gold import names_read
from deltaworks.specs.mutation import DELETED_COLUMN
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sql_server import SqlLimitsSpec
from deltaworks.specs.table import RESCUED_COLUMN, REST_COLUMN
from deltaworks.sql_server.query_log import QUERIES_TABLE
from deltaworks.sql_server.references import CATALOG, HIDDEN_PREFIX, ParsedStatement
from deltaworks.sql_server.snapshots import Snapshot
from deltaworks.sql_server.users import Access
from deltaworks.tables.duckdb_session import confine_connection
from deltaworks.tables.query import QUARANTINE, bind_problem, bind_views, named_views, table_keys

#: Columns with fields that no declaration names, so that nothing says which of them are personal.
_UNDECLARED: Final = frozenset({REST_COLUMN, RESCUED_COLUMN})
#: Columns of quarantine with the event.
_QUARANTINE: Final = frozenset({"raw"})
#: Matches a text that contains a token.
_TOKEN: Final = f"({TOKEN_PREFIX}|{RANDOM_TOKEN_PREFIX})[a-z2-7]{{{TOKEN_LENGTH - len(TOKEN_PREFIX)}}}"


def personal_columns(spec: PipelineSpec, table: str) -> frozenset[str]:
    """Returns the columns of a table that are personal by declaration or name. Empty without personal data."""
    if not _has_personal_data(spec):
        return frozenset()
    bronze = {declared.name: declared for declared in spec.tables}
    own = [bronze[table]] if table in bronze else bronze.values()
    names = _UNDECLARED.union(*(bronze_personal_columns(spec, declared) for declared in own))
    return names | (_QUARANTINE if table in spec.engine_tables else frozenset())


def _has_personal_data(spec: PipelineSpec) -> bool:
    return spec.privacy is not None or bool(spec.private)


def projection(spec: PipelineSpec, table: str, schema: pa.Schema, *, show_personal: bool) -> str:
    """Returns the select list of a table's view."""
    # Gold of other pipelines may bring their tokens.
    if show_personal or not (_has_personal_data(spec) or spec.gold.cross_pipeline_inputs):
        return "*"
    hidden, by_value = personal_columns(spec, table), True
    bronze = next((declared for declared in spec.tables if declared.name == table), None)
    if bronze is not None and _has_personal_data(spec):
        hidden |= {*schema.names} - {*bronze.column_types()}
        # Notifications name the keys of other tables' rows.
        by_value = bronze.announces is not None
    return ", ".join(_expression(field, hidden=field.name in hidden, by_value=by_value) for field in schema)


def _expression(field: pa.Field, *, hidden: bool, by_value: bool) -> str:
    name: str = '"' + field.name.replace('"', '""') + '"'
    if hidden:
        # Not a literal null, whose type would differ.
        return f"CASE WHEN false THEN {name} END AS {name}"
    if not by_value or not _has_text(field.type):
        return name
    return f"CASE WHEN NOT regexp_matches(CAST({name} AS VARCHAR), '{_TOKEN}') THEN {name} END AS {name}"


def _has_text(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_text(kind.field(index).type) for index in range(kind.num_fields))
    return not (pa.types.is_primitive(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind))


_LOGGER = logging.getLogger(__name__)
_FILE_QUARANTINE: Final = "file_quarantine"
#: Tables by schema and name, the key of each in the lake.
Keys = Mapping[tuple[str, str], str]


class Names:
    """The tables and views that a user may read, by schema: those of pipelines, and the log of queries.

    Args:
        catalog: the declarations. access: what the user may read.
    """

    def __init__(self, catalog: Catalog, access: Access) -> None:
        self.catalog, self.access = catalog, access
        self._specs = {name: spec for name, spec in catalog.pipelines.items() if name in access.pipelines}
        # Each query looks its tables up twice, when it is planned and when it starts.
        self._keys = {name: table_keys(spec) for name, spec in self._specs.items()}
        self._keys |= {PROJECT: {QUERIES_TABLE: paths.sql_query_log()}} if access.query_log else {}

    @property
    def schemas(self) -> list[str]:
        """Names of the schemas, sorted."""
        return sorted(self._keys)

    def spec(self, schema: str) -> PipelineSpec | None:
        """Returns the pipeline of a schema; None for the schema of the server."""
        return self._specs.get(schema)

    def declared(self, schema: str) -> list[str]:
        """Returns all names of a schema, also of tables that do not exist yet."""
        spec = self._specs.get(schema)
        if spec is None:
            return [QUERIES_TABLE]
        views = [*named_views(spec), _FILE_QUARANTINE, *(view.name for view in spec.views)]
        return list(dict.fromkeys([*self._keys[schema], *views]))

    def keys(self, statement: ParsedStatement) -> dict[tuple[str, str], str]:
        """Returns the tables that a statement reads, directly or through views.

        Raises:
            ConfigError: SQL_ACCESS_DENIED for the schema of no readable pipeline, SQL_REFUSED for an unknown table.
        """
        read = dict[tuple[str, str], str]()
        names = sorted(statement.tables)
        if statement.lists_tables:
            names = [(schema, name) for schema in self.schemas for name in self.declared(schema)]
        for schema, name in names:
            read |= self.keys_of(schema, name)
        return read

    def keys_of(self, schema: str, name: str) -> dict[tuple[str, str], str]:
        """Returns the tables that a table or view consists of. Raises as `keys` does."""
        if schema not in self._keys:
            raise _access_denied(schema, self.schemas)
        spec, keys = self._specs.get(schema), self._keys[schema]
        tables = [name] if spec is None or name in keys else _tables_of_view(spec, name)
        if not tables or not set(tables) <= set(keys):
            raise ConfigError(
                "SQL_REFUSED",
                f"There is no table or view {schema}.{name}.",
                hint=nearest_names_hint([name], self.declared(schema), prefix="Its tables are"),
            )
        return {(schema, table): keys[table] for table in tables}


def _access_denied(schema: str, readable: Sequence[str]) -> ConfigError:
    return ConfigError(
        "SQL_ACCESS_DENIED",
        f"There is no pipeline {schema!r}, or no role of yours may read it.",
        hint=nearest_names_hint([schema], readable, prefix="You may read:"),
    )


def _tables_of_view(spec: PipelineSpec, name: str) -> list[str]:
    """Returns the tables that a view reads, also through other views; none for an unknown view."""
    views: dict[str, Sequence[str]] = {view.name: view.reads for view in spec.views}
    names_table = [] if spec.mutations is None else [spec.mutations.names]
    views |= {view: [table.name, *names_table] for view, table in named_views(spec).items()}
    views[_FILE_QUARANTINE] = [QUARANTINE]
    return [read for read in names_read(views, views.get(name, ())) if read not in views]


class Session:
    """A confined DuckDB database with views of the tables that were bound. For one query at a time.

    Args:
        names: the readable tables.
    """

    def __init__(self, names: Names, limits: SqlLimitsSpec) -> None:
        self.names = names
        self.connection = duckdb.connect(":memory:")
        self._bound: dict[str, dict[str, Snapshot]] = {}
        run = self.connection.execute
        run(f"ATTACH ':memory:' AS {CATALOG}")
        run(f"USE {CATALOG}")
        run("SET TimeZone = 'UTC'")
        # Queries that exceed the memory limit fail instead of spilling into the current working directory.
        run("SET temp_directory = ''")
        run(f"SET memory_limit = '{limits.memory >> 10}KiB'")
        run(f"SET threads = {limits.threads}")
        confine_connection(self.connection)
        for schema in names.schemas:
            run(f'CREATE SCHEMA "{schema}"')

    def close(self) -> None:
        """Closes the database. Safe while a query runs."""
        self.connection.close()

    def bind(self, keys: Keys, snapshots: Mapping[str, Snapshot]) -> None:
        """Binds tables to snapshots. Views are created again only if a schema changed; tables without one are removed.

        Args:
            keys: the tables to bind. snapshots: by key; a missing one is a table that does not exist.
        """
        schemas: dict[str, dict[str, Snapshot | None]] = {}
        for (schema, name), key in keys.items():
            schemas.setdefault(schema, {})[name] = snapshots.get(key)
        for schema, tables in schemas.items():
            bound = self._bound.setdefault(schema, {})
            reshaped = False
            for name, snapshot in tables.items():
                previous = bound.get(name)
                if previous is snapshot:
                    continue
                reshaped = reshaped or previous is None or snapshot is None or not _same_shape(previous, snapshot)
                if snapshot is None:
                    del bound[name]
                    continue
                bound[name] = snapshot
                if not snapshot.problem:
                    self.connection.register(_hidden(schema, name), snapshot.source)
            if reshaped:
                self._create_views(schema, bound)

    def _create_views(self, schema: str, bound: Mapping[str, Snapshot]) -> None:
        run = self.connection.execute
        run(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
        run(f'CREATE SCHEMA "{schema}"')
        spec, problems = self.names.spec(schema), dict[str, str]()
        if spec is None and schema != PROJECT:
            # Without a declaration nothing says which columns are personal.
            raise _access_denied(schema, self.names.schemas)
        for name, snapshot in bound.items():
            if snapshot.problem:
                problems[f"{schema}.{name}"] = snapshot.problem
                continue
            show = spec is None or schema in self.names.access.personal
            columns = "*" if spec is None else projection(spec, name, snapshot.schema, show_personal=show)
            not_deleted = DELETED_COLUMN in snapshot.schema.names
            condition = f' WHERE NOT coalesce("{DELETED_COLUMN}", false)' if not_deleted else ""
            run(f'CREATE VIEW "{schema}"."{name}" AS SELECT {columns} FROM "{_hidden(schema, name)}"{condition}')
        if spec is not None:
            existing = [f"{schema}.{name}" for name, snapshot in bound.items() if not snapshot.problem]
            try:
                bind_views(self.connection, spec, existing, problems, folder=self.names.catalog.folder(schema))
            except duckdb.Error as error:
                # A table of another shape than declared must not hide the others.
                _LOGGER.warning("Not all views of %s could be created: %s", schema, error)
        for name, problem in problems.items():
            bind_problem(self.connection, name, problem)

    def existing(self, schema: str) -> list[str]:
        """Returns the tables and views of a schema that were bound, sorted."""
        rows = self.connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_catalog = $1 AND table_schema = $2",
            [CATALOG, schema],
        ).fetchall()
        return sorted(str(row[0]) for row in rows)

    def describe(self, text: str, parameters: Sequence[Any] | None = None) -> pa.Schema:
        """Returns the schema of a SELECT's result without running it.

        Raises:
            duckdb.Error: the statement is invalid.
        """
        empty = self.connection.sql(f"SELECT * FROM (\n{text}\n) LIMIT 0", params=parameters).to_arrow_table()
        # The bracket makes names unique, which a result may have several times.
        names = self.connection.sql(text, params=parameters).columns
        return pa.schema([field.with_name(name) for field, name in zip(empty.schema, names, strict=True)])

    def column_types(self, schema: str, name: str) -> dict[str, str]:
        """Returns DuckDB's types of a table's columns; empty if it is not bound."""
        rows = self.connection.execute(
            "SELECT column_name, data_type FROM information_schema.columns "
            "WHERE table_catalog = $1 AND table_schema = $2 AND table_name = $3 ORDER BY ordinal_position",
            [CATALOG, schema, name],
        ).fetchall()
        return {str(column): str(kind) for column, kind in rows}

    def arrow_types(self, types: Sequence[str]) -> list[pa.DataType]:
        """Returns the Arrow type of each of DuckDB's types; text for one that has none."""
        arrow_types = []
        for kind in types:
            try:
                arrow_types.append(self.connection.sql(f"SELECT NULL::{kind}").to_arrow_table().schema.field(0).type)
            except (duckdb.Error, pa.ArrowException):
                arrow_types.append(pa.string())
        return arrow_types


def _hidden(schema: str, name: str) -> str:
    return f"{HIDDEN_PREFIX}{schema}__{name}"


def _same_shape(one: Snapshot, other: Snapshot) -> bool:
    return one.problem == other.problem and one.schema.equals(other.schema)


class SessionPool:
    """Open sessions by access. Thread-safe.

    Args:
        limits: of each session. The pool keeps as many idle sessions as queries may run.
    """

    def __init__(self, limits: SqlLimitsSpec) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._idle: OrderedDict[int, Session] = OrderedDict()
        self._closed = False

    def acquire(self, names: Names) -> Session:
        """Returns an idle session with these names, or a new one."""
        with self._lock:
            for number, session in reversed(self._idle.items()):
                if session.names is names:
                    return self._idle.pop(number)
        return Session(names, self._limits)

    def release(self, session: Session, *, reusable: bool) -> None:
        """Returns a session. One that cannot be reused, because of an error or open results, is closed."""
        surplus: list[Session] = []
        with self._lock:
            if reusable and not self._closed:
                self._idle[id(session)] = session
                while len(self._idle) > self._limits.queries:
                    surplus.append(self._idle.popitem(last=False)[1])
            else:
                surplus.append(session)
        for one in surplus:
            one.close()

    def clear(self, *, close: bool = False) -> None:
        """Closes all idle sessions, as after changed declarations; with `close` also those returned later."""
        with self._lock:
            idle, self._closed = list(self._idle.values()), self._closed or close
            self._idle.clear()
        for session in idle:
            session.close()


def bound_tables(keys: Collection[tuple[str, str]]) -> Iterator[str]:
    """Yields the names of tables as clients write them, sorted."""
    yield from (f"{schema}.{name}" for schema, name in sorted(keys))
