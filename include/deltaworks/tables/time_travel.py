"""Tables as they were, in SQL: `games.purchase VERSION AS OF 12` and `TIMESTAMP AS OF '2026-05-01'`, as Spark has it.

DuckDB has such words (`AT (VERSION => 12)`, which are taken too) and no tables that would take them. So sqlglot names
the tables of a statement that are asked for as of something. Each gets a view of its version in a schema of its own,
and the words are cut out of the statement, which is otherwise left as it was written.
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
from deltaworks.tables.query import QUARANTINE, bind, bind_file_quarantine, bind_named, named_tables, table_keys
from deltaworks.tables.versions import Versions

_DIALECT = "duckdb"
_HOW = "Write PIPELINE.TABLE VERSION AS OF 12, or TIMESTAMP AS OF '2026-05-01 06:00', which is UTC."


@dataclass(frozen=True, slots=True)
class _Mention:
    """A table of the statement as of something, and where it stands there: from `start` up to `end`."""

    parts: tuple[str, ...]
    kind: str
    value: exp.Expression
    start: int
    end: int


class TimeTravel:
    """The past versions that one statement reads, as views of one connection."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, catalog: Catalog) -> None:
        self._connection, self._catalog = connection, catalog
        self._lake = Lake(catalog.environment.lake)
        self._tables: dict[str, Versions] = {}
        self._bound: set[tuple[str, str]] = set()
        self._read: list[tuple[Versions, int]] = []

    def bound(self, statement: str) -> str:
        """The statement with past versions named as the views that it makes of them.

        Raises:
            ConfigError: AS_OF_INVALID, what is asked for is no version or time of a table.
            ContractError: TABLE_VERSION_GONE, TABLE_LOG_GAP.
        """
        for mention in sorted(_mentions(statement), key=lambda mention: mention.start, reverse=True):
            name = ".".join(f'"{part}"' for part in self._view(mention))
            statement = statement[: mention.start] + name + statement[mention.end :]
        return statement

    def explain_missing(self) -> ContractError | None:
        """Why the statement could not be read, where files of a version it asked for are not there any more."""
        return next(filter(None, (versions.explain_missing(version) for versions, version in self._read)), None)

    def _view(self, mention: _Mention) -> tuple[str, str]:
        """Schema and name of the view that stands for the mention."""
        written = ".".join(mention.parts)
        pipelines = {*self._catalog.pipelines, *self._catalog.wrong_pipelines()}
        pipeline, table = mention.parts[0].lower(), mention.parts[-1].lower()
        if len(mention.parts) != 2 or pipeline not in pipelines:
            raise _invalid(f"{written} is no table of a pipeline, and nothing else has versions.")
        value = self._value(mention)
        spec = self._catalog.pipelines.get(pipeline)
        keys = {} if spec is None else table_keys(spec)
        if spec is not None and table == "file_quarantine" and self._versions(spec, QUARANTINE).newest >= 0:
            schema = self._bind(spec, QUARANTINE, value)
            self._once(schema, table, lambda: bind_file_quarantine(self._connection, schema))
            return schema, table
        if spec is not None and table in named_tables(spec) and table not in keys:
            return self._bind_named(spec, table, value), table
        if spec is None or table not in keys or self._versions(spec, table).newest < 0:
            # Not there now either: DuckDB says what there is.
            return pipeline, table
        return self._bind(spec, table, value), table

    def _bind(self, spec: PipelineSpec, table: str, value: int | dt.datetime) -> str:
        """Make the view of a table as of a version or a time, once; its schema."""
        versions = self._versions(spec, table)
        version = value if isinstance(value, int) else versions.at(value)
        schema = f"{spec.pipeline}@v{version}"
        self._once(
            schema,
            table,
            lambda: bind(self._connection, self._lake, versions.open(version), schema=schema, name=table),
        )
        self._read.append((versions, version))
        return schema

    def _bind_named(self, spec: PipelineSpec, view: str, value: int | dt.datetime) -> str:
        """Make the view of a mutable table with the names its ids had at a time, once; its schema."""
        if isinstance(value, int):
            raise _invalid(f"{spec.pipeline}.{view} is made of two tables, whose versions differ.", of="TIMESTAMP")
        table = named_tables(spec)[view]
        schema, names = f"{spec.pipeline}@{value:%Y-%m-%dT%H:%M:%S.%f}", None
        if spec.mutations is not None and not self._versions(spec, spec.mutations.names).begin_after(value):
            names = self._bind(spec, spec.mutations.names, value)
        rows = self._bind(spec, table.name, value)
        self._once(
            schema, view, lambda: bind_named(self._connection, spec, table, schema=schema, rows=rows, names=names)
        )
        return schema

    def _once(self, schema: str, table: str, make: Callable[[], None]) -> None:
        if (schema, table) not in self._bound:
            make()
            self._bound.add((schema, table))

    def _versions(self, spec: PipelineSpec, table: str) -> Versions:
        key = table_keys(spec)[table]
        if key not in self._tables:
            self._tables[key] = Versions(self._lake, key, name=f"{spec.pipeline}.{table}")
        return self._tables[key]

    def _value(self, mention: _Mention) -> int | dt.datetime:
        """The version or the instant that is asked for: any expression that needs no table."""
        text = mention.value.sql(_DIALECT)
        kind = "BIGINT" if mention.kind == "VERSION" else "TIMESTAMPTZ"
        try:
            rows = self._connection.execute(f"SELECT CAST(({text}) AS {kind})").fetchall()
        except duckdb.Error as error:
            raise _invalid(f"{text} is no {mention.kind.lower()} of {'.'.join(mention.parts)}.") from error
        value: Any = rows[0][0]
        if value is None:
            raise _invalid(f"{text} is no {mention.kind.lower()} of {'.'.join(mention.parts)}: it is null.")
        if isinstance(value, int):
            return value
        at: dt.datetime = value.astimezone(dt.UTC)
        return at


