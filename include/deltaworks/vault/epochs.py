"""Epoch keys: the keys that wrap the subjects' keys, replaced every month. The key service wraps the epoch keys.

There is one epoch, except for a few minutes during a rotation. The newest wraps; an older one only unwraps, until it is
destroyed. Then copies of key pages that it wrapped are useless.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime

from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.errors import ContractError
from deltaworks.privacy.keys.base import EPOCH_PURPOSE, KeyService, key_context
from deltaworks.privacy.keys.stored_keys import decode_wrapped_key, get_or_create_key
from deltaworks.privacy.paths import vault_key_epoch, vault_key_epochs


@dataclass(frozen=True, slots=True)
class Epoch:
    """The number, age and plain key of an epoch. The key has 32 bytes and never leaves the process."""

    number: int
    created_at: datetime
    key: bytes = field(repr=False)


class EpochKeys:
    """Reads, creates and destroys the epoch keys of one namespace. Caches unwrapped keys. Not thread-safe."""

    def __init__(self, objects: ObjectStore, namespace: str, service: KeyService) -> None:
        self._objects = objects
        self._namespace = namespace
        self._service = service
        self._opened: dict[int, Epoch] = {}

    def numbers(self) -> list[int]:
        """Returns the numbers of existing epochs, ascending. Needs one listing."""
        folder = vault_key_epochs(self._namespace)
        names = (key.removeprefix(folder).removesuffix(".json") for key in self._objects.list(folder))
        return sorted(int(name) for name in names if name.isdigit())

    def newest(self) -> Epoch:
        """Returns the newest epoch. Creates the first one if there is none.

        Raises:
            TransientError: KEY_SERVICE_UNREACHABLE.
            ContractError: KEY_CONTEXT_DIFFERS, KEY_DESTROYED, STORED_KEY_UNREADABLE.
        """
        numbers = self.numbers()
        return self.open(numbers[-1]) if numbers else self.get_or_create(1)

    def open(self, number: int) -> Epoch:
        """Returns the epoch with this number, with its key unwrapped.

        Raises:
            ContractError: VAULT_EPOCH_DESTROYED; KEY_CONTEXT_DIFFERS, KEY_DESTROYED, STORED_KEY_UNREADABLE.
            TransientError: KEY_SERVICE_UNREACHABLE.
        """
        if number not in self._opened:
            key = vault_key_epoch(self._namespace, number)
            stored = self._objects.get(key)
            if stored is None:
                raise ContractError(
                    "VAULT_EPOCH_DESTROYED",
                    f"Epoch {number} of {self._namespace!r} is destroyed: {key} does not exist.",
                )
            plain = self._service.unwrap(decode_wrapped_key(key, stored.data), self._context(number))
            self._opened[number] = Epoch(number, _created_at(stored.data), plain)
        return self._opened[number]

    def get_or_create(self, number: int) -> Epoch:
        """Creates an epoch unless it exists; returns the stored one.

        Raises:
            TransientError: KEY_SERVICE_UNREACHABLE.
            ContractError: KEY_CONTEXT_DIFFERS, KEY_DESTROYED, STORED_KEY_UNREADABLE.
        """
        key = vault_key_epoch(self._namespace, number)
        get_or_create_key(self._service, self._objects, key=key, context=self._context(number))
        return self.open(number)

    def destroy(self, number: int) -> None:
        """Deletes an epoch's key and verifies that it no longer exists. Idempotent and irreversible.

        Raises:
            ContractError: VAULT_KEY_REMAINS, the object still exists.
        """
        self._opened.pop(number, None)
        delete_key(self._objects, vault_key_epoch(self._namespace, number))

    def _context(self, number: int) -> dict[str, str]:
        return key_context(self._namespace, EPOCH_PURPOSE, epoch=str(number))


def delete_key(objects: ObjectStore, key: str) -> None:
    """Deletes an object with a key and verifies that it no longer exists. Idempotent.

    Raises:
        ContractError: VAULT_KEY_REMAINS.
    """
    objects.delete(key)
    if objects.get(key) is not None:
        raise key_remains_error(key)


def key_remains_error(key: str) -> ContractError:
    """Returns the error for a key that still exists after it was deleted."""
    return ContractError(
        "VAULT_KEY_REMAINS",
        f"The key in {key} still exists after its deletion.",
        hint=(
            "Check whether a process restores objects of the vault, then run it again. Nothing is certified until then."
        ),
    )


def _created_at(data: bytes) -> datetime:
    return parse_iso(str(json.loads(data).get("created_at") or "")) or utc_now()
