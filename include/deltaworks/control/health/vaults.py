"""Judges the vault of each namespace by what its job put on record.

The check itself may not open the vault: it sees when the job last had taken in all, and on which condition it fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

from deltaworks.control.clock import utc_now
from deltaworks.control.health.judge import Verdict, unreadable, verdict_of
from deltaworks.control.health.limits import Finding, HealthLimits, age_seconds, duration
from deltaworks.control.health.report import Report, Subject
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.vault import VaultBeat, read_vault_beat
from deltaworks.privacy.paths import privacy_control
from deltaworks.specs.catalog import Catalog

#: The job runs every five minutes; an outage of an hour is nobody's night.
BEHIND_SECONDS: Final = 3600.0
#: A rotation is due after thirty days.
EPOCH_SECONDS: Final = 40 * 86_400.0
#: Conditions on which a run fails that say that no key can be had.
_OF_KEYS: Final = frozenset(
    {"KEY_SERVICE_UNREACHABLE", "KEY_SERVICE_REFUSED", "KEY_DESTROYED", "KEY_CONTEXT_DIFFERS", "KEYRING_UNUSABLE"}
)


def vault_reports(
    catalog: Catalog,
    objects: ObjectStore,
    *,
    previous: Mapping[str, Verdict] | None = None,
    now: datetime | None = None,
) -> list[Report]:
    """A report for every namespace, where the environment declares a vault. An unreadable record is a verdict."""
    if catalog.environment.privacy is None:
        return []
    now = now or utc_now()
    reports = []
    for name in catalog.namespaces:
        subject = Subject("vault", name, privacy_control(name), HealthLimits())
        before = (previous or {}).get(subject.key)
        try:
            verdict = judge_vault(name, read_vault_beat(objects, name), now=now, previous=before)
        except Exception as error:
            verdict = unreadable(error, kind="vault", name=name, now=now, previous=before)
        reports.append(Report(subject, verdict, None))
    return reports


def judge_vault(name: str, beat: VaultBeat | None, *, now: datetime, previous: Verdict | None = None) -> Verdict:
    """The worst of what is on record of a vault: a pure function of what was read."""
    finding = _unstarted(name, now, previous) if beat is None else next(_findings(name, beat, now))
    return verdict_of(finding, kind="vault", name=name, now=now, previous=previous)


def _unstarted(name: str, now: datetime, previous: Verdict | None) -> Finding:
    waited = (now - previous.since).total_seconds() if previous is not None and previous.cause == "STARTING" else 0.0
    if waited < BEHIND_SECONDS and (previous is None or previous.cause != "VAULT_BEHIND"):
        return Finding("starting", "STARTING", "Its job has not ended a run yet.", "")
    return Finding("unhealthy", "VAULT_BEHIND", "Its job has never ended a run.", _look_at(name))


def _findings(name: str, beat: VaultBeat, now: datetime) -> Iterator[Finding]:
    """What is wrong with a vault, the worst first; that it is well, in the end."""
    if beat.trouble in _OF_KEYS:
        text = f"The last run failed on {beat.trouble}, as for {duration(age_seconds(beat.trouble_since, now))}."
        yield Finding(
            "unhealthy",
            "KEYS_UNREACHABLE",
            text,
            "See whether the key service answers, and grants this role its keys; collectors stop after a day.",
        )
    clean = beat.clean_at or beat.written_at
    if (age := age_seconds(clean, now)) > BEHIND_SECONDS:
        why = f"; the last run failed on {beat.trouble}" if beat.trouble else ""
        text = f"It has not taken in all for {duration(age)}; {beat.waiting} files waited at the last run{why}."
        yield Finding("unhealthy", "VAULT_BEHIND", text, _look_at(name))
    if beat.unreadable:
        text = f"Sealed files that cannot be opened: {'; '.join(beat.unreadable)}."
        yield Finding("unhealthy", "VAULT_UNREADABLE", text, "See how-to/run-the-vault.md#files-that-cannot-be-opened.")
    if beat.epoch_at and (age := age_seconds(beat.epoch_at, now)) > EPOCH_SECONDS:
        text = f"Epoch {beat.epoch} is {duration(age)} old: keys are rotated each month."
        yield Finding("unhealthy", "VAULT_EPOCH_OLD", text, f"Look at the DAG keep_vault__{name}.")
    yield Finding("healthy", "OK", f"All taken in {duration(age_seconds(clean, now))} ago.", "")


def _look_at(name: str) -> str:
    return f"Look at the last runs of the DAG vault__{name}: their last lines name the condition."
