"""Stores unreadable bodies of requests, encrypted under the key of their day, and destroys that key after some days.

Their subjects are unknown, so single subjects cannot be erased from them: destroying the day key erases all. They are
stored separately from the sealed files, which the ingest deletes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from deltaworks.control.objects import ObjectStore
from deltaworks.privacy import paths
from deltaworks.privacy.envelope_encryption import Identity, SealedFrame, encode_sealed_file
from deltaworks.privacy.keys.base import KeyService
from deltaworks.privacy.keys.stored_keys import namespace_token_key
from deltaworks.privacy.suppression import Suppression, read_suppression
from deltaworks.vault.key_pages import delete_key


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyedDays:
    """Days whose key was destroyed (or would be, in a dry run), and the number of deleted objects."""

    namespace: str
    dry_run: bool
    before: str
    days: int
    objects: int


def store_unreadable(
    objects: ObjectStore, namespace: str, day: str, source: str, frames: Sequence[SealedFrame]
) -> None:
    """Stores the unreadable bodies of one sealed file under their day. Idempotent."""
    name = source.removeprefix(paths.sealed_files_path()).replace("/", "-")
    objects.put_if_absent(paths.vault_unreadable_files(namespace, day, name), encode_sealed_file(frames))


def destroy_day_keys(
    objects: ObjectStore, namespace: str, *, retention_days: int, today: date, dry_run: bool = True
) -> DestroyedDays:
    """Destroys the keys of days that are more than `retention_days` old, then deletes their bodies. Idempotent and
    irreversible.

    Raises:
        ContractError: VAULT_KEY_REMAINS.
    """
    before = (today - timedelta(days=retention_days)).isoformat()
    keys = [
        key
        for key in objects.list(paths.day_keys_folder(namespace))
        if _day_of(key, paths.day_keys_folder(namespace)) < before
    ]
    folder = paths.vault_unreadable_files(namespace)
    bodies = [key for key in objects.list(folder) if _day_of(key, folder) < before]
    if not dry_run:
        # Keys first: an interrupted run leaves only bodies that cannot be decrypted.
        for key in keys:
            delete_key(objects, key)
        for key in bodies:
            objects.delete(key)
    return DestroyedDays(namespace=namespace, dry_run=dry_run, before=before, days=len(keys), objects=len(bodies))


def _day_of(key: str, folder: str) -> str:
    return key.removeprefix(folder).partition("/")[0].removesuffix(".json")


class SuppressionList:
    """The suppression list of a namespace, and the token key that is needed to match tokens."""

    def __init__(self, suppression: Suppression, key: bytes) -> None:
        self._suppression = suppression
        self._key = key

    @classmethod
    def read(cls, lake: ObjectStore, namespace: str, service: KeyService) -> SuppressionList:
        """Reads the current list. The token key is read only if the list has entries.

        Raises:
            ContractError: SUPPRESSION_UNREADABLE, KEY_CONTEXT_DIFFERS, KEY_DESTROYED, STORED_KEY_UNREADABLE.
            TransientError: KEY_SERVICE_UNREACHABLE, or the storage does not answer.
        """
        suppression = read_suppression(lake, namespace)
        if not len(suppression):
            return cls(suppression, b"")
        return cls(suppression, namespace_token_key(service, lake, namespace))

    @property
    def number(self) -> int:
        """The number of the list's last record; 0 for an empty list."""
        return self._suppression.number

    def matches(self, identity: Identity) -> bool:
        """Returns whether an identity's subject or token is suppressed."""
        tokens = {identity.subject, identity.token}
        return self._suppression.matches(self._key, tokens, at_us=identity.at_ms * 1000)
