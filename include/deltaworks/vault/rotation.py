"""Rotation: wraps the subjects' keys with a new epoch every month, and destroys the old one.

Copies of key pages, for example in disk backups, cannot be unwrapped then, so destroyed keys are gone from copies too,
after a month at the latest. The next run completes an interrupted rotation; the vault's state shows the remaining
steps.
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
    """Result of a rotation or dry run: keys moved to `epoch`, and destroyed epochs."""

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
    """Wraps every key with a new epoch and destroys older epochs, if the newest one is old enough.

    Idempotent under kill -9: several epochs mean an interrupted rotation, which is completed. The caller holds the
    vault's lock.

    Args:
        every_days: age of the newest epoch from which a rotation is due.
        force: rotates at any age.

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
    """Moves every key to this epoch, then destroys the older ones."""
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
