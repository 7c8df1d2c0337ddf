"""Delivers spooled notifications: each to all of its channels, in order.

A notification stays in the spool until all channels have received it. One object per notification and channel records
the sender and whether it was sent, so only one of several senders sends. If a sender dies between sending and
recording, another sender takes over its claim after a few minutes. The notification can then arrive twice with the same
id, but it is never lost. A FIFO topic drops the second one.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from deltaworks.alerts.channels import Channel
from deltaworks.alerts.notification import Notification
from deltaworks.alerts.raising import raise_alert, resolve_alert
from deltaworks.control import paths
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import StateRecord
from deltaworks.errors import DeltaworksError
from deltaworks.errors.conditions import severity_rank

log = logging.getLogger(__name__)
CLAIM_SECONDS = 180
FIRST_RETRY_SECONDS = 30
MAX_RETRY_SECONDS = 600
GIVE_UP_DAYS = 3
KEEP_DAYS = 7
DeliveryState = Literal["sending", "failed", "sent", "abandoned"]


class Delivery(StateRecord):
    """The delivery state of one notification on one channel.

    - `by`: host and process of the sender.
    - `claim`: unique id of the attempt; `at`: its time.
    """

    state: DeliveryState
    at: str
    by: str
    claim: str = ""
    attempts: int = 1
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendResult:
    """Result of one pass over the spool: numbers of sent and abandoned deliveries, pending notifications, failing
    channels.
    """

    sent: int
    waiting: int
    abandoned: int
    failing_channels: tuple[str, ...]


def send_notifications(objects: ObjectStore, channels: Sequence[Channel], *, now: datetime | None = None) -> SendResult:
    """Sends due notifications from the spool. Safe for concurrent use.

    A failing channel is skipped for the rest of the pass, so that its notifications stay in order, and CHANNEL_FAILING
    is raised on the other channels. After three days of failures a notification is abandoned on that channel.
    """
    now = now or utc_now()
    blocked: dict[str, str] = {}
    succeeded: set[str] = set()
    sent = waiting = abandoned = 0
    for key in objects.list(paths.alerts("spool/")):
        item = objects.get(key)
        if item is None:
            continue
        notification = Notification.decode_or_none(item.data)
        if notification is None:
            log.error("%s is not a notification and was deleted", key)
            objects.delete(key)
            continue
        states = []
        for channel in channels:
            state = (
                _deliver(objects, notification, channel, blocked, now=now) if _is_for(channel, notification) else "sent"
            )
            sent += state == "sent now"
            abandoned += state == "abandoned"
            if state == "sent now":
                succeeded.add(channel.name)
            states.append(state)
        if all(state in ("sent", "sent now", "abandoned") for state in states):
            objects.delete(key)
        else:
            waiting += 1
    failing_channels = tuple(sorted(name for name, error in blocked.items() if error))
    _alert_on_channels(objects, blocked, succeeded - set(blocked), now)
    if sent:
        # Only sending creates records, so they are cleaned up here.
        delete_old_deliveries(objects, now=now)
    return SendResult(sent=sent, waiting=waiting, abandoned=abandoned, failing_channels=failing_channels)


def retry_now(objects: ObjectStore, channel: str) -> int:
    """Cancels the retry delays of a channel that works again. Returns the number of pending notifications.

    Safe with concurrent senders: claimed notifications are left to their sender.
    """
    due = 0
    for key in objects.list(paths.alerts("spool/")):
        delivery = paths.alert_delivery(key.rpartition("/")[2].removesuffix(".json"), channel)
        item = objects.get(delivery)
        stored = Delivery.decode_or_none(item.data) if item else None
        if item is None or stored is None or stored.state != "failed":
            continue
        reset = stored.replace(at="", attempts=0)
        due += objects.put_if_match(delivery, reset.encode(), item.etag) is not None
    return due


def delete_old_deliveries(objects: ObjectStore, *, now: datetime | None = None) -> int:
    """Deletes delivery records of notifications older than a week that are not in the spool. Returns their number."""
    cutoff = (now or utc_now()) - timedelta(days=KEEP_DAYS)
    # A record's name begins with the notification id, which begins with its time.
    names = {key: key.rpartition("/")[2] for key in objects.list(paths.alerts("deliveries/"))}
    old = {key: name for key, name in names.items() if name < f"{cutoff:%Y%m%dT%H%M%S}"}
    if not old:
        return 0
    # Without its record, a notification still pending on another channel would be sent again on this one.
    waiting = tuple(key.rpartition("/")[2].removesuffix("json") for key in objects.list(paths.alerts("spool/")))
    ended = [key for key, name in old.items() if not name.startswith(waiting)]
    for key in ended:
        objects.delete(key)
    return len(ended)


def _is_for(channel: Channel, notification: Notification) -> bool:
    if notification.kind == "resolved" and not channel.spec.resolved:
        return False
    return severity_rank(notification.severity) >= severity_rank(channel.spec.min_severity)


def _deliver(
    objects: ObjectStore, notification: Notification, channel: Channel, blocked: dict[str, str], *, now: datetime
) -> str:
    """Sends one notification on one channel if it is due and no other process is sending it."""
    key = paths.alert_delivery(notification.id, channel.name)
    item = objects.get(key)
    stored = Delivery.decode_or_none(item.data) if item else None
    if stored is not None and stored.state in ("sent", "abandoned"):
        return "sent"
    if channel.name in blocked:
        return "waiting"
    if stored is not None and not _is_due(stored, now):
        # Later notifications wait too. Otherwise the end of an alert could arrive before its beginning.
        blocked[channel.name] = stored.error
        return "waiting"
    attempts = stored.attempts + 1 if stored else 1
    # A compare-and-swap with equal bytes counts as successful, so each attempt needs unique content.
    claim = Delivery(state="sending", at=now.isoformat(), by=_sender_id(), claim=uuid.uuid4().hex, attempts=attempts)
    if item is None:
        claimed = objects.put_if_absent(key, claim.encode())
    else:
        claimed = objects.put_if_match(key, claim.encode(), item.etag) is not None
    if not claimed:
        blocked[channel.name] = ""
        return "waiting"
    try:
        channel.send(notification)
    except Exception as error:  # a failing channel must not stop the others
        why = error.message if isinstance(error, DeltaworksError) else f"{type(error).__name__}: {error}"
        blocked[channel.name] = why
        created_at = parse_iso(notification.at)
        over = created_at is not None and now - created_at > timedelta(days=GIVE_UP_DAYS)
        state: DeliveryState = "abandoned" if over else "failed"
        objects.put(key, claim.replace(state=state, error=why).encode())
        log.warning("notification %s is not sent on %s (%s): %s", notification.id, channel.name, state, why)
        return state
    objects.put(key, claim.replace(state="sent").encode())
    return "sent now"


def _is_due(delivery: Delivery, now: datetime) -> bool:
    """Whether the delivery may be attempted: the claim has expired, or the retry delay is over."""
    wait: float = CLAIM_SECONDS
    if delivery.state == "failed":
        wait = min(FIRST_RETRY_SECONDS * 2.0 ** (delivery.attempts - 1), MAX_RETRY_SECONDS)
    at = parse_iso(delivery.at)
    return at is None or abs((now - at).total_seconds()) >= wait


def _alert_on_channels(objects: ObjectStore, blocked: dict[str, str], succeeded: set[str], now: datetime) -> None:
    for name, error in ((name, error) for name, error in blocked.items() if error):
        raise_alert(objects, cause="CHANNEL_FAILING", subject=name, summary=f"Channel {name}: {error}", now=now)
    for name in succeeded:
        resolve_alert(objects, cause="CHANNEL_FAILING", subject=name, now=now)


def _sender_id() -> str:
    return f"{socket.gethostname()}/{os.getpid()}"
