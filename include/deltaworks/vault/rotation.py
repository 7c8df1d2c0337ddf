"""Rotation: creates a new epoch key every month, wraps the subjects' keys with it, and destroys the old epoch key.

Without the old epoch key, copies of key pages, for example in disk backups, cannot be unwrapped. So a subject's
destroyed key is unusable in such copies too, after a month at the latest. The next run completes an interrupted
rotation; the vault's state shows the remaining steps.
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
    """The result of a rotation or its dry run: number of keys moved to `epoch`, and the destroyed epochs."""

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
    """Wraps every key with a new epoch key and destroys older ones, if the newest epoch is at least `every_days` old.

    Idempotent under kill -9: several epochs mean an interrupted rotation, which is completed. The caller holds the
    vault's lock.

    Args:
        every_days: minimum age of the newest epoch in days.
        force: rotate at any age.

    Raises:
        ContractError: VAULT_KEYS_UNREADABLE, VAULT_KEY_REMAINS.
        TransientError: KEY_SERVICE_UNREACHABLE.
    """
    numbers = epochs.numbers()
    if not numbers:
        # Nothing has been encrypted yet: the first key creates the first epoch.
        return RotationResult(namespace=namespace, dry_run=dry_run, due=False, epoch=0, age_days=0.0)
    newest = epochs.newest()
    age = (now or utc_now()) - newest.created_at
    unfinished = len(numbers) > 1
    due = unfinished or force or age >= timedelta(days=every_days)
    if due and not dry_run:
        current = newest if unfinished else epochs.get_or_create(newest.number + 1)
        return _complete_rotation(current.number, namespace, epochs, keys)
    # Keys are not counted: that would read all pages.
    return RotationResult(
        namespace=namespace,
        dry_run=dry_run,
        due=due,
        epoch=newest.number,
        age_days=round(age / timedelta(days=1), 1),
        pages=len(keys.pages()),
    )


def _complete_rotation(epoch: int, namespace: str, epochs: EpochKeys, keys: SubjectKeys) -> RotationResult:
    """Wraps every key with this epoch key, then destroys the older ones."""
    rewrapped = keys.rewrap()
    if outdated := keys.pages_older_than(epoch):
        raise ContractError(
            "VAULT_KEY_REMAINS",
            f"{len(outdated)} pages of {namespace!r} still have keys of an older epoch, for example {outdated[0]}.",
            hint="Nothing was destroyed. Check which process writes keys with an old epoch, then run it again.",
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
