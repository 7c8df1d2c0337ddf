"""A remediation with real control objects, a traffic server, and a controllable clock."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from deltaworks.alerts.notification import Notification
from deltaworks.alerts.raising import raise_alert, resolve_alert
from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.records.remediation import RemediationRecord, RemediationRecords
from deltaworks.remediation.remediator import Remediator
from deltaworks.rules.subjects import FIRING, subject_of
from deltaworks.specs.environment_sections import RemediationSpec
from deltaworks.testing import local_storage, present
from tests.unit.remediation.traffic_server import Director

RULE = "video_qos.cdn_slow"


def declared(url: str = "http://127.0.0.1:1/", **more: Any) -> RemediationSpec:
    return RemediationSpec.model_validate(
        {
            "name": "shift_cdn",
            "queue_url": "http://127.0.0.1:1/queue",
            "rule": RULE,
            "label": "cdn",
            "action": {"kind": "webhook", "url": url, "timeout_seconds": 0.3},
            "targets": ["a", "b"],
            "step": 0.2,
            "verify": {"after_minutes": 10, "min_improvement": 0.05},
            "dry_run": False,
            **more,
        }
    )


class RemediationHarness:
    """The control storage, the traffic server, and a controllable clock."""

    def __init__(self, root: Path, director: Director, **spec: Any) -> None:
        self.storage = local_storage(root / "lake")
        self.objects: ObjectStore = open_objects(self.storage)
        self.director = director
        self.spec = declared(director.url, **spec)
        self.records = RemediationRecords(self.objects)
        self.now = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)

    def remediator(self) -> Remediator:
        """Returns a new remediator, like a new process."""
        return Remediator(self.spec, self.objects, clock=lambda: self.now, pause=lambda seconds: None)

    def fires(self, cdn: str = "a", value: float = 300.0, *, cause: str = FIRING, **labels: str) -> Notification:
        """Fires the rule for a CDN; returns its notification. An open alert only updates its value."""
        everything = {"cdn": cdn, **labels}
        subject = subject_of("video_qos", "cdn_slow", tuple(everything), tuple(everything.values()))
        detail = {"pipeline": "video_qos", "rule": "cdn_slow", "labels": everything, "label_sets": [everything]}
        detail |= {"value": value, "baseline": 100.0}
        notification = raise_alert(
            self.objects, cause=cause, subject=subject, summary="slow", detail=detail, now=self.now
        )
        return notification or self.latest_notification()

    def ends(self, cdn: str = "a", **labels: str) -> None:
        everything = {"cdn": cdn, **labels}
        subject = subject_of("video_qos", "cdn_slow", tuple(everything), tuple(everything.values()))
        resolve_alert(self.objects, cause=FIRING, subject=subject, now=self.now)

    def passes(self, minutes: float) -> None:
        self.now += dt.timedelta(minutes=minutes)

    def latest_notification(self) -> Notification:
        stored = present(self.objects.get(self.objects.list(paths.alerts("spool/"))[-1]))
        return Notification.decode(stored.data)

    def steps(self) -> list[str]:
        """Returns the notified steps, oldest first."""
        items = [self.objects.get(key) for key in self.objects.list(paths.alerts("spool/"))]
        notifications = [Notification.decode(item.data) for item in items if item is not None]
        return [
            notification.subject.partition(".")[2]
            for notification in notifications
            if notification.cause == "REMEDIATION_STEP"
        ]

    def record(self, notification: Notification) -> RemediationRecord:
        return present(self.records.read(notification.id))
