"""Runs ingest and maintenance of the vault for a namespace, and records the vault's state in the lake.

Maintenance includes rotation: it creates a new epoch key every month, wraps the subjects' keys with it, and destroys
the old epoch key. Without the old epoch key, copies of key pages, for example in disk backups, cannot be unwrapped. So
a subject's destroyed key is unusable in such copies too, after a month at the latest. The next run completes an
interrupted rotation; the vault's state shows the remaining steps.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from deltaworks.control import paths
from deltaworks.control.clock import iso_now, parse_iso, utc_now
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.records.erasure import VaultHeartbeat, read_vault_heartbeat
from deltaworks.errors import ConcurrencyError, ContractError, DeltaworksError
from deltaworks.privacy.tokens.envelope_encryption import Unsealer
from deltaworks.privacy.tokens.suppression import read_suppression
from deltaworks.privacy.vault.ingest import IngestResult, VaultIngest
from deltaworks.privacy.vault.ingest_inputs import (
    DestroyedDays,
    SealedFiles,
    SuppressionList,
    destroy_day_keys,
    waiting_files,
)
from deltaworks.privacy.vault.key_pages import EpochKeys, SubjectKeys
from deltaworks.privacy.vault.namespace_vault import NamespaceVault, privacy_settings_of
from deltaworks.privacy.vault.tables import MaintenanceResult
from deltaworks.specs.environment import EnvironmentSpec

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


_MAX_NAMED = 5
_RUNS_AT_LEAST_EVERY = timedelta(hours=1)


def run_ingest(
    environment: EnvironmentSpec,
    namespace: str,
    *,
    other_pipelines: Collection[str] = (),
    minutes: float = 30.0,
    dry_run: bool = True,
) -> IngestResult:
    """Ingests the waiting sealed files of a namespace. Idempotent under kill -9; safe with concurrent writers and jobs
    of other namespaces.

    Args:
        other_pipelines: pipelines of other namespaces.
        minutes: no further files are started after this time; the next run continues.

    Raises:
        ConfigError: KEY_SERVICE_UNDECLARED, VAULT_NOT_ISOLATED, VAULT_BUCKET_VERSIONED, KEYRING_UNUSABLE.
        ConcurrencyError: VAULT_BUSY, COMMIT_CONTENDED, VAULT_KEYS_CONTENDED.
        TransientError: KEY_SERVICE_UNREACHABLE, or a storage does not answer.
    """
    started_at = iso_now()
    with _record_failures(environment, namespace, dry_run=dry_run):
        vault = NamespaceVault.open(environment, namespace)
        unsealer = Unsealer(vault.service, day_key=_no_day_key)
        files = SealedFiles(vault.objects, namespace, unsealer, other_pipelines=other_pipelines)
        deadline = time.monotonic() + 60 * minutes
        if dry_run:
            return VaultIngest(
                vault, files, SuppressionList.read(vault.lake_objects, namespace, vault.service), dry_run=True
            ).run()
        with vault.lock():
            # The list is read under the lock. An erasure adds tokens to it before it destroys their keys under this
            # lock.
            suppressed = SuppressionList.read(vault.lake_objects, namespace, vault.service)
            result = VaultIngest(vault, files, suppressed, deadline=deadline).run()
        _write_heartbeat(vault, result, started_at)
        return result


def reason_to_ingest(
    environment: EnvironmentSpec,
    namespace: str,
    *,
    other_pipelines: Collection[str] = (),
    now: datetime | None = None,
) -> str:
    """Returns why an ingest has to run; empty if it would find nothing, which is recorded in the vault's state.

    Opens no key. An ingest runs at least once an hour, so that an unreachable key service or a storage that became
    unsuitable is noticed without new files.

    Args:
        other_pipelines: pipelines of other namespaces.

    Raises:
        ContractError: VAULT_RECORD_UNREADABLE, SUPPRESSION_UNREADABLE.
        TransientError: a storage does not answer.
    """
    at = now or utc_now()
    lake_objects = open_objects(environment.lake)
    beat = read_vault_heartbeat(lake_objects, namespace)
    ran_at = None if beat is None else parse_iso(beat.written_at)
    if beat is None or ran_at is None or at - ran_at >= _RUNS_AT_LEAST_EVERY:
        return "no ingest has run within the hour"
    if beat.failure_condition:
        return f"the last ingest failed with {beat.failure_condition}"
    if beat.suppression != read_suppression(lake_objects, namespace).number:
        return "the list of suppressed subjects has changed"
    vault_objects = open_objects(privacy_settings_of(environment).vault)
    if waiting := len(waiting_files(vault_objects, namespace, other_pipelines=other_pipelines)):
        return f"{waiting:,} sealed files wait"
    # The time of the last ingest stays, because this was none.
    lake_objects.put(paths.vault_heartbeat(namespace), beat.replace(caught_up_at=at.isoformat()).encode())
    return ""


def maintain(
    environment: EnvironmentSpec,
    namespace: str,
    *,
    unreadable_retention_days: int,
    rotate_days: float = ROTATION_DAYS,
    rotate_now: bool = False,
    today: date | None = None,
    dry_run: bool = True,
) -> tuple[RotationResult, DestroyedDays, list[MaintenanceResult]]:
    """Rotates the epoch key if due, destroys expired day keys, and compacts the tables. Idempotent.

    Raises:
        ConfigError, ConcurrencyError, TransientError: see `run_ingest`.
        ContractError: VAULT_KEY_REMAINS, VAULT_KEYS_UNREADABLE.
    """
    with _record_failures(environment, namespace, dry_run=dry_run):
        vault = NamespaceVault.open(environment, namespace)
        with contextlib.nullcontext() if dry_run else vault.lock():
            rotation = rotate(
                namespace, vault.epochs, vault.keys, dry_run=dry_run, every_days=rotate_days, force=rotate_now
            )
            days = destroy_day_keys(
                vault.objects,
                namespace,
                retention_days=unreadable_retention_days,
                today=today or utc_now().date(),
                dry_run=dry_run,
            )
            upkeep = [] if dry_run else vault.tables.maintain()
        return rotation, days, upkeep


def _no_day_key(namespace: str, day: str) -> bytes:
    raise AssertionError(f"the vault's job never opens unreadable bodies ({namespace}, {day})")


def _write_heartbeat(vault: NamespaceVault, result: IngestResult, started_at: str) -> None:
    previous = read_vault_heartbeat(vault.lake_objects, vault.namespace)
    clean = result.remaining == len(result.damaged)
    numbers = vault.epochs.numbers()
    epoch = vault.epochs.open(numbers[-1]) if numbers else None
    beat = VaultHeartbeat(
        namespace=vault.namespace,
        written_at=iso_now(),
        caught_up_at=started_at if clean else previous.caught_up_at if previous else "",
        suppression=result.suppression if clean or previous is None else previous.suppression,
        waiting=result.remaining,
        unreadable=tuple(result.damaged[:_MAX_NAMED]),
        epoch=epoch.number if epoch else 0,
        epoch_at=epoch.created_at.isoformat() if epoch else "",
    )
    vault.lake_objects.put(paths.vault_heartbeat(vault.namespace), beat.encode())


@contextlib.contextmanager
def _record_failures(environment: EnvironmentSpec, namespace: str, *, dry_run: bool) -> Iterator[None]:
    """Records the condition of a failed run in the vault's state. Conflicts with another run are not recorded."""
    try:
        yield
    except ConcurrencyError:
        raise
    except DeltaworksError as error:
        if not dry_run:
            # If the lake does not answer, the original error is more useful.
            with contextlib.suppress(DeltaworksError):
                _record_failure(open_objects(environment.lake), namespace, error.condition)
        raise


def _record_failure(objects: ObjectStore, namespace: str, condition: str) -> None:
    now = iso_now()
    previous = read_vault_heartbeat(objects, namespace) or VaultHeartbeat(namespace=namespace, written_at=now)
    since = previous.failing_since if previous.failure_condition == condition else now
    beat = previous.replace(written_at=now, failure_condition=condition, failing_since=since)
    objects.put(paths.vault_heartbeat(namespace), beat.encode())
