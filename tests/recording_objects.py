"""Control objects that note what is read: what tests of reads that are made once, or not at all, stand on."""

from __future__ import annotations

from pathlib import Path

from deltaworks.control.objects import LocalObjects, StoredObject


class NotingObjects(LocalObjects):
    """Objects in a folder; `reads` are the keys and prefixes that were asked for, in their order."""

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
        """How many reads began so."""
        return sum(key.startswith(prefix) for key in self.reads)
