"""Health reports of collectors and vaults, and of the channels that deliver alerts.

The check cannot open a vault. Its job's record tells when the job last ingested all files, and the condition of its
failed runs. That alerts reach no person is not an alert, because no channel could deliver it. Instead, every health
run, the overview page and `status` report it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

from deltaworks.control.clock import utc_now
from deltaworks.control.health.collectors import collector_reports, read_collectors
from deltaworks.control.health.limits import Finding, HealthLimits, age_seconds, format_duration
from deltaworks.control.health.report import Report, Subject
from deltaworks.control.health.verdicts import Verdict, unreadable_verdict, verdict_of
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.erasure import VaultHeartbeat, read_vault_heartbeat
from deltaworks.privacy.paths import control_path
from deltaworks.specs.alert_channels import AlertsSpec, LogChannelSpec
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.dag_ids import dag_id
from deltaworks.specs.environment import WEBHOOK_VARIABLE

#: The job runs every five minutes; a short outage must not raise an alert.
MAX_BEHIND_SECONDS: Final = 3600.0
#: Rotation is due after thirty days.
MAX_EPOCH_AGE_SECONDS: Final = 40 * 86_400.0
#: Conditions of failed runs that mean that no key is available.
_KEY_CONDITIONS: Final = frozenset(
    {"KEY_SERVICE_UNREACHABLE", "KEY_SERVICE_REFUSED", "KEY_DESTROYED", "KEY_CONTEXT_DIFFERS", "KEYRING_UNUSABLE"}
)


def vault_reports(
    catalog: Catalog,
    objects: ObjectStore,
    *,
    previous: Mapping[str, Verdict] | None = None,
    now: datetime | None = None,
) -> list[Report]:
    """Returns a report for each namespace if the environment declares a vault. An unreadable record is a verdict."""
    if catalog.environment.privacy is None:
        return []
    now = now or utc_now()
    reports = []
    for name in catalog.namespaces:
        subject = Subject("vault", name, control_path(name), HealthLimits())
        previous_verdict = (previous or {}).get(subject.key)
        try:
            verdict = evaluate_vault(name, read_vault_heartbeat(objects, name), now=now, previous=previous_verdict)
        except Exception as error:
            verdict = unreadable_verdict(error, kind="vault", name=name, now=now, previous=previous_verdict)
        reports.append(Report(subject, verdict, None))
    return reports


def evaluate_vault(
    name: str, heartbeat: VaultHeartbeat | None, *, now: datetime, previous: Verdict | None = None
) -> Verdict:
    """Evaluates the record of a vault; the worst finding wins. Pure."""
    finding = _unstarted(name, now, previous) if heartbeat is None else next(_findings(name, heartbeat, now))
    return verdict_of(finding, kind="vault", name=name, now=now, previous=previous)


def _unstarted(name: str, now: datetime, previous: Verdict | None) -> Finding:
    waited = (now - previous.since).total_seconds() if previous is not None and previous.cause == "STARTING" else 0.0
    if waited < MAX_BEHIND_SECONDS and (previous is None or previous.cause != "VAULT_BEHIND"):
        return Finding("starting", "STARTING", "Its job has not completed a run yet.", "")
    return Finding("unhealthy", "VAULT_BEHIND", "Its job has never completed a run.", _check_runs_hint(name))


def _findings(name: str, heartbeat: VaultHeartbeat, now: datetime) -> Iterator[Finding]:
    """Yields the findings of a vault, the worst first, and OK last."""
    if heartbeat.failure_condition in _KEY_CONDITIONS:
        failing_for = format_duration(age_seconds(heartbeat.failing_since, now))
        text = f"Runs have failed with {heartbeat.failure_condition} for {failing_for}."
        yield Finding(
            "unhealthy",
            "KEYS_UNREACHABLE",
            text,
            "Check that the key service answers and grants this role its keys. Collectors stop after a day.",
        )
    caught_up_at = heartbeat.caught_up_at or heartbeat.written_at
    if (age := age_seconds(caught_up_at, now)) > MAX_BEHIND_SECONDS:
        why = f"; the last run failed with {heartbeat.failure_condition}" if heartbeat.failure_condition else ""
        text = (
            f"Not caught up for {format_duration(age)}; {heartbeat.waiting} files were pending after the last run{why}."
        )
        yield Finding("unhealthy", "VAULT_BEHIND", text, _check_runs_hint(name))
    if heartbeat.unreadable:
        text = f"Encrypted files that cannot be decrypted: {'; '.join(heartbeat.unreadable)}."
        yield Finding("unhealthy", "VAULT_UNREADABLE", text, "See how-to/run-the-vault.md#files-cannot-be-decrypted.")
    if heartbeat.epoch_at and (age := age_seconds(heartbeat.epoch_at, now)) > MAX_EPOCH_AGE_SECONDS:
        text = f"Epoch {heartbeat.epoch} is {format_duration(age)} old: keys should be rotated each month."
        yield Finding("unhealthy", "VAULT_EPOCH_OLD", text, f"Check the DAG {dag_id(name, 'maintain_vault')}.")
    yield Finding("healthy", "OK", f"Caught up {format_duration(age_seconds(caught_up_at, now))} ago.", "")


def _check_runs_hint(name: str) -> str:
    return f"Check the last runs of the DAG {dag_id(name, 'vault')}: the last lines of their logs name the condition."


def process_reports(
    catalog: Catalog,
    objects: ObjectStore,
    *,
    previous: Mapping[str, Verdict] | None = None,
    now: datetime | None = None,
) -> list[Report]:
    """Returns a report for each collector that has ever run, then for each vault. Raises nothing: unreadable records
    are a verdict.
    """
    now = now or utc_now()
    collectors = collector_reports(read_collectors(catalog, objects), previous=previous, now=now)
    return collectors + vault_reports(catalog, objects, previous=previous, now=now)


#: The setting to add, in one line.
CHANNEL_SETUP_HINT = (
    f"set {WEBHOOK_VARIABLE} to a URL that accepts alerts as JSON, or declare a channel of another kind than log "
    "under `alerts` of the environment; test it with `deltaworks alerts check --send`"
)


def channel_finding(alerts: AlertsSpec) -> Finding | None:
    """Returns a finding if the log is the only alert channel; None if another channel is declared."""
    if any(not isinstance(channel, LogChannelSpec) for channel in alerts.channels):
        return None
    return Finding(
        "lagging", "ALERTS_UNDELIVERED", "Alerts reach no person: the log is the only channel.", CHANNEL_SETUP_HINT
    )


def channel_warning(alerts: AlertsSpec) -> str:
    """Returns the finding as one sentence; empty if there is none."""
    finding = channel_finding(alerts)
    return f"{finding.cause}: {finding.detail} Next: {finding.next_step}." if finding is not None else ""
