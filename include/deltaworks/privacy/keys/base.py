"""What a key service does, whichever it is.

A service has keys of its own that never leave it, and wraps data keys with them: 32 random bytes that encrypt values.
A context (`namespace`, `purpose`, and what else names the use) is bound to a wrapped key: it is unwrapped only for who
says the same context again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

#: The purposes for which keys are made; a service's policy grants them one by one.
TOKEN_PURPOSE: Final = "token"  # noqa: S105  the name of a use
SEAL_PURPOSE: Final = "seal"
UNREADABLE_PURPOSE: Final = "unreadable"
EPOCH_PURPOSE: Final = "epoch"
KEY_BYTES: Final = 32
Context = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DataKey:
    """A key as it is used, as it may be kept, and which key of the service wraps it."""

    plain: bytes = field(repr=False)
    wrapped: bytes
    key_id: str


@dataclass(frozen=True, slots=True)
class DestroyedKey:
    """A key of the service that is gone, or will be: from `gone_at` on nothing unwraps what it has wrapped."""

    key_id: str
    destroyed_at: datetime


class KeyService(Protocol):
    """Keys by context. Safe to use from several threads."""

    def new_key(self, context: Context) -> DataKey:
        """Make a data key.

        Raises:
            TransientError: KEY_SERVICE_UNREACHABLE.
            ConfigError: KEY_SERVICE_REFUSED, KEYRING_UNUSABLE.
        """

    def unwrap(self, wrapped: bytes, context: Context) -> bytes:
        """The data key that was wrapped for this context.

        Raises:
            ContractError: KEY_CONTEXT_DIFFERS, it was wrapped for another one or is damaged; KEY_DESTROYED.
            TransientError: KEY_SERVICE_UNREACHABLE.
            ConfigError: KEY_SERVICE_REFUSED, KEYRING_UNUSABLE.
        """

    def destroy(self, key_id: str) -> DestroyedKey:
        """Destroy a key of the service, with all that it has wrapped. Idempotent.

        Raises:
            TransientError: KEY_SERVICE_UNREACHABLE.
            ConfigError: KEY_SERVICE_REFUSED, KEYRING_UNUSABLE.
        """


def key_context(namespace: str, purpose: str, **more: str) -> dict[str, str]:
    """The context of a use: for which namespace, for what, and what else tells it from others."""
    return {"namespace": namespace, "purpose": purpose, **more}


def encode_context(context: Context) -> bytes:
    """A context as additional data of an encryption: every name and value with its length, in order."""
    pieces = [piece.encode() for name in sorted(context) for piece in (name, context[name])]
    return b"".join(len(piece).to_bytes(4, "big") + piece for piece in pieces)
