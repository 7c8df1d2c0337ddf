"""One file of SQL, looked at for what it is for: a gold table, a view, a panel or a rule."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from deltaworks.specs.checks.sound_queries import Columns, SoundQueries, digest_of
from deltaworks.specs.mistakes import Mistake
from deltaworks.specs.pipeline import PipelineSpec

Purpose = Literal["gold", "view", "panel", "alert"]
#: What stands before the text of a query where it is digested, so that one that is right for gold is none for a view.
_KINDS: Final[Mapping[Purpose, str]] = {"gold": "", "view": "duckdb\0", "panel": "panel\0", "alert": "alert\0"}


def read_sql_file(
    path: Path, tables: Mapping[str, Columns], spec: PipelineSpec, sound: SoundQueries, *, purpose: Purpose
) -> tuple[Columns, list[Mistake]]:
    """The columns of the answer, None where they cannot be told, and what is wrong with the SQL.

    Args:
        tables: what it may read, with their columns.
        sound: queries that need no parser any more; this one is added where it is right.
    """
    try:
        sql = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None, [Mistake(path, 1, "", "this is no UTF-8")]
    digest = digest_of(_KINDS[purpose] + sql, tables)
    if digest is not None and digest in sound:
        return sound.answer(digest), []
    # Loaded here: they load the parser.
    from deltaworks.specs.checks.query_mistakes import read_query

    dialect = "spark" if purpose == "gold" else "duckdb"
    answer, mistakes = read_query(path, sql, tables, spec, dialect=dialect)
    if purpose in ("panel", "alert") and not mistakes:
        from deltaworks.specs.checks.panel_bounds import bound_mistakes

        mistakes = bound_mistakes(path, sql)
    if purpose == "alert" and not mistakes:
        from deltaworks.specs.checks.changing_sql import changing_mistakes

        mistakes = changing_mistakes(path, sql)
    if digest is not None and not mistakes:
        sound.remember(digest, answer)
    return answer, mistakes
