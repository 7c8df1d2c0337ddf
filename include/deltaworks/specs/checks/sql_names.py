"""Resolves the names in a query: finds unknown tables and columns, and returns the result columns.

Names that may exist are accepted: columns of tables with unknown columns, struct fields, aliases. Like in Spark, names
are case-insensitive.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.lineage import lineage
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import Scope, build_scope, traverse_scope

from deltaworks.specs.spec_errors import closest_match

#: Columns by table; None if unknown.
Views = Mapping[str, Sequence[str] | None]

#: Built-in columns of Spark, and functions without parentheses.
_BUILTIN_NAMES = frozenset(
    {
        "_metadata",
        "current_catalog",
        "current_date",
        "current_schema",
        "current_timestamp",
        "current_timezone",
        "current_user",
        "grouping__id",
        "localtimestamp",
        "session_user",
        "user",
    }
)
#: Structs created by `GROUP BY window(...)`.
_WINDOWS = ("window", "session_window")
_GENERATORS = (exp.Explode, exp.Posexplode, exp.Inline)
#: Time units that are keywords as first argument of a function.
_UNITS = frozenset(
    ["year", "quarter", "month", "week", "day", "dayofyear", "hour", "minute", "second", "millisecond", "microsecond"]
)


@dataclass(frozen=True, slots=True)
class UnknownName:
    """An unknown name, with its line and a suggestion."""

    line: int
    text: str


class QueryNames:
    """The names in one query that reads the given tables and views."""

    def __init__(self, query: exp.Query, views: Views) -> None:
        self._query = query
        self._views = {name.lower(): columns for name, columns in views.items()}
        self._scopes = traverse_scope(query)
        self._cte_names = {cte.alias.lower() for cte in query.find_all(exp.CTE)}
        self._recursive = any(with_.args.get("recursive") for with_ in query.find_all(exp.With))
        self._outputs: dict[int, Sequence[str] | None] = {}

    def output_columns(self) -> Sequence[str] | None:
        """Returns the named result columns; None if they are unknown."""
        names = self._output(self._scopes[-1]) if self._scopes else None
        return None if names is None else [name for name in names if name]

    def unknown_tables(self) -> Iterator[exp.Table]:
        """Yields tables that are neither views nor CTEs."""
        for table in self._query.find_all(exp.Table):
            table_columns = isinstance(table.this, exp.Identifier) and table.find_ancestor(exp.Hint) is None
            if table_columns and (table.db or table.name.lower() not in {*self._views, *self._cte_names}):
                yield table

    def unknown_columns(self) -> Iterator[UnknownName]:
        """Yields columns that no table in their scope has."""
        visited: set[int] = set()  # columns of a LATERAL VIEW are in two scopes
        for scope in self._scopes:
            for column in scope.find_all(exp.Column):
                if isinstance(column.this, exp.Star) or self._is_builtin(column) or id(column) in visited:
                    continue
                visited.add(id(column))
                parts = [part.name for part in column.parts]
                if not self._resolves(parts, scope):
                    yield UnknownName(line_at(column.this), self._advice(parts, scope))

    def _is_builtin(self, column: exp.Column) -> bool:
        name = column.name.lower()
        if column.table:
            return False
        is_function_argument = isinstance(column.parent, exp.Func | exp.Var)
        return name in _BUILTIN_NAMES or (is_function_argument and name in _UNITS)

    def _resolves(self, parts: Sequence[str], scope: Scope | None) -> bool:
        first, rest = parts[0].lower(), [part.lower() for part in parts[1:]]
        if first in _WINDOWS:
            return True
        while scope is not None:
            sources = self._sources(scope)
            if rest and first in sources:
                columns = sources[first]
                return columns is None or rest[0] in columns
            if any(columns is None or first in columns for columns in sources.values()):
                return True
            if first in _aliases(scope) or first in self._union_columns(scope):
                return True
            scope = scope.parent if scope.can_be_correlated else None
        return False

    def _union_columns(self, scope: Scope) -> Collection[str]:
        """Returns the columns that the ORDER BY of a union can name."""
        if not isinstance(scope.expression, exp.SetOperation):
            return ()
        return [name.lower() for name in self._output(scope) or ()]

    def _advice(self, parts: Sequence[str], scope: Scope) -> str:
        sources = self._sources(scope)
        outer: Scope | None = scope
        while len(parts) > 1 and outer is not None:
            table_columns = self._sources(outer)
            if parts[0].lower() in table_columns:
                suggestion = _suggest(parts[1], table_columns[parts[0].lower()] or ())
                return f"{parts[0]} has no column {parts[1]!r}; {suggestion}"
            outer = outer.parent if outer.can_be_correlated else None
        if len(parts) > 1:
            return f"unknown table {parts[0]!r} of column {parts[1]!r}; {_suggest(parts[0], sources)}"
        if not sources:
            return f"there is no column {parts[0]!r}, since FROM is missing"
        candidates = {name for columns in sources.values() for name in columns or ()}
        tables = ", ".join(sorted(name for name in sources if name)) or "its input"
        return f"there is no column {parts[0]!r} in {tables}; {_suggest(parts[0], candidates)}"

    def _sources(self, scope: Scope) -> dict[str, Collection[str] | None]:
        """Returns the tables and subqueries of a scope by name, with their columns in lower case."""
        names = [name for name, _ in scope.references] if not scope.is_udtf else list(scope.sources)
        sources: dict[str, Collection[str] | None] = {}
        for name in names:
            source = scope.sources.get(name)
            columns = self._columns(source)
            sources[name.lower()] = None if columns is None else {column.lower() for column in columns}
        if any(node.args.get("pivots") for _, node in scope.references):
            return dict.fromkeys([*sources, ""], None)
        for inner in scope.table_scopes:  # including unnamed ones
            columns = self._output(inner)
            if "" in sources and columns is not None and sources[""] is not None:
                sources[""] = {*sources[""], *(column.lower() for column in columns)}
        return sources

    def _columns(self, source: exp.Table | Scope | None) -> Sequence[str] | None:
        if isinstance(source, Scope):
            return None if source.is_cte and self._recursive else self._output(source)
        if isinstance(source, exp.Table) and not source.db and isinstance(source.this, exp.Identifier):
            return list(source.alias_column_names) or self._views.get(source.name.lower())
        return None

    def _output(self, scope: Scope) -> Sequence[str] | None:
        if id(scope) not in self._outputs:
            self._outputs[id(scope)] = None  # for recursive queries
            self._outputs[id(scope)] = self._output_of(scope)
        return self._outputs[id(scope)]

    def _output_of(self, scope: Scope) -> Sequence[str] | None:
        expression = scope.expression
        if scope.outer_columns:
            return scope.outer_columns
        if isinstance(expression, exp.SetOperation):
            return self._output(scope.set_operation_scopes[0]) if scope.set_operation_scopes else None
        if not isinstance(expression, exp.Select) or expression.args.get("kind"):
            return None
        names: list[str] = []
        for selected in expression.expressions:
            columns = self._select_item_columns(selected, scope)
            if columns is None:
                return None
            names += columns
        return names

    def _select_item_columns(self, selected: exp.Expression, scope: Scope) -> Sequence[str] | None:
        """Returns the result columns of one SELECT item; a star has several."""
        if isinstance(selected, exp.Star) or (isinstance(selected, exp.Column) and isinstance(selected.this, exp.Star)):
            star = selected if isinstance(selected, exp.Star) else selected.this
            table = selected.table.lower() if isinstance(selected, exp.Column) else None
            return self._star_columns(star, table, scope)
        if isinstance(selected, exp.Aliases):
            return [identifier.name for identifier in selected.aliases]
        if isinstance(selected, _GENERATORS):
            return None
        # Spark generates a name for unnamed columns.
        return [selected.alias_or_name if isinstance(selected, exp.Alias | exp.Column | exp.Dot) else ""]

    def _star_columns(self, star: exp.Expression, table: str | None, scope: Scope) -> Sequence[str] | None:
        if star.args.get("rename") or star.args.get("replace"):
            return None
        omitted = {column.name.lower() for column in star.args.get("except_") or ()}
        names: list[str] = []
        for name, _ in scope.references:
            if table is not None and name.lower() != table:
                continue
            columns = self._columns(scope.sources.get(name))
            if columns is None:
                return None
            names += [column for column in columns if column.lower() not in omitted]
        return names or None


def line_at(node: exp.Expression) -> int:
    """Returns the line of a name in the query; 1 if unknown."""
    return int(node.meta.get("line") or 1)


def _aliases(scope: Scope) -> Collection[str]:
    """Returns the aliases of the SELECT items, which Spark allows in other clauses of the same query."""
    if not isinstance(scope.expression, exp.Select):
        return ()
    return {selected.alias.lower() for selected in scope.expression.expressions if selected.alias}


def _suggest(name: str, candidates: Collection[str]) -> str:
    nearest = closest_match(name.lower(), candidates)
    if nearest is not None:
        return f"did you mean {nearest!r}?"
    return f"known names: {', '.join(sorted(filter(None, candidates))) or 'none'}"


def column_sources(sql: str, views: Views, *, dialect: str) -> dict[str, tuple[tuple[str, str], ...]]:
    """Returns the named result columns of a query, each with the columns of views that its value is computed from.

    Columns that only filter or group are not included. Empty if the query cannot be resolved.
    """
    schema: dict[str, object] = {name: dict.fromkeys(columns, "unknown") for name, columns in views.items() if columns}
    try:
        query = sqlglot.parse_one(sql, read=dialect)
        if not isinstance(query, exp.Query):
            return {}
        qualified = qualify(
            query, schema=schema, dialect=dialect, validate_qualify_columns=False, quote_identifiers=False
        )
        scope = build_scope(qualified)
        roots = {name: lineage(name, qualified, schema, scope=scope, dialect=dialect) for name in query.named_selects}
    except (SqlglotError, ValueError):
        return {}
    return {
        name: tuple(
            sorted(
                {
                    (node.expression.name, node.name.rpartition(".")[2])
                    for node in root.walk()
                    if not node.downstream and isinstance(node.expression, exp.Table) and node.expression.name in views
                }
            )
        )
        for name, root in roots.items()
    }
