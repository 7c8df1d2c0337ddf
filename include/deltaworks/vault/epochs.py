"""Epochs: the keys that wrap those of subjects, a month each, themselves wrapped by the key service.

There is one at a time but for the minutes of a rotation. The newest wraps; an older one opens what it has wrapped until
it is destroyed, after which every copy of a page that was made under it is dead.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime

from deltaworks.control import vault_paths
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.errors import ContractError
from deltaworks.privacy.keys.base import EPOCH_PURPOSE, KeyService, key_context
from deltaworks.privacy.keys.stored_keys import decode_wrapped_key, get_or_create_key


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch with its key in plain: 32 bytes, which never leave the process."""

    number: int
    created_at: datetime
    key: bytes = field(repr=False)


class EpochKeys:
    """The epochs of one namespace. Keys are unwrapped once; used by one thread."""

    def __init__(self, objects: ObjectStore, namespace: str, service: KeyService) -> None:
        self._objects = objects
        self._namespace = namespace
        self._service = service
        self._opened: dict[int, Epoch] = {}

    def numbers(self) -> list[int]:
        """The epochs there are, ascending. One listing."""
        folder = vault_paths.key_epochs(self._namespace)
        names = (key.removeprefix(folder).removesuffix(".json") for key in self._objects.list(folder))
        return sorted(int(name) for name in names if name.isdigit())

    def newest(self) -> Epoch:
        """The epoch that wraps; the first where there is none yet.

        Raises:
            TransientError: KEY_SERVICE_UNREACHABLE.
            ContractError: KEY_CONTEXT_DIFFERS, KEY_DESTROYED, STORED_KEY_UNREADABLE.
        """
        numbers = self.numbers()
        return self.open(numbers[-1]) if numbers else self.get_or_create(1)

    def open(self, number: int) -> Epoch:
        """One epoch with its key.

        Raises:
            ContractError: VAULT_EPOCH_DESTROYED; KEY_CONTEXT_DIFFERS, KEY_DESTROYED, STORED_KEY_UNREADABLE.
            TransientError: KEY_SERVICE_UNREACHABLE.
        """
        if number not in self._opened:
            key = vault_paths.key_epoch(self._namespace, number)
            stored = self._objects.get(key)
            if stored is None:
                raise ContractError(
                    "VAULT_EPOCH_DESTROYED",
                    f"Epoch {number} of {self._namespace!r} is destroyed: {key} is not there.",
                    hint="What it wrapped stays closed. Where no rotation ended, put the key store back.",
                )
            plain = self._service.unwrap(decode_wrapped_key(key, stored.data), self._context(number))
            self._opened[number] = Epoch(number, _created_at(stored.data), plain)
        return self._opened[number]

    def get_or_create(self, number: int) -> Epoch:
        """Create an epoch, and return the one that stands: somebody else's where that one was first.

        Raises:
            TransientError: KEY_SERVICE_UNREACHABLE.
            ContractError: KEY_CONTEXT_DIFFERS, KEY_DESTROYED, STORED_KEY_UNREADABLE.
        """
        key = vault_paths.key_epoch(self._namespace, number)
        get_or_create_key(self._service, self._objects, key=key, context=self._context(number))
        return self.open(number)

    def destroy(self, number: int) -> None:
        """Delete an epoch's key, and read back that it is gone. Idempotent; nothing brings it back.

        Raises:
            ContractError: VAULT_KEY_REMAINS, the storage still has it.
        """
        self._opened.pop(number, None)
        delete_key(self._objects, vault_paths.key_epoch(self._namespace, number))

    def _context(self, number: int) -> dict[str, str]:
        return key_context(self._namespace, EPOCH_PURPOSE, epoch=str(number))


def delete_key(objects: ObjectStore, key: str) -> None:
    """Delete an object that holds a key, and read back that it is gone. Idempotent.

    Raises:
        ContractError: VAULT_KEY_REMAINS.
    """
    objects.delete(key)
    if objects.get(key) is not None:
        raise key_remains_error(key)


def key_remains_error(key: str) -> ContractError:
    """What is raised where a key that was removed is still there."""
    return ContractError(
        "VAULT_KEY_REMAINS",
        f"A key in {key} was removed and is still there when it is read back.",
        hint="See whether something restores the vault's objects, then run it again: nothing is certified before.",
    )


def _created_at(data: bytes) -> datetime:
    return parse_iso(str(json.loads(data).get("created_at") or "")) or utc_now()
