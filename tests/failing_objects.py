"""Control objects of a storage that is full for a while: what tests of writes that are made up for stand on."""

from __future__ import annotations

from deltaworks.control.objects import LocalObjects


class RefusingObjects(LocalObjects):
    """Objects in a folder, of which none is written as long as `refuses` is set, as it is at first."""

    refuses = True

    def put(self, key: str, data: bytes) -> None:
        if self.refuses:
            raise OSError("full")
        super().put(key, data)
