"""What is remembered of queries in which nothing was wrong, so that the parser of SQL is loaded for new ones alone.

Loading it takes as long as all else that a reading of every spec does. What it would say of a query follows from
the query, the columns it may read, and the code that looks; a digest of all three stands for the query, and what is
kept with it are the columns of its answer. Mistakes are never kept: a query that has any is looked at each time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deltaworks.specs.result_cache import ResultCache, cache_folder, code_digest

#: The columns of an answer, None where they cannot be told.
Columns = Sequence[str] | None
#: More than a project has.
MAX_QUERIES = 1_000
#: What decides, beside this module, whether a query is right.
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
    """The queries, in `valid_queries.json` of the user's cache folder."""

    def __init__(self, file: Path | None = None) -> None:
        super().__init__(file or cache_folder() / "valid_queries.json", max_entries=MAX_QUERIES, is_valid=_is_columns)


def query_digest(sql: str, views: Mapping[str, Columns]) -> str | None:
    """What stands for a query over these tables; None where the code that looks at it cannot be read."""
    judges = _code_digest()
    return hashlib.sha256(json.dumps([judges, sql, list(views.items())]).encode()).hexdigest() if judges else None


def _code_digest() -> str:
    """The parser's version and the code of the checks, without loading either; empty where they cannot be read."""
    return code_digest(("sqlglot",), _CODE_FILES)


def _is_columns(value: Any) -> bool:
    return value is None or all(isinstance(name, str) for name in value)
