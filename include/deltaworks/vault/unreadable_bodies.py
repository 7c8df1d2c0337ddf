"""What could not be read: kept sealed under the key of its day, and gone with that key.

Nobody can say whose it is, so nobody can be erased from it: after some days the key of a day is destroyed, and the
bodies with it. Until then they lie here, apart from the sealed files, which the job deletes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from deltaworks.control import vault_paths
from deltaworks.control.objects import ObjectStore
from deltaworks.privacy import paths
from deltaworks.privacy.envelope_encryption import SealedFrame, encode_sealed_file
from deltaworks.vault.epochs import delete_key


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyedDays:
    """The days whose key is destroyed, or would be, and the objects that went with it."""

    namespace: str
    dry_run: bool
    before: str
    days: int
    objects: int


def store_unreadable(
    objects: ObjectStore, namespace: str, day: str, source: str, frames: Sequence[SealedFrame]
) -> None:
    """Keep the frames of one sealed file below their day. Idempotent: the same file makes the same object."""
    name = source.removeprefix(paths.sealed()).replace("/", "-")
    objects.put_if_absent(vault_paths.unreadable_files(namespace, day, name), encode_sealed_file(frames))


def destroy_day_keys(
    objects: ObjectStore, namespace: str, *, retention_days: int, today: date, dry_run: bool = True
) -> DestroyedDays:
    """Destroy the keys of days that ended more than `keep_days` ago, then delete what they sealed. Idempotent; final.

    Raises:
        ContractError: VAULT_KEY_REMAINS.
    """
    before = (today - timedelta(days=retention_days)).isoformat()
    keys = [key for key in objects.list(paths.day_keys(namespace)) if _day_of(key, paths.day_keys(namespace)) < before]
    folder = vault_paths.unreadable_files(namespace)
    bodies = [key for key in objects.list(folder) if _day_of(key, folder) < before]
    if not dry_run:
        # The key first: a run that dies between the two leaves bodies that nothing opens.
        for key in keys:
            delete_key(objects, key)
        for key in bodies:
            objects.delete(key)
    return DestroyedDays(namespace=namespace, dry_run=dry_run, before=before, days=len(keys), objects=len(bodies))


def _day_of(key: str, folder: str) -> str:
    return key.removeprefix(folder).partition("/")[0].removesuffix(".json")
