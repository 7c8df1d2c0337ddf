"""Caches successful check results in the user's cache folder.

A result depends on its input and on the code of the check; the key is a digest of both. Only successes are cached, so
errors are determined and reported each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import uuid
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class ResultCache(Generic[T]):
    """Results by digest, in a JSON file. If it cannot be read or written, nothing is cached.

    Several processes may use it at the same time: the file is replaced atomically, and concurrent additions may be
    lost.
    """

    def __init__(self, file: Path, *, max_entries: int, is_valid: Callable[[Any], bool]) -> None:
        """Reads the cached results from the file.

        Args:
            max_entries: the oldest entries beyond this number are evicted.
            is_valid: validates a value; a file with an invalid value is ignored as corrupt.
        """
        self._file = file
        self._max_entries = max_entries
        self._results: dict[str, T] = _read(file, is_valid)
        self._added: dict[str, T] = {}

    def __contains__(self, digest: str | None) -> bool:
        return digest in self._results

    def get(self, digest: str) -> T:
        """Returns the cached result of a digest."""
        return self._results[digest]

    def put(self, digest: str, result: T) -> None:
        """Adds a successful result. It is written by `save`."""
        self._added[digest] = result

    def save(self) -> None:
        """Writes new results, if there are any."""
        if not self._added:
            return
        self._results |= self._added
        self._added = {}
        newest = list(self._results.items())[-self._max_entries :]
        temporary = self._file.with_name(f"{self._file.name}.{uuid.uuid4().hex}")
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(dict(newest)))
            temporary.replace(self._file)


def cache_folder() -> Path:
    """Returns the user's cache folder, below XDG_CACHE_HOME or `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "deltaworks"


@cache
def code_digest(libraries: Sequence[str], files: Sequence[Path]) -> str:
    """Returns a digest of code: library versions and file contents, without importing them.

    Empty if any file or version cannot be read; results are then not cached.
    """
    versions = [_version(library) for library in libraries]
    try:
        contents = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    except OSError:
        return ""
    if not all(versions):
        return ""
    return hashlib.sha256(json.dumps([versions, contents]).encode()).hexdigest()


def _version(library: str) -> str:
    """Returns a library's installed version from its dist-info folder; empty if there is none. Importing
    `importlib.metadata` takes longer than most checks.
    """
    spec = importlib.util.find_spec(library)
    if spec is None or spec.origin is None:
        return ""
    return " ".join(sorted(folder.name for folder in Path(spec.origin).parents[1].glob(f"{library}-*.dist-info")))


def _read(file: Path, is_valid: Callable[[Any], bool]) -> dict[str, T]:
    try:
        results = json.loads(file.read_bytes())
        cache = all(map(is_valid, results.values()))
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return {}
    return results if cache else {}