def _mentions(statement: str) -> Iterator[_Mention]:
    # A statement sqlglot has no parser for is announced there; DuckDB judges it.
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    try:
        trees = sqlglot.parse(statement, read=_DIALECT, error_level=ErrorLevel.RAISE)
        tokens = sqlglot.tokenize(statement, read=_DIALECT)
    except SqlglotError as error:
        raise _invalid(f"The statement cannot be read: {str(error).splitlines()[0]}") from error
    for tree in trees:
        for table in tree.find_all(exp.Table) if tree is not None else ():
            clause = table.args.get("version") or table.args.get("when")
            if clause is not None:
                yield _mention(statement, tokens, table, clause)


def _mention(statement: str, tokens: list[Any], table: exp.Table, clause: exp.Expression) -> _Mention:
    parts, kind, value = table.parts, str(clause.args.get("kind")), clause.args["expression"]
    if isinstance(clause, exp.Version):
        kind = "AS OF" if kind == "AS OF" else "BETWEEN"
    places = [part.meta for part in parts]
    if kind == "BETWEEN" or not all("end" in place for place in places):
        raise _invalid(f"{table.sql(_DIALECT)} is no table as of a version or a time.")
    position = next(index for index, token in enumerate(tokens) if token.end == places[-1]["end"])
    bracketed = not isinstance(clause, exp.Version)
    while tokens[position].text.upper() != ("=>" if bracketed else "OF"):
        position += 1
    end = _end_of(statement, tokens, position + 1, value)
    return _Mention(
        parts=tuple(part.name for part in parts),
        kind="VERSION" if (kind if bracketed else str(clause.this)) == "VERSION" else "TIMESTAMP",
        value=value,
        start=places[0]["start"],
        end=(tokens[end + 1].end if bracketed else tokens[end].end) + 1,
    )


def _end_of(statement: str, tokens: list[Any], first: int, value: exp.Expression) -> int:
    """The last token of an expression that begins at `first`: nodes of sqlglot do not say where they end."""
    for last in range(first, len(tokens)):
        try:
            if sqlglot.parse_one(statement[tokens[first].start : tokens[last].end + 1], read=_DIALECT) == value:
                # `current_timestamp` is the same with and without.
                return last + 2 if [token.text for token in tokens[last + 1 : last + 3]] == ["(", ")"] else last
        except SqlglotError:
            continue
    raise _invalid(f"It cannot be told where {value.sql(_DIALECT)} ends: put it in brackets.")


def _invalid(message: str, *, of: str = "") -> ConfigError:
    return ConfigError("AS_OF_INVALID", message, hint=f"Write {of} AS OF and a time." if of else _HOW)
