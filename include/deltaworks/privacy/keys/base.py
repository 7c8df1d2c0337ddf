"""Interface of key services.

A service has master keys that never leave it, and wraps data keys with them: 32 random bytes that encrypt values. A
wrapped key is bound to a context (`namespace`, `purpose` and more): it can be unwrapped only with the same context.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

#: Purposes of keys. The key service's policy grants each purpose separately.
TOKEN_PURPOSE: Final = "token"  # noqa: S105  a purpose, not a secret
SEAL_PURPOSE: Final = "seal"
UNREADABLE_PURPOSE: Final = "unreadable"
EPOCH_PURPOSE: Final = "epoch"
KEY_BYTES: Final = 32
Context = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DataKey:
    """A data key, both plain and wrapped, and the id of the master key that wraps it."""

    plain: bytes = field(repr=False)
    wrapped: bytes
    key_id: str


@dataclass(frozen=True, slots=True)
class DestroyedKey:
    """A master key that is destroyed, or scheduled for it. From `destroyed_at` on it unwraps nothing."""

    key_id: str
    destroyed_at: datetime


class KeyService(Protocol):
    """Creates and unwraps data keys. Thread-safe."""

    def new_key(self, context: Context) -> DataKey:
        """Creates a data key that can be unwrapped only with this context.

        Raises:
            TransientError: KEY_SERVICE_UNREACHABLE.
            ConfigError: KEY_SERVICE_REFUSED, KEYRING_UNUSABLE.
        """

    def unwrap(self, wrapped: bytes, context: Context) -> bytes:
        """Unwraps a data key and returns it.

        Raises:
            ContractError: KEY_CONTEXT_DIFFERS, it was wrapped for another context or is corrupt; KEY_DESTROYED.
            TransientError: KEY_SERVICE_UNREACHABLE.
            ConfigError: KEY_SERVICE_REFUSED, KEYRING_UNUSABLE.
        """

    def destroy(self, key_id: str) -> DestroyedKey:
        """Destroys a master key. Data keys that it wraps can no longer be unwrapped. Idempotent.

        Raises:
            TransientError: KEY_SERVICE_UNREACHABLE.
            ConfigError: KEY_SERVICE_REFUSED, KEYRING_UNUSABLE.
        """


def key_context(namespace: str, purpose: str, **more: str) -> dict[str, str]:
    """Returns the context that a data key is bound to: namespace, purpose and further attributes."""
    return {"namespace": namespace, "purpose": purpose, **more}


def encode_context(context: Context) -> bytes:
    """Encodes a context as associated data: names and values with their lengths, sorted by name."""
    pieces = [piece.encode() for name in sorted(context) for piece in (name, context[name])]
    return b"".join(len(piece).to_bytes(4, "big") + piece for piece in pieces)
