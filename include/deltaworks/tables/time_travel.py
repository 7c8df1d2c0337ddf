"""Time travel in SQL: `games.purchase VERSION AS OF 12` and `TIMESTAMP AS OF '2026-05-01'`, with Spark's syntax.

DuckDB accepts only `AT (VERSION => 12)`, and its views do not support time travel. So sqlglot finds the tables with an
AS OF clause. Each becomes a view of that version in a separate schema, and the clause is removed from the statement;
the rest of the text is unchanged.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import duckdb
import sqlglot
from sqlglot import exp
from sqlglot.errors import ErrorLevel, SqlglotError

from deltaworks.errors import ConfigError, ContractError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.lake import Lake
from deltaworks.tables.query import (
    QUARANTINE,
    bind_file_quarantine,
    bind_named_view,
    bind_table,
    named_views,
    table_keys,
)
from deltaworks.tables.versions import Versions

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
