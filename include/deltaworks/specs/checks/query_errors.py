"""Checks the query of a gold table, view, panel or rule: syntax for Spark or DuckDB, and existing names. The query of a
rule must be deterministic; otherwise a backtest would differ from the live evaluation.

The queries of panels and rules run repeatedly, so they must be bounded in time, and they have no other parameters: an
unbounded query would become slower with the table until it fails.

Uses sqlglot, whose import takes half a second of CPU. `deltaworks pipelines check` imports this module only for new
queries.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError, TokenError

from deltaworks.specs.checks.sql_names import QueryNames, Views, line_at
from deltaworks.specs.dashboards import PARAMETERS
from deltaworks.specs.gold import view_name
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.spec_errors import SpecError, closest_match
from deltaworks.specs.table import REST_COLUMN

_DIALECT_NOTES = {
    "spark": "gold SQL is written in Spark's dialect",
    "duckdb": "views and panels are written in DuckDB's dialect",
}
#: Functions of Spark that DuckDB has not.
_VARIANT_FUNCTIONS = frozenset({"variant_get", "try_variant_get"})
#: Functions of DuckDB that take values of any type as they are.
_FUNCTIONS_OF_VARIANTS = frozenset({"typeof", "to_json", "variant_typeof", "variant_extract"})
_CASTS_AND_COUNTS = (exp.Cast, exp.TryCast, exp.Count, exp.Typeof, exp.Upper, exp.Lower)
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ)
_STATEMENTS = ("SELECT", "WITH", "FROM", "VALUES")
_INVALID_AFTER_COMMA = frozenset(
    {TokenType.FROM, TokenType.WHERE, TokenType.GROUP_BY, TokenType.ORDER_BY, TokenType.HAVING, TokenType.R_PAREN}
)
#: Prefixes of the parser's messages, and replacements.
_PARSER_MESSAGES = {
    "Invalid expression": "this is not expected here",
    "Required keyword": "something is missing after it",
}


def check_query(
    path: Path, sql: str, views: Views, spec: PipelineSpec, *, dialect: str = "spark"
) -> tuple[Sequence[str] | None, list[SpecError]]:
    """Returns the result columns of a query (None if unknown) and its errors.

    Whether there are errors depends only on the query and `views`; the other arguments only affect messages.
    """
    note = _DIALECT_NOTES[dialect]
    try:
        query = parse_query(sql, dialect=dialect)
    except ParseError as error:
        return None, _syntax_errors(path, error, note)
    except TokenError as error:
        line = sql.count("\n", 0, error.end or 0) + 1
        return None, [SpecError(path, line, "", f"invalid SQL: a quote is not closed ({note})")]
    if query is None:
        return None, [SpecError(path, 1, "", f"write one SELECT and nothing else ({note})")]
    if dialect == "duckdb" and (keyword := _write_keyword(query)) is not None:
        line = sql.count("\n", 0, sql.upper().find(keyword)) + 1
        return None, [
            SpecError(
                path, line, "", f"{keyword} is not allowed: views and panels only read; write one SELECT ({note})"
            )
        ]
    try:
        names = QueryNames(query, views)
        errors = [
            _unknown_table_error(path, table, views, spec)
            for table in names.unknown_tables()
            if not _is_path(table, dialect)
        ]
        if not errors and any(REST_COLUMN in (columns or ()) for columns in views.values()):
            errors = [SpecError(path, line, "", f"{text} ({note})") for line, text in variant_problems(query, dialect)]
        # Columns of unknown tables cannot be checked.
        if not errors:
            errors = [SpecError(path, name.line, "", f"{name.text} ({note})") for name in names.unknown_columns()]
        return names.output_columns(), sorted(dict.fromkeys(errors), key=lambda spec_error: spec_error.line)
    except SqlglotError as error:
        return None, [SpecError(path, 1, "", f"{_first_line(error)} ({note})")]


def variant_problems(query: exp.Query, dialect: str, *, returns_variants: bool = False) -> Iterator[tuple[int, str]]:
    """Yields lines that read undeclared fields in a way that fails or misleads, and what to write there.

    Args:
        returns_variants: whether result columns of the query can be variants, because no other query reads them.
    """
    if dialect == "duckdb":
        for call in query.find_all(exp.Anonymous):
            if call.name.lower() in _VARIANT_FUNCTIONS:
                yield line_at(call), f"there is no function {call.name}; write {REST_COLUMN}.color::VARCHAR"
    for column in query.find_all(exp.Column):
        names = [part.name.lower() for part in column.parts]
        field: exp.Expression = column
        while isinstance(field.parent, exp.Dot | exp.Bracket | exp.Paren) and field.parent.this is field:
            field = field.parent
        if REST_COLUMN not in (names[:-1] if field.unnest() is column else names):
            continue
        if dialect == "spark":
            advice = f"write variant_get({REST_COLUMN}, '$.color', 'string') for its field color"
            yield line_at(column.this), f"{REST_COLUMN} is a variant; {advice}"
        elif not _has_defined_value(field, query if returns_variants else None):
            yield (
                line_at(column.this),
                f"{field.sql('duckdb')} is a variant, with which DuckDB rounds numbers and compares types; cast it "
                f"first, such as {REST_COLUMN}.price::DOUBLE or {REST_COLUMN}.color::VARCHAR",
            )


def _has_defined_value(field: exp.Expression, returned_by: exp.Query | None) -> bool:
    """Returns whether a field of a variant is cast, compared with texts, counted, or returned by this query."""
    use = field.parent
    if isinstance(use, exp.Between | exp.In):
        others = [use.args.get("low"), use.args.get("high"), *use.expressions]
        return use.this is field and all(_is_text(other) for other in others if other is not None)
    if isinstance(use, _COMPARISONS):
        return _is_text(use.right if use.left is field else use.left)
    if isinstance(use, exp.Alias | exp.Select):
        return field.parent_select is returned_by
    if isinstance(use, exp.Anonymous):
        return use.name.lower() in _FUNCTIONS_OF_VARIANTS
    if isinstance(use, exp.Func) and not isinstance(use, exp.Connector):
        return isinstance(use, _CASTS_AND_COUNTS)
    return not isinstance(use, exp.Add | exp.Sub | exp.Mul | exp.Div | exp.IntDiv | exp.Mod | exp.Neg | exp.Ordered)


def _is_text(value: object) -> bool:
    return isinstance(value, exp.Boolean | exp.Null) or (isinstance(value, exp.Literal) and value.is_string)


def _write_keyword(query: exp.Query) -> str | None:
    """Returns the keyword of a writing statement inside the query, as in `WITH x AS (DELETE …) SELECT …`; None if there
    is none.
    """
    words = {exp.Insert: "INSERT", exp.Update: "UPDATE", exp.Delete: "DELETE", exp.Merge: "MERGE", exp.Into: "INTO"}
    return next((word for kind, word in words.items() if query.find(kind) is not None), None)


def parse_query(sql: str, *, dialect: str = "spark") -> exp.Query | None:
    """Parses the SQL of a file. Returns None if it is not exactly one query.

    Raises:
        ParseError: syntax error.
        TokenError: unclosed quote.
    """
    # sqlglot logs statements it cannot parse; they are rejected below.
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    # sqlglot confuses Spark's function window() with the WINDOW clause.
    if dialect == "spark":
        sql = re.sub(r"\bwindow\s*\(", "time_window(", sql, flags=re.IGNORECASE)
    _check_tokens(sql, dialect)
    statements = sqlglot.parse(sql, read=dialect, error_level=ErrorLevel.RAISE)
    queries = [part for part in statements if part is not None and not isinstance(part, exp.Semicolon)]
    return queries[0] if len(queries) == 1 and isinstance(queries[0], exp.Query) else None


def _check_tokens(sql: str, dialect: str) -> None:
    """Rejects errors that sqlglot ignores or reports at a later position."""
    tokens = sqlglot.tokenize(sql, read=dialect)
    first = tokens[0] if tokens else None
    if first is not None and first.token_type == TokenType.VAR:
        nearest = closest_match(first.text.upper(), _STATEMENTS)
        if nearest is not None:
            text = f"{first.text} is not a statement; did you mean {nearest}?"
            raise ParseError.new(text, description=text, line=first.line)
    for token, next_token in zip(tokens, [*tokens[1:], None], strict=False):
        if token.token_type == TokenType.COMMA and (
            next_token is None or next_token.token_type in _INVALID_AFTER_COMMA
        ):
            text = "an extra comma"
            raise ParseError.new(text, description=text, line=token.line)


def _syntax_errors(path: Path, error: ParseError, note: str) -> list[SpecError]:
    errors = []
    for details in error.errors or [{}]:
        message = str(details.get("description") or _first_line(error)).rstrip(".")
        message = next((words for start, words in _PARSER_MESSAGES.items() if message.startswith(start)), message)
        near = f" at {details['highlight']!r}" if details.get("highlight") else ""
        line = int(details.get("line") or 1)
        errors.append(SpecError(path, line, "", f"invalid SQL{near}: {message} ({note})"))
    # Only the first error is reported, because later ones mostly follow from it.
    return errors[:1]


def _unknown_table_error(path: Path, table: exp.Table, views: Views, spec: PipelineSpec) -> SpecError:
    line = line_at(table.this)
    table_name = ".".join(part.name for part in table.parts)
    if table.db.lower() == spec.pipeline and table.name.lower() in views:
        return SpecError(path, line, "", f"omit the name of the pipeline itself: write {table.name}")
    if view_name(table_name).lower() in views:
        return SpecError(
            path, line, "", (f"tables of other pipelines are named with underscores: write {view_name(table_name)}")
        )
    declared = [*(table.name for table in spec.tables), *(table.name for table in spec.gold.tables)]
    declared += [spec.mutations.names] if spec.mutations is not None else []
    declared += [*(reference.name for reference in spec.references), *(model.name for model in spec.models)]
    declared += [view.name for view in spec.views]
    if table.name.lower() in declared and not table.db:
        return SpecError(path, line, "", f"{table_name} is not in `reads`: add it")
    nearest = closest_match(table.name, {*views, *declared})
    advice = f"did you mean {nearest!r}?" if nearest is not None else f"it can read {', '.join(views)}"
    return SpecError(path, line, "", f"there is no table {table_name!r} in this pipeline; {advice}")


def _is_path(table: exp.Table, dialect: str) -> bool:
    """Returns whether a table in gold SQL is named by its path: delta.`s3a://bucket/table`."""
    return dialect == "spark" and table.db.lower() in ("delta", "parquet", "json", "csv", "avro", "orc", "text")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


_RANDOM_FUNCTIONS = frozenset({"rand", "random", "uuid", "gen_random_uuid", "uuidv4", "uuidv7", "setseed", "sample"})
_VOLATILE_FUNCTIONS = _RANDOM_FUNCTIONS | {
    "now",
    "today",
    "current_timestamp",
    "current_date",
    "current_time",
    "current_datetime",
    "localtime",
    "localtimestamp",
    "get_current_time",
    "get_current_timestamp",
    "transaction_timestamp",
}
#: DuckDB's spellings of functions, by the parser's names.
_DUCKDB_SPELLINGS: Mapping[str, str] = {
    "current_timestamp": r"current_timestamp|now\s*\(",
    "current_date": r"current_date|today\s*\(",
    "rand": r"random|rand",
}


def nondeterminism_errors(path: Path, sql: str) -> list[SpecError]:
    """Returns an error for each clock or random function in a valid query."""
    query = parse_query(sql, dialect="duckdb")
    if query is None:
        return []
    names: set[str] = set()
    for node in query.walk():
        if isinstance(node, exp.TableSample):
            names.add("sample")
        elif isinstance(node, exp.Anonymous):
            names.add(str(node.this).lower())
        elif isinstance(node, exp.Func):
            names |= {str(name).lower() for name in node.sql_names()}
    errors: dict[int, SpecError] = {}
    for name in sorted(names & _VOLATILE_FUNCTIONS):
        advice = "write $to instead" if name not in _RANDOM_FUNCTIONS else "remove it"
        text = f"{name} is nondeterministic, and rules must be deterministic; {advice}"
        errors.setdefault(_line(sql, name), SpecError(path, _line(sql, name), "", text))
    return list(errors.values())


def _line(sql: str, name: str) -> int:
    return _line_of(re.search(rf"\b(?:{_DUCKDB_SPELLINGS.get(name, name)})", sql, re.IGNORECASE))


def _line_of(match: re.Match[str] | None) -> int:
    """Returns the line of a match in its text; 1 without one."""
    return 1 if match is None else match.string.count("\n", 0, match.start()) + 1


_EXAMPLE = "write a condition such as event_time >= $from AND event_time < $to, or event_date >= $from::DATE"


def time_bound_errors(path: Path, sql: str, filters: Collection[str] = ()) -> list[SpecError]:
    """Returns the errors of a valid query in which `$from` filters no rows, or which has other parameters.

    Args:
        filters: names of the dashboard's filters, which are parameters too.
    """
    query = parse_query(sql, dialect="duckdb")
    if query is None:
        return []
    errors = list(_unknown_parameters(path, sql, query, (*PARAMETERS, *filters)))
    if errors:
        return errors
    if not any(parameter.name == "from" for parameter in query.find_all(exp.Placeholder)):
        return [SpecError(path, 1, "", f"it reads the complete table: it has no $from; {_EXAMPLE}")]
    if not any(_filters_rows(parameter) for parameter in query.find_all(exp.Placeholder)):
        line = _parameter_line(sql, "from")
        return [SpecError(path, line, "", f"$from filters no rows: it is in no WHERE and no JOIN; {_EXAMPLE}")]
    return []


def _unknown_parameters(path: Path, sql: str, query: exp.Query, parameters: Sequence[str]) -> Iterator[SpecError]:
    names = dict.fromkeys(parameter.name for parameter in query.find_all(exp.Placeholder, exp.Parameter))
    for name in names:
        if name in parameters:
            continue
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            text = f"only the named parameters {_listed(parameters)} are supported"
            yield SpecError(path, _parameter_line(sql, name), "", text)
            continue
        nearest = closest_match(name, parameters)
        advice = f"did you mean ${nearest}?" if nearest is not None else f"known parameters: {_listed(parameters)}"
        yield SpecError(path, _parameter_line(sql, name), "", f"there is no parameter ${name}; {advice}")


def _listed(names: Sequence[str]) -> str:
    *first, last = (f"${name}" for name in names)
    return f"{', '.join(first)} and {last}"


def _filters_rows(parameter: exp.Expression) -> bool:
    """Returns whether a parameter is used in WHERE or JOIN and so filters rows. FILTER only restricts one aggregate."""
    if parameter.name != "from":
        return False
    where = parameter.find_ancestor(exp.Where)
    return isinstance(where.parent, exp.Select) if where is not None else parameter.find_ancestor(exp.Join) is not None


def _parameter_line(sql: str, name: str) -> int:
    """Returns the line of a parameter, which the parser does not record; 1 if it is not found."""
    return _line_of(re.search(rf"[$?]{re.escape(name.strip('?'))}(?!\w)", sql))
