"""Caches valid queries, so that only new ones need the SQL parser.

Importing the parser takes as long as reading all specs. The key of an entry is a digest of the query, its input columns
and the code of the check; the value are the result columns. Invalid queries are not cached.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deltaworks.specs.result_cache import ResultCache, cache_folder, code_digest

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
        "panel_bounds.py",
        "nondeterministic_sql.py",
        "../spec_errors.py",
        "../result_cache.py",
    )
)


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
