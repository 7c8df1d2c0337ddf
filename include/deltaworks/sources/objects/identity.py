"""Which file events are the same one, and a set of identities that stays small for a log of millions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from deltaworks.specs.relay import Overwrites


def identity(
    bucket: str, key: str, etag: str, version_id: str | None = None, *, overwrites: Overwrites = "latest"
) -> bytes:
    """16 bytes that name a file event: equal for redeliveries of it, different for anything else.

    What else there is, the overwrite policy says: whether the same key with another content, or as another version of
    the same content, is another file.
    """
    parts = {
        "ignore": (bucket, key),
        "latest": (bucket, key, etag),
        "every_version": (bucket, key, etag, version_id or ""),
    }[overwrites]
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return digest.digest()


class IdentitySet:
    """Identities seen: those given at the start in sorted arrays, 16 MB per million; those added later in a
    Python set, about 110 MB per million, which a relay's own end after hours keeps small.

    The whole 16 bytes are compared, so two files are never taken for one. Not safe to share between threads.
    """

    def __init__(self, identities: Iterable[bytes] = ()) -> None:
        loaded = np.frombuffer(b"".join(identities), dtype=">u8").reshape(-1, 2).astype(np.uint64)
        order = np.argsort(loaded[:, 0], kind="stable")
        self._high: npt.NDArray[np.uint64] = np.ascontiguousarray(loaded[order, 0])
        self._low: npt.NDArray[np.uint64] = np.ascontiguousarray(loaded[order, 1])
        self._added: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._high) + len(self._added)

    def __contains__(self, item: bytes) -> bool:
        if item in self._added:
            return True
        high, low = np.frombuffer(item, dtype=">u8").astype(np.uint64)
        first = int(np.searchsorted(self._high, high, side="left"))
        last = int(np.searchsorted(self._high, high, side="right"))
        return bool((self._low[first:last] == low).any())

    def add(self, item: bytes) -> None:
        """Remember one more; nothing changes when it is there."""
        if item not in self:
            self._added.add(item)
