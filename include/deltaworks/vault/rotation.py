"""Rotation: each month the keys of subjects get a new epoch, and the old one is destroyed.

Whoever kept a copy of a page, a backup of the disk below among them, then has keys that nothing unwraps: shredding
holds for copies as well, at the latest a month later. A rotation that died is continued by the next run: what is left
to do shows in the vault itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from deltaworks.control.clock import utc_now
from deltaworks.errors import ContractError
from deltaworks.vault.epochs import EpochKeys
from deltaworks.vault.key_pages import SubjectKeys

ROTATION_DAYS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationResult:
    """What a rotation did, or would do: keys that moved to `epoch`, and the epochs that were destroyed."""

    namespace: str
    dry_run: bool
    due: bool
    epoch: int
    age_days: float
    pages: int = 0
    keys: int = 0
    destroyed: str = ""


def rotate(
    namespace: str,
    epochs: EpochKeys,
    keys: SubjectKeys,
    *,
    dry_run: bool = True,
    every_days: float = ROTATION_DAYS,
    force: bool = False,
    now: datetime | None = None,
) -> RotationResult:
    """Bring every key under a new epoch and destroy the older ones, where the newest is old enough.

    Idempotent under kill -9: several epochs at once are a rotation that died, which is continued and not begun anew.
    The caller holds the vault's lock.

    Args:
        every_days: from which age of the newest epoch on it is due.
        at_once: it is due whatever its age.

    Raises:
        ContractError: VAULT_KEYS_UNREADABLE, VAULT_KEY_REMAINS.
        TransientError: KEY_SERVICE_UNREACHABLE.
    """
    numbers = epochs.numbers()
    if not numbers:
        # Nothing was ever sealed: the first key makes the first epoch.
        return RotationResult(namespace=namespace, dry_run=dry_run, due=False, epoch=0, age_days=0.0)
    newest = epochs.newest()
    age = (now or utc_now()) - newest.created_at
    unfinished = len(numbers) > 1
    due = unfinished or force or age >= timedelta(days=every_days)
    if due and not dry_run:
        current = newest if unfinished else epochs.get_or_create(newest.number + 1)
        return _complete_rotation(current.number, namespace, epochs, keys)
    # Keys are not counted here: that reads all pages.
    return RotationResult(
        namespace=namespace,
        dry_run=dry_run,
        due=due,
        epoch=newest.number,
        age_days=round(age / timedelta(days=1), 1),
        pages=len(keys.pages()),
    )


def _complete_rotation(epoch: int, namespace: str, epochs: EpochKeys, keys: SubjectKeys) -> RotationResult:
    """Every key is of this epoch, and the older ones are destroyed: only once nothing needs them."""
    rewrapped = keys.rewrap()
    if outdated := keys.pages_older_than(epoch):
        raise ContractError(
            "VAULT_KEY_REMAINS",
            f"{len(outdated)} pages of {namespace!r} still have keys of an older epoch, such as {outdated[0]}.",
            hint="Nothing was destroyed. See who else writes keys with an old epoch, then run it again.",
        )
    older = [number for number in epochs.numbers() if number < epoch]
    for number in older:
        epochs.destroy(number)
    return RotationResult(
        namespace=namespace,
        dry_run=False,
        due=True,
        epoch=epoch,
        age_days=0.0,
        pages=rewrapped.pages,
        keys=rewrapped.keys,
        destroyed=", ".join(map(str, older)),
    )
