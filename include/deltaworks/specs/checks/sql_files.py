"""One file of SQL, looked at for what it is for: a gold table, a view, a panel or a rule."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from deltaworks.specs.checks.query_cache import Columns, QueryCache, query_digest
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.spec_errors import SpecError

Purpose = Literal["gold", "view", "panel", "rule"]
#: What stands before the text of a query where it is digested, so that one that is right for gold is none for a view.
_DIGEST_PREFIXES: Final[Mapping[Purpose, str]] = {
    "gold": "",
    "view": "duckdb\0",
    "panel": "panel\0",
    "rule": "rule\0",
}


def read_sql_file(
    path: Path, tables: Mapping[str, Columns], spec: PipelineSpec, cache: QueryCache, *, purpose: Purpose
) -> tuple[Columns, list[SpecError]]:
    """The columns of the answer, None where they cannot be told, and what is wrong with the SQL.

    Args:
        tables: what it may read, with their columns.
        sound: queries that need no parser any more; this one is added where it is right.
    """
    try:
        sql = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None, [SpecError(path, 1, "", "this is no UTF-8")]
    digest = query_digest(_DIGEST_PREFIXES[purpose] + sql, tables)
    if digest is not None and digest in cache:
        return cache.get(digest), []
    # Loaded here: they load the parser.
    from deltaworks.specs.checks.query_errors import check_query

    dialect = "spark" if purpose == "gold" else "duckdb"
    answer, errors = check_query(path, sql, tables, spec, dialect=dialect)
    if purpose in ("panel", "rule") and not errors:
        from deltaworks.specs.checks.panel_bounds import time_bound_errors

        errors = time_bound_errors(path, sql)
    if purpose == "rule" and not errors:
        from deltaworks.specs.checks.nondeterministic_sql import nondeterminism_errors

        errors = nondeterminism_errors(path, sql)
    if digest is not None and not errors:
        cache.put(digest, answer)
    return answer, errors
