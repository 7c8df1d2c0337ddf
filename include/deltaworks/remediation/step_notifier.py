"""Sends a notification for every step of a remediation, and raises alerts that need an operator."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import Any

from deltaworks.alerts.notification import Notification
from deltaworks.alerts.raising import get_alert_cause, raise_alert, resolve_alert
from deltaworks.control import paths
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.remediation import RemediationRecord
from deltaworks.errors import DeltaworksError
from deltaworks.specs.remediation import RemediationSpec

log = logging.getLogger(__name__)
_STATE_ORDER = ("dry_run", "refused", "planned", "called", "verified", "rolled_back", "failed")
STEP, FAILED, HELD = "REMEDIATION_STEP", "REMEDIATION_FAILED", "REMEDIATION_HELD"


class StepNotifier:
    """Notifications of one remediation. If one cannot be sent the remediation continues; its record has the same
    information.
    """

    def __init__(self, spec: RemediationSpec, objects: ObjectStore) -> None:
        self._spec, self._objects = spec, objects

    def notify_step(self, record: RemediationRecord) -> None:
        """Sends the notification of a step once, even if it is called repeatedly."""
        at = record.ended_at or record.called_at or record.at
        summary = _step_summary(record)
        instant = parse_iso(at) or utc_now()
        digest = hashlib.sha256(f"{record.notification} {record.state}".encode()).hexdigest()[:12]
        notification = Notification(
            # Ids sort by time. Steps with the same time sort by their order.
            id=f"{instant:%Y%m%dT%H%M%S%f}-{_STATE_ORDER.index(record.state)}{digest}",
            kind="raised",
            cause=STEP,
            subject=f"{self._spec.name}.{record.state}",
            severity="info" if record.state == "dry_run" else "warning",
            summary=summary,
            detail=record.model_dump(mode="json", exclude={"format"}),
            runbook=get_alert_cause(STEP).runbook,
            since=at,
            at=at,
        )
        self._log_errors(
            lambda: self._objects.put_if_absent(paths.alert_notification(notification.id), notification.encode())
        )
        if record.state in ("failed", "rolled_back"):
            self._log_errors(lambda: raise_alert(self._objects, cause=FAILED, subject=self._spec.name, summary=summary))
        elif record.state == "verified":
            self._log_errors(lambda: resolve_alert(self._objects, cause=FAILED, subject=self._spec.name))

    def notify_hold(self, reason: str) -> None:
        """Raises the alert that the remediation is on hold."""
        summary = f"{self._spec.name} is on hold: {reason}."
        self._log_errors(lambda: raise_alert(self._objects, cause=HELD, subject=self._spec.name, summary=summary))

    @staticmethod
    def _log_errors(action: Callable[[], Any]) -> None:
        try:
            action()
        except DeltaworksError as error:
            log.warning("a notification could not be stored: %s", error)


def resolve_hold_alerts(objects: ObjectStore, remediation: str) -> None:
    """Resolves the alerts about the hold after an operator has resumed the remediation."""
    for cause in (HELD, FAILED):
        resolve_alert(objects, cause=cause, subject=remediation)


def _step_summary(record: RemediationRecord) -> str:
    way = f"from {record.source} to {record.target}: {record.before} → {record.after}"
    texts = {
        "dry_run": f"Dry run: would shift weight {way}.",
        "planned": f"About to shift weight {way}.",
        "called": f"Shifted weight {way}.",
        "verified": f"The shift from {record.source} to {record.target} helped: {record.reason}.",
        "rolled_back": f"The shift from {record.source} to {record.target} was rolled back: {record.reason}.",
        "failed": f"Check the weights: {record.reason}.",
        "refused": f"No action: {record.reason}.",
    }
    return f"{texts[record.state]} Set off by {record.subject}, notification {record.notification}."
