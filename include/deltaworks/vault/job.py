"""Runs ingest and maintenance of the vault for a namespace, and records the vault's state in the lake."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator
from datetime import date

from deltaworks.control import paths
from deltaworks.control.clock import iso_now, utc_now
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.records.vault import VaultHeartbeat, read_vault_heartbeat
from deltaworks.errors import ConcurrencyError, DeltaworksError
from deltaworks.privacy.envelope_encryption import Unsealer
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.vault.ingest import IngestResult, VaultIngest
from deltaworks.vault.namespace_vault import NamespaceVault
from deltaworks.vault.rotation import ROTATION_DAYS, RotationResult, rotate
from deltaworks.vault.sealed_files import SealedFiles
from deltaworks.vault.suppression_list import SuppressionList
from deltaworks.vault.tables import MaintenanceResult
from deltaworks.vault.unreadable_bodies import DestroyedDays, destroy_day_keys

_MAX_NAMED = 5


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
