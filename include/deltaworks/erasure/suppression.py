"""Puts a person's tokens on the list of those whose events are dropped, and says which streams may still bring some.

A batch that was prepared before is not stopped by the list: what it has prepared is committed. So a request goes on
only after each stream has completed a batch that knew of it, or has none under way, and no share of an older one waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from deltaworks.control import paths as lake_paths
from deltaworks.control.clock import iso_now, parse_iso
from deltaworks.control.health.heartbeat import Heartbeat, read_heartbeat
from deltaworks.control.health.limits import HealthLimits
from deltaworks.control.health.verdicts import is_live
from deltaworks.control.home import PipelineHome
from deltaworks.control.records.erasure import ErasureRequest
from deltaworks.control.records.vault import read_vault_heartbeat
from deltaworks.control.retry import attempts
from deltaworks.erasure.namespace import Namespace
from deltaworks.erasure.person_resolution import Person
from deltaworks.errors import ConcurrencyError
from deltaworks.privacy import paths
from deltaworks.privacy.suppression import SuppressionRecord
from deltaworks.privacy.tokens import suppression_digest
from deltaworks.tables.protected_files import uncommitted_files
from deltaworks.tables.steps import read_last_completed

_MAX_ATTEMPTS = 12
#: Clocks of writers differ by less.
_MAX_CLOCK_SKEW = timedelta(seconds=30)


def suppress_person(namespace: Namespace, request: ErasureRequest, person: Person) -> SuppressionRecord:
    """Have every reader drop what names the person from now on; the record that says so. Idempotent.

    Raises:
        ConcurrencyError: ERASURE_CONTENDED, others put their records first again and again.
        ContractError: SUPPRESSION_UNREADABLE.
    """
    digests = tuple(sorted(suppression_digest(namespace.token_key, token) for token in person.tokens))
    for _ in attempts(_MAX_ATTEMPTS, first_wait_seconds=0.05, max_wait_seconds=1.0):
        keys = namespace.objects.list(paths.suppressions(namespace.name))
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
        if namespace.objects.put_if_absent(paths.suppression(namespace.name, record.number), record.encode()):
            return record
    raise ConcurrencyError(
        "ERASURE_CONTENDED",
        f"{_MAX_ATTEMPTS} attempts to suppress the person of {request.request_id} all met another request.",
        hint="Run it again.",
    )


def _read(namespace: Namespace, key: str) -> SuppressionRecord:
    stored = namespace.objects.get(key)
    if stored is None:
        return SuppressionRecord(namespace=namespace.name, number=0, request_id="", created_at="", digests=())
    return SuppressionRecord.decode(stored.data, key=key)


def blocking_streams(namespace: Namespace, suppression: SuppressionRecord, *, now: datetime) -> list[str]:
    """What may still land rows that were prepared without this record, in words; empty where nothing can."""
    return [
        reason
        for spec in namespace.pipelines
        for reason in _blocking_reasons(namespace, spec.pipeline, suppression, now)
    ]


def pending_sealed_files(namespace: Namespace, number: int) -> str:
    """What was sealed before a suppression record and may still be taken into the vault, in words; empty where none.

    Raises:
        ContractError: VAULT_RECORD_UNREADABLE.
    """
    beat = read_vault_heartbeat(namespace.objects, namespace.name)
    if beat is not None and beat.caught_up_at and beat.suppression >= number:
        return ""
    waiting = len(namespace.vault.objects.list(paths.sealed()))
    return f"{waiting:,} sealed files that the vault's job takes in or drops" if waiting else ""


def _blocking_reasons(
    namespace: Namespace, pipeline: str, suppression: SuppressionRecord, now: datetime
) -> Iterator[str]:
    home = namespace.home(pipeline)
    for table in home.held.read():
        yield f"{pipeline}.{table} is held: `deltaworks tables resume {pipeline} {table}`"
    for table, files in uncommitted_files(namespace.lake, home).items():
        if files.is_held:
            yield f"{pipeline}.{table} waits for batches that were held back"
    generation = home.generations.current()
    last = read_last_completed(namespace.lake, pipeline, generation)
    newest = None if last is None else home.prepared.read(generation, last)
    if newest is not None and (newest.suppression or 0) >= suppression.number:
        return
    following = home.prepared.read(generation, 0 if last is None else last + 1)
    if following is not None and (following.suppression or 0) < suppression.number:
        yield f"{pipeline}: batch {following.batch_id} was prepared before and is not complete"
    elif _may_be_preparing(home, suppression, now):
        yield f"{pipeline}: its stream runs and has completed no batch since"


def _may_be_preparing(home: PipelineHome, suppression: SuppressionRecord, now: datetime) -> bool:
    """Whether a stream may be preparing a batch with the list as it was before."""
    heartbeat = read_heartbeat(home.objects, lake_paths.heartbeat(home.control()))
    if heartbeat is None or not is_live(heartbeat, HealthLimits(), now):
        return False
    return not _was_idle_after(heartbeat, suppression)


def _was_idle_after(heartbeat: Heartbeat, suppression: SuppressionRecord) -> bool:
    """Whether it has said since that it has nothing under way: its next batch reads the list anew."""
    written, created = parse_iso(heartbeat.written_at), parse_iso(suppression.created_at)
    return (
        heartbeat.state == "idle"
        and written is not None
        and created is not None
        and written > created + _MAX_CLOCK_SKEW
    )
