"""Caches the catalog until a file changes: loading it takes a tenth of a second per pipeline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from deltaworks.specs.project_folder import project_root

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog

_FOLDERS = ("pipelines", "relays", "environments", "collectors")


def _read() -> Catalog:
    from deltaworks.specs.project import load_catalog

    return load_catalog(skip_invalid=True)


class CatalogCache:
    """The cached catalog of a process. Thread-safe: while one thread reloads it, others get the previous catalog.

    Args:
        check_seconds: the interval of checks for changed files.
    """

    def __init__(self, read: Callable[[], Catalog] = _read, *, check_seconds: float = 5.0) -> None:
        self._read = read
        self._check_seconds = check_seconds
        self._lock = threading.Lock()
        self._catalog: Catalog | None = None
        self._files: frozenset[tuple[str, int, int]] = frozenset()
        self._checked_at = float("-inf")

    def current(self) -> Catalog:
        """Returns the catalog, or the last valid one while the environment is invalid.

        Raises:
            ConfigError: the environment is invalid and no catalog was loaded before.
        """
        catalog = self._catalog
        if catalog is not None and time.monotonic() - self._checked_at < self._check_seconds:
            return catalog
        if not self._lock.acquire(blocking=catalog is None):
            assert catalog is not None
            return catalog
        try:
            return self._reload()
        finally:
            self._lock.release()

    def _reload(self) -> Catalog:
        state = _list_files(project_root() / "include")
        if self._catalog is None or state != self._files:
            try:
                self._catalog, self._files = self._read(), state
            except Exception:  # a file may be in the middle of a write; the next check reads it again
                if self._catalog is None:
                    raise
        self._checked_at = time.monotonic()
        return self._catalog


def _list_files(include: Path) -> frozenset[tuple[str, int, int]]:
    """Returns all declaration files with modification time and size."""
    files = set()
    for folder in _FOLDERS:
        for path in (include / folder).rglob("*"):
            try:
                status = path.stat()
            except OSError:  # the file was removed after it was listed
                continue
            files.add((str(path), status.st_mtime_ns, status.st_size))
    return frozenset(files)
