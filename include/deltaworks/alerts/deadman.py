"""Dead man's switch: alerts when the health check itself has not run, and sends pending notifications meanwhile.

Runs as a service (`python -m deltaworks.alerts.deadman --every 30`) or as `deltaworks deadman` from cron, a systemd
timer or a CronJob. It needs only the control storage and the channels, so it works while the scheduler is down. If the
control storage does not answer, alerts cannot be stored, and it sends directly to the channels.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from deltaworks.alerts.channels import Channel, project_channels
from deltaworks.alerts.notification import AlertState, Notification, notification_id, update_state
from deltaworks.alerts.raising import flush_alerts, get_alert_cause, raise_alert, resolve_alert
from deltaworks.alerts.sending import SendResult, send_notifications
from deltaworks.control import paths
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.records.store import StateRecord
from deltaworks.errors import DeltaworksError
from deltaworks.specs.project import load_catalog

log = logging.getLogger("deltaworks.alerts.deadman")
SUBJECT = "deltaworks__health"
_FIRST_CHECK = "deadman.json"


class HealthCheckHeartbeat(StateRecord):
    """The heartbeat that the health check writes at each run, with the checked and the unhealthy subjects.

    Without a run it is the time of the first check, made by the dead man's switch.
    """

    written_at: str
    run: str = ""
    checked: int = 0
    unhealthy: int = 0


def write_health_heartbeat(
    objects: ObjectStore, *, run: str, checked: int, unhealthy: int, now: datetime | None = None
) -> None:
    """Writes the heartbeat of the health check."""
    heartbeat = HealthCheckHeartbeat(
        written_at=(now or utc_now()).isoformat(), run=run, checked=checked, unhealthy=unhealthy
    )
    objects.put(paths.health_check(), heartbeat.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadmanResult:
    """The result of one check. `silent_seconds` is the age of the health check's heartbeat."""

    state: Literal["well", "silent", "unreadable"]
    silent_seconds: float
    sent: SendResult | None = None
    error: str = ""


class Deadman:
    """Checks the heartbeat of the health check. Single-threaded; several processes may run at the same time.

    Args:
        grace: measure silence from the start of this process, for a service that starts together with Airflow.
    """

    def __init__(
        self, objects: ObjectStore, channels: Sequence[Channel], *, after_seconds: float, grace: bool = False
    ) -> None:
        self._objects = objects
        self._channels = channels
        self._after_seconds = after_seconds
        self._started_at = time.monotonic() if grace else None
        self._unreadable = AlertState()

    def check(self, *, now: datetime | None = None) -> DeadmanResult:
        """Checks the heartbeat, raises or resolves the alert, and sends the pending notifications."""
        now = now or utc_now()
        try:
            silent = self._silent_seconds(now)
            self._update_alert(silent, now)
            flush_alerts(self._objects, now=now)
            sent = send_notifications(self._objects, self._channels, now=now)
        except DeltaworksError as error:
            self._notify_directly(error, now)
            return DeadmanResult(state="unreadable", silent_seconds=0.0, error=str(error))
        self._notify_directly(None, now)
        state: Literal["well", "silent"] = "silent" if silent > self._after_seconds else "well"
        return DeadmanResult(state=state, silent_seconds=silent, sent=sent)

    def _silent_seconds(self, now: datetime) -> float:
        item = self._objects.get(paths.health_check())
        if item is None:
            # The health check never ran: measure silence from the first check of this process.
            first = HealthCheckHeartbeat(written_at=now.isoformat())
            self._objects.put_if_absent(paths.alerts(_FIRST_CHECK), first.encode())
            item = self._objects.get(paths.alerts(_FIRST_CHECK))
        silent = float("inf") if item is None else _age(item.data, now)
        return silent if self._started_at is None else min(silent, time.monotonic() - self._started_at)

    def _update_alert(self, silent: float, now: datetime) -> None:
        if silent <= self._after_seconds:
            resolve_alert(
                self._objects,
                cause="HEALTH_SILENT",
                subject=SUBJECT,
                summary="The health check is running again.",
                now=now,
            )
            return
        is_finite = math.isfinite(silent)
        silence_text = f"{silent / 60:.0f} min" if is_finite else "an unknown time"
        raise_alert(
            self._objects,
            cause="HEALTH_SILENT",
            subject=SUBJECT,
            summary=f"The health check has not run for {silence_text}. Streams may be running without monitoring.",
            detail={"silent_seconds": round(silent) if is_finite else None, "after_seconds": self._after_seconds},
            now=now,
        )

    def _notify_directly(self, error: DeltaworksError | None, now: datetime) -> None:
        """Sends a notification about the unreachable control storage directly to the channels.

        The state of that alert exists only in this process.
        """
        cause = get_alert_cause("CONTROL_UNREADABLE")
        severity = None if error is None else cause.severity
        self._unreadable, kind = update_state(self._unreadable, cause, severity=severity, now=now)
        if kind is None:
            return
        notification = Notification(
            id=notification_id(now),
            kind=kind,
            cause=cause.name,
            subject="control storage",
            severity=cause.severity,
            summary=str(error) if error else "The control storage answers again.",
            detail={},
            runbook=cause.runbook,
            since=(self._unreadable.since or now).isoformat(timespec="seconds"),
            at=now.isoformat(timespec="milliseconds"),
        )
        for channel in self._channels:
            if not channel.accepts(notification):
                continue
            try:
                channel.send(notification)
            except Exception as failure:  # a failing channel must not stop the others
                log.warning("not sent on %s: %s", channel.name, failure)


def _age(data: bytes, now: datetime) -> float:
    try:
        at = parse_iso(HealthCheckHeartbeat.decode(data).written_at)
    except ValueError:
        at = None
    return float("inf") if at is None else max(0.0, (now - at).total_seconds())


def open_deadman(*, grace: bool = False) -> Deadman:
    """Opens the dead man's switch for the environment of this process."""
    catalog = load_catalog(skip_invalid=True)
    environment, channels = catalog.environment, project_channels(catalog)
    objects = open_objects(environment.lake)
    return Deadman(objects, channels, after_seconds=environment.alerts.deadman_seconds, grace=grace)


def main(arguments: list[str] | None = None) -> int:
    """Checks the heartbeat at an interval until the process ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=float, required=True, help="seconds between two checks")
    parser.add_argument("--heartbeat-file", type=Path, help="touched after each check; a supervisor can watch its age")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(levelname)s %(message)s")
    deadman, state = open_deadman(grace=True), ""
    while True:
        result = deadman.check()
        if result.state != state:
            log.info("the health check is %s (silent for %.0f s) %s", result.state, result.silent_seconds, result.error)
        state = result.state
        if options.heartbeat_file is not None:
            options.heartbeat_file.touch()
        threading.Event().wait(options.every)


if __name__ == "__main__":
    sys.exit(main())
