"""Control objects that record every read, for tests of caching."""

from __future__ import annotations

from pathlib import Path

from deltaworks.control.objects import LocalObjects, StoredObject


class NotingObjects(LocalObjects):
    """Objects in a folder; `reads` are the requested keys and prefixes, in order."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads: list[str] = []

    def get(self, key: str) -> StoredObject | None:
        self.reads.append(key)
        return super().get(key)

    def list(self, prefix: str) -> list[str]:
        self.reads.append(prefix)
        return super().list(prefix)

    def times_read(self, prefix: str) -> int:
        """Returns how many recorded reads have this prefix."""
        return sum(key.startswith(prefix) for key in self.reads)
