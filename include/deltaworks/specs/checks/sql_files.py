"""Checks one SQL file of a gold table, view, panel or rule."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from deltaworks.specs.checks.query_cache import Columns, QueryCache, query_digest
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.spec_errors import SpecError

Purpose = Literal["gold", "view", "panel", "rule"]
#: Prefixes of the cache key, because a query that is valid for gold may be invalid for a view.
_DIGEST_PREFIXES: Final[Mapping[Purpose, str]] = {
    "gold": "",
    "view": "duckdb\0",
    "panel": "panel\0",
    "rule": "rule\0",
}


def read_sql_file(
    path: Path, tables: Mapping[str, Columns], spec: PipelineSpec, cache: QueryCache, *, purpose: Purpose
) -> tuple[Columns, list[SpecError]]:
    """Checks the query in a SQL file. Returns its result columns (None if unknown) and its errors.

    Args:
        tables: tables that it can read, with columns.
        cache: valid queries; a valid one is added.
    """
    try:
        sql = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None, [SpecError(path, 1, "", "the file is not UTF-8")]
    digest = query_digest(_DIGEST_PREFIXES[purpose] + sql, tables)
    if digest is not None and digest in cache:
        return cache.get(digest), []
    # Imported lazily: they import the parser.
    from deltaworks.specs.checks.query_errors import check_query

    dialect = "spark" if purpose == "gold" else "duckdb"
    output_columns, errors = check_query(path, sql, tables, spec, dialect=dialect)
    if purpose in ("panel", "rule") and not errors:
        from deltaworks.specs.checks.panel_bounds import time_bound_errors

        errors = time_bound_errors(path, sql)
    if purpose == "rule" and not errors:
        from deltaworks.specs.checks.nondeterministic_sql import nondeterminism_errors

        errors = nondeterminism_errors(path, sql)
    if digest is not None and not errors:
        cache.put(digest, output_columns)
    return output_columns, errors
