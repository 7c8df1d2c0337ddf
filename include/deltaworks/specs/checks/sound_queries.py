"""What is remembered of queries in which nothing was wrong, so that the parser of SQL is loaded for new ones alone.

Loading it takes as long as all else that `deltaworks pipelines check` does. What it would say of a query follows from
the query, the columns it may read, and the code that looks; a digest of all three stands for the query, and what is
kept with it are the columns of its answer. Mistakes are never kept: a query that has any is looked at each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

#: The columns of an answer, None where they cannot be told.
Columns = Sequence[str] | None
#: More than a project has; the oldest ones are forgotten.
MOST_QUERIES = 1_000
#: What decides, beside this module, whether a query is right.
_JUDGES = ("query_mistakes.py", "sql_names.py", "panel_bounds.py", "../mistakes.py")


class SoundQueries:
    """A file in the user's cache folder. Where it cannot be read or written, every query is looked at.

    Several processes may use it at once: it is replaced as a whole, and what one of them has added may be lost.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file or _cache_folder() / "sound_queries.json"
        self._answers = _read(self._file)
        self._new: dict[str, Columns] = {}

    def __contains__(self, digest: str | None) -> bool:
        return digest in self._answers

    def answer(self, digest: str) -> Columns:
        """The columns of the answer of a query that is remembered."""
        return self._answers[digest]

    def remember(self, digest: str, answer: Columns) -> None:
        """Keep a query that was looked at and is right."""
        self._new[digest] = answer

    def save(self) -> None:
        """Write what is new; nothing where nothing is."""
        if not self._new:
            return
        kept = list((self._answers | self._new).items())[-MOST_QUERIES:]
        part = self._file.with_name(f"{self._file.name}.{uuid.uuid4().hex}")
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(dict(kept)))
            part.replace(self._file)


def digest_of(sql: str, views: Mapping[str, Columns]) -> str | None:
    """What stands for a query over these tables; None where the code that looks at it cannot be read."""
    judges = _judges()
    return hashlib.sha256(json.dumps([judges, sql, list(views.items())]).encode()).hexdigest() if judges else None


@cache
def _judges() -> str:
    """The parser's version and the code of the checks, without loading either; empty where they cannot be read."""
    parser = importlib.util.find_spec("sqlglot")
    if parser is None or parser.origin is None:
        return ""
    files = [Path(parser.origin).with_name("_version.py"), *(Path(__file__).parent / name for name in _JUDGES)]
    try:
        return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
    except OSError:
        return ""


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "deltaworks"


def _read(file: Path) -> dict[str, Columns]:
    try:
        answers = json.loads(file.read_bytes())
        sound = all(columns is None or all(isinstance(name, str) for name in columns) for columns in answers.values())
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
    return answers if sound else {}
