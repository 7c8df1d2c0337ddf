"""Suppresses a person's tokens, and lists streams that may still commit rows with them.

A batch that was prepared before the suppression is committed nevertheless. So a request advances only if each stream
has since completed a batch with the new suppression list or has no batch in progress, and if no held table still waits
for rows of an older batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from deltaworks.control import paths as lake_paths
from deltaworks.control.background import attempts
from deltaworks.control.clock import iso_now, parse_iso
from deltaworks.control.health.heartbeat import Heartbeat, read_heartbeat
from deltaworks.control.health.limits import HealthLimits
from deltaworks.control.health.verdicts import is_live
from deltaworks.control.home import PipelineHome
from deltaworks.control.records.erasure import ErasureRequest, read_vault_heartbeat
from deltaworks.errors import ConcurrencyError
from deltaworks.privacy import paths
from deltaworks.privacy.erasure.person_resolution import Person
from deltaworks.privacy.erasure.requests import Namespace
from deltaworks.privacy.tokens.envelope_encryption import suppression_digest
from deltaworks.privacy.tokens.suppression import SuppressionRecord
from deltaworks.tables.protected_files import uncommitted_files
from deltaworks.tables.steps import read_last_completed

_MAX_ATTEMPTS = 12
#: Maximum clock skew between writers.
_MAX_CLOCK_SKEW = timedelta(seconds=30)


def suppress_person(namespace: Namespace, request: ErasureRequest, person: Person) -> SuppressionRecord:
    """Adds the person's tokens to the suppression list; returns the record. Idempotent.

    Raises:
        ConcurrencyError: ERASURE_CONTENDED, every attempt lost to a concurrent request.
        ContractError: SUPPRESSION_UNREADABLE.
    """
    digests = tuple(sorted(suppression_digest(namespace.token_key, token) for token in person.tokens))
    for _ in attempts(_MAX_ATTEMPTS, first_wait_seconds=0.05, max_wait_seconds=1.0):
        keys = namespace.objects.list(paths.suppression_folder(namespace.name))
        records = [_read(namespace, key) for key in keys]
        for record in records:
            if record.request_id == request.request_id and set(digests) <= set(record.digests):
                return record
        record = SuppressionRecord(
            namespace=namespace.name,
            number=max((record.number for record in records), default=0) + 1,
            request_id=request.request_id,
            created_at=iso_now(),
            digests=digests,
        )
        if namespace.objects.put_if_absent(
            paths.suppression_record_key(namespace.name, record.number), record.encode()
        ):
            return record
    raise ConcurrencyError(
        "ERASURE_CONTENDED",
        f"{_MAX_ATTEMPTS} attempts to suppress the person of {request.request_id} failed because of concurrent "
        "requests.",
    )


def _read(namespace: Namespace, key: str) -> SuppressionRecord:
    stored = namespace.objects.get(key)
    if stored is None:
        return SuppressionRecord(namespace=namespace.name, number=0, request_id="", created_at="", digests=())
    return SuppressionRecord.decode(stored.data, key=key)


def blocking_streams(namespace: Namespace, suppression: SuppressionRecord, *, now: datetime) -> list[str]:
    """Returns descriptions of streams that may still commit rows prepared without this record; empty if there
    are none."""
    return [
        reason
        for spec in namespace.pipelines
        for reason in _blocking_reasons(namespace, spec.pipeline, suppression, now)
    ]


def pending_sealed_files(namespace: Namespace, number: int) -> str:
    """Returns descriptions of sealed files older than a suppression record that the vault has not ingested; empty if
    none.

    Raises:
        ContractError: VAULT_RECORD_UNREADABLE.
    """
    beat = read_vault_heartbeat(namespace.objects, namespace.name)
    if beat is not None and beat.caught_up_at and beat.suppression >= number:
        return ""
    waiting = len(namespace.vault.objects.list(paths.sealed_files_path()))
    return f"{waiting:,} sealed files that the vault's job has not ingested yet" if waiting else ""


def _blocking_reasons(
    namespace: Namespace, pipeline: str, suppression: SuppressionRecord, now: datetime
) -> Iterator[str]:
    home = namespace.home(pipeline)
    for table in home.held.read():
        yield f"{pipeline}.{table} is held: `deltaworks tables resume {pipeline} {table}`"
    for table, files in uncommitted_files(namespace.lake, home).items():
        if files.is_held:
            yield f"{pipeline}.{table} has held-back batches"
    generation = home.generations.current()
    last = read_last_completed(namespace.lake, pipeline, generation)
    newest = None if last is None else home.prepared.read(generation, last)
    if newest is not None and (newest.suppression or 0) >= suppression.number:
        return
    following = home.prepared.read(generation, 0 if last is None else last + 1)
    if following is not None and (following.suppression or 0) < suppression.number:
        yield f"{pipeline}: batch {following.batch_id} was prepared with an older list and is not complete"
    elif _may_be_preparing(home, suppression, now):
        yield f"{pipeline}: its stream has completed no batch since"


def _may_be_preparing(home: PipelineHome, suppression: SuppressionRecord, now: datetime) -> bool:
    """Returns whether a stream may be preparing a batch with an older suppression list."""
    heartbeat = read_heartbeat(home.objects, lake_paths.heartbeat(home.control()))
    if heartbeat is None or not is_live(heartbeat, HealthLimits(), now):
        return False
    return not _was_idle_after(heartbeat, suppression)


def _was_idle_after(heartbeat: Heartbeat, suppression: SuppressionRecord) -> bool:
    """Returns whether the stream was idle after the suppression, so that its next batch reads the current list."""
    written, created = parse_iso(heartbeat.written_at), parse_iso(suppression.created_at)
    return (
        heartbeat.state == "idle"
        and written is not None
        and created is not None
        and written > created + _MAX_CLOCK_SKEW
    )
