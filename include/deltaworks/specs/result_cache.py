"""What was looked at and is right, remembered in the user's cache folder, so that nothing is looked at twice.

What a check would say follows from what it looks at and from the code that looks. A digest of both stands for it. Only
what is right is kept: a mistake is looked for, and said, each time.
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
    """Answers by digest, in a file of JSON. Where it cannot be read or written, nothing is remembered.

    Several processes may use it at once: it is replaced as a whole, and what one of them has added may be lost.
    """

    def __init__(self, file: Path, *, max_entries: int, is_valid: Callable[[Any], bool]) -> None:
        """Read the file.

        Args:
            most: answers that are kept; the oldest ones are forgotten.
            is_answer: whether a value is an answer; a file with any other is taken for damaged.
        """
        self._file = file
        self._max_entries = max_entries
        self._results: dict[str, T] = _read(file, is_valid)
        self._added: dict[str, T] = {}

    def __contains__(self, digest: str | None) -> bool:
        return digest in self._results

    def get(self, digest: str) -> T:
        """The answer that is remembered."""
        return self._results[digest]

    def put(self, digest: str, result: T) -> None:
        """Keep what was looked at and is right. `save` writes it."""
        self._added[digest] = result

    def save(self) -> None:
        """Write what is new; nothing where nothing is."""
        if not self._added:
            return
        self._results |= self._added
        self._added = {}
        kept = list(self._results.items())[-self._max_entries :]
        part = self._file.with_name(f"{self._file.name}.{uuid.uuid4().hex}")
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(dict(kept)))
            part.replace(self._file)


def cache_folder() -> Path:
    """The user's, below XDG_CACHE_HOME or `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "deltaworks"


@cache
def code_digest(libraries: Sequence[str], files: Sequence[Path]) -> str:
    """What stands for code: the libraries' versions and the files' content, nothing of which is loaded.

    Empty where any of it cannot be read: what that code says is not remembered.
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
    """The version that is installed, from the name of the folder beside the library; empty where there is none.
    `importlib.metadata` takes longer to load than most checks take."""
    spec = importlib.util.find_spec(library)
    if spec is None or spec.origin is None:
        return ""
    return " ".join(sorted(folder.name for folder in Path(spec.origin).parents[1].glob(f"{library}-*.dist-info")))


def _read(file: Path, is_valid: Callable[[Any], bool]) -> dict[str, T]:
    try:
        answers = json.loads(file.read_bytes())
        cache = all(map(is_valid, answers.values()))
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return {}
    return answers if cache else {}
