"""Interface of key services.

A service has master keys that never leave it, and wraps data keys with them: 32 random bytes that encrypt values. A
wrapped key is bound to a context (`namespace`, `purpose` and more): it can be unwrapped only with the same context.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

#: Purposes of keys; the policy of a service grants them separately.
TOKEN_PURPOSE: Final = "token"  # noqa: S105  a purpose, not a secret
SEAL_PURPOSE: Final = "seal"
UNREADABLE_PURPOSE: Final = "unreadable"
EPOCH_PURPOSE: Final = "epoch"
KEY_BYTES: Final = 32
Context = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DataKey:
    """A data key in plain and wrapped form, and the id of the master key that wraps it."""

    plain: bytes = field(repr=False)
    wrapped: bytes
    key_id: str


@dataclass(frozen=True, slots=True)
class DestroyedKey:
    """A master key that is or will be destroyed: from `destroyed_at` on nothing can be unwrapped with it."""

    key_id: str
    destroyed_at: datetime


class KeyService(Protocol):
    """Creates and unwraps keys by context. Thread-safe."""

    def new_key(self, context: Context) -> DataKey:
        """Creates a data key.

        Raises:
            TransientError: KEY_SERVICE_UNREACHABLE.
            ConfigError: KEY_SERVICE_REFUSED, KEYRING_UNUSABLE.
        """

    def unwrap(self, wrapped: bytes, context: Context) -> bytes:
        """Returns the data key that was wrapped for this context.

        Raises:
            ContractError: KEY_CONTEXT_DIFFERS, it was wrapped for another context or is corrupt; KEY_DESTROYED.
            TransientError: KEY_SERVICE_UNREACHABLE.
            ConfigError: KEY_SERVICE_REFUSED, KEYRING_UNUSABLE.
        """

    def destroy(self, key_id: str) -> DestroyedKey:
        """Destroys a master key, and with it all keys that it wraps. Idempotent.

        Raises:
            TransientError: KEY_SERVICE_UNREACHABLE.
            ConfigError: KEY_SERVICE_REFUSED, KEYRING_UNUSABLE.
        """


def key_context(namespace: str, purpose: str, **more: str) -> dict[str, str]:
    """Returns the context of a namespace and purpose, with further attributes."""
    return {"namespace": namespace, "purpose": purpose, **more}


def encode_context(context: Context) -> bytes:
    """Encodes a context as associated data: names and values with their lengths, sorted by name."""
    pieces = [piece.encode() for name in sorted(context) for piece in (name, context[name])]
    return b"".join(len(piece).to_bytes(4, "big") + piece for piece in pieces)
