"""Control objects whose writes fail until a test allows them, for tests of retries on a full storage."""

from __future__ import annotations

from deltaworks.control.objects import LocalObjects


class RefusingObjects(LocalObjects):
    """Objects in a folder. Writes fail while `refuses` is set, which is the initial state."""

    refuses = True

    def put(self, key: str, data: bytes) -> None:
        if self.refuses:
            raise OSError("full")
        super().put(key, data)
