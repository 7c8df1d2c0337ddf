"""Checks one SQL file of a gold table, view, panel or rule.

Valid queries are cached, so that only new ones need the SQL parser: importing it takes longer than reading all specs.
The key of an entry is a digest of the query, its input columns and the code of the check; the value are the result
columns. Invalid queries are not cached.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.result_cache import ResultCache, cache_folder, code_digest
from deltaworks.specs.spec_errors import SpecError

#: Result columns; None if unknown.
Columns = Sequence[str] | None
#: Maximum number of cached queries, more than a project has.
MAX_QUERIES = 1_000
#: The other code that decides whether a query is valid.
_CODE_FILES = tuple(
    Path(__file__).parent / name
    for name in (
        "query_errors.py",
        "sql_names.py",
        "../spec_errors.py",
        "../result_cache.py",
    )
)
Purpose = Literal["gold", "view", "panel", "rule"]
#: Prefixes of the cache key, because a query that is valid for gold may be invalid for a view.
_DIGEST_PREFIXES: Final[Mapping[Purpose, str]] = {
    "gold": "",
    "view": "duckdb\0",
    "panel": "panel\0",
    "rule": "rule\0",
}


class QueryCache(ResultCache[Columns]):
    """Cache of valid queries, in `valid_queries.json` of the user's cache folder."""

    def __init__(self, file: Path | None = None) -> None:
        super().__init__(file or cache_folder() / "valid_queries.json", max_entries=MAX_QUERIES, is_valid=_is_columns)


def query_digest(sql: str, views: Mapping[str, Columns]) -> str | None:
    """Returns the cache key of a query over these tables; None if the code of the check cannot be read."""
    code = _code_digest()
    return hashlib.sha256(json.dumps([code, sql, list(views.items())]).encode()).hexdigest() if code else None


def _code_digest() -> str:
    """Returns a digest of the parser's version and the code of the checks; empty if either cannot be read."""
    return code_digest(("sqlglot",), _CODE_FILES)


def _is_columns(value: Any) -> bool:
    return value is None or all(isinstance(name, str) for name in value)


def read_sql_file(
    path: Path,
    tables: Mapping[str, Columns],
    spec: PipelineSpec,
    cache: QueryCache,
    *,
    purpose: Purpose,
    filters: Collection[str] = (),
) -> tuple[Columns, list[SpecError]]:
    """Checks the query in a SQL file. Returns its result columns (None if unknown) and its errors.

    Args:
        tables: tables that it can read, with columns.
        cache: valid queries; a valid one is added.
        filters: of a panel's dashboard, as further parameters.
    """
    try:
        sql = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None, [SpecError(path, 1, "", "the file is not UTF-8")]
    digest = query_digest("\0".join([_DIGEST_PREFIXES[purpose] + sql, *filters]), tables)
    if digest is not None and digest in cache:
        return cache.get(digest), []
    # Imported lazily: they import the parser.
    from deltaworks.specs.checks.query_errors import check_query

    dialect = "spark" if purpose == "gold" else "duckdb"
    output_columns, errors = check_query(path, sql, tables, spec, dialect=dialect)
    if purpose in ("panel", "rule") and not errors:
        from deltaworks.specs.checks.query_errors import time_bound_errors

        errors = time_bound_errors(path, sql, filters)
    if purpose == "rule" and not errors:
        from deltaworks.specs.checks.query_errors import nondeterminism_errors

        errors = nondeterminism_errors(path, sql)
    if digest is not None and not errors:
        cache.put(digest, output_columns)
    return output_columns, errors
