"""Delivers spooled notifications: each to all of its channels, in order.

A notification stays in the spool until all channels have received it. One object per notification and channel records
the sender and whether it was sent, so only one of several senders sends. If a sender dies between sending and
recording, another sender takes over its claim after a few minutes. The notification can then arrive twice with the same
id, but it is never lost. A FIFO topic drops the second one.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
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
from deltaworks.errors import ContractError, DeltaworksError

log = logging.getLogger(__name__)
CLAIM_SECONDS = 180
FIRST_RETRY_SECONDS = 30
MAX_RETRY_SECONDS = 600
#: Time of a pass after which a channel starts no further notification, and how much longer one may take.
PASS_SECONDS = 45.0
STUCK_SECONDS = 75.0
GIVE_UP_DAYS = 3
KEEP_DAYS = 7
DeliveryState = Literal["sending", "failed", "sent", "abandoned"]


class Delivery(StateRecord):
    """The delivery state of one notification on one channel.

    - `by`: host and process of the sender.
    - `claim`: unique id of the attempt; `at`: its time.
    - `is_rejected`: whether the channel rejected this notification only, so that later ones need not wait.
    """

    state: DeliveryState
    at: str
    by: str
    claim: str = ""
    attempts: int = 1
    error: str = ""
    is_rejected: bool = False


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
    """Sends due notifications from the spool, on all channels at the same time. Safe for concurrent use.

    A failing channel is skipped for the rest of the pass, so that its notifications stay in order, and CHANNEL_FAILING
    is raised on the other channels. So is one that does not answer in time; it delays no other channel. After three
    days of failures a notification is abandoned on that channel.
    """
    now = now or utc_now()
    spool = list(_read_spool(objects))
    passes = _send_on_channels(objects, channels, [notification for _, notification in spool], now)
    waiting = 0
    for key, notification in spool:
        if any(notification.id in one.waiting for one in passes):
            waiting += 1
        else:
            objects.delete(key)
    failing = {one.channel: one.error for one in passes if one.error}
    _alert_on_channels(objects, failing, {one.channel for one in passes if one.sent and not one.waiting}, now)
    sent = sum(one.sent for one in passes)
    if sent:
        # Only sending creates records, so they are cleaned up here.
        delete_old_deliveries(objects, now=now)
    return SendResult(
        sent=sent,
        waiting=waiting,
        abandoned=sum(one.abandoned for one in passes),
        failing_channels=tuple(sorted(failing)),
    )


def _read_spool(objects: ObjectStore) -> Iterator[tuple[str, Notification]]:
    """Yields the keys and the notifications of the spool, oldest first. Deletes what is no notification."""
    for key in objects.list(paths.alerts("spool/")):
        item = objects.get(key)
        notification = Notification.decode_or_none(item.data) if item is not None else None
        if notification is not None:
            yield key, notification
        elif item is not None:
            log.error("%s is not a notification and was deleted", key)
            objects.delete(key)


@dataclass(slots=True)
class _ChannelPass:
    """One pass over the spool on one channel: counts, the ids that wait, and why the channel fails, if it does."""

    channel: str
    waiting: set[str]
    sent: int = 0
    abandoned: int = 0
    error: str = ""

    def copy(self) -> _ChannelPass:
        return dataclasses.replace(self, waiting=set(self.waiting))


def _send_on_channels(
    objects: ObjectStore, channels: Sequence[Channel], notifications: Sequence[Notification], now: datetime
) -> list[_ChannelPass]:
    """Sends notifications on each channel in a thread of its own.

    A thread that does not end in time is abandoned: its claim holds the notification that it is sending.
    """
    until = time.monotonic() + PASS_SECONDS
    threads = [_ChannelThread(objects, channel, notifications, now, until) for channel in channels]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until + STUCK_SECONDS - time.monotonic()))
    return [thread.outcome() for thread in threads]


class _ChannelThread(threading.Thread):
    """Sends the notifications of one channel in order, until one fails or the pass has taken `PASS_SECONDS`."""

    def __init__(
        self,
        objects: ObjectStore,
        channel: Channel,
        notifications: Sequence[Notification],
        now: datetime,
        until: float,
    ) -> None:
        super().__init__(name=f"alerts-{channel.name}", daemon=True)
        self._objects, self._channel, self._now, self._until = objects, channel, now, until
        self._notifications = [one for one in notifications if channel.accepts(one)]
        self._pass = _ChannelPass(channel.name, {one.id for one in self._notifications})
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Sends; a failure of the control storage is raised by `outcome`."""
        try:
            for notification in self._notifications:
                if time.monotonic() >= self._until or not self._send(notification):
                    return
        except BaseException as error:  # raised in the thread that waits
            self._failure = error

    def outcome(self) -> _ChannelPass:
        """Returns what was sent so far. Raises the failure of the control storage, if any."""
        if self._failure is not None:
            raise self._failure
        outcome = self._pass.copy()
        if self.is_alive():
            outcome.error = f"it has not answered for {STUCK_SECONDS:.0f} s"
        return outcome

    def _send(self, notification: Notification) -> bool:
        """Sends one notification if it is due. Returns whether the channel can be used for later ones."""
        attempt = _deliver(self._objects, notification, self._channel, now=self._now)
        if attempt.state in ("sent", "sent now", "abandoned"):
            self._pass.waiting.discard(notification.id)
        self._pass.sent += attempt.state == "sent now"
        self._pass.abandoned += attempt.state == "abandoned"
        self._pass.error = self._pass.error or attempt.error
        return attempt.can_continue


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


@dataclass(frozen=True, slots=True)
class _Attempt:
    """What became of one notification on one channel. `can_continue` is unset if later ones must wait for it."""

    state: Literal["sent", "sent now", "waiting", "abandoned"]
    error: str = ""
    can_continue: bool = True


def _deliver(objects: ObjectStore, notification: Notification, channel: Channel, *, now: datetime) -> _Attempt:
    """Sends one notification on one channel if it is due and no other process is sending it."""
    key = paths.alert_delivery(notification.id, channel.name)
    item = objects.get(key)
    stored = Delivery.decode_or_none(item.data) if item else None
    if stored is not None and stored.state in ("sent", "abandoned"):
        return _Attempt("sent")
    if stored is not None and not _is_due(stored, now):
        # Later notifications wait too. Otherwise the end of an alert could arrive before its beginning.
        return _Attempt("waiting", stored.error, can_continue=stored.is_rejected)
    attempts = stored.attempts + 1 if stored else 1
    # A compare-and-swap with equal bytes counts as successful, so each attempt needs unique content.
    claim = Delivery(state="sending", at=now.isoformat(), by=_sender_id(), claim=uuid.uuid4().hex, attempts=attempts)
    if item is None:
        claimed = objects.put_if_absent(key, claim.encode())
    else:
        claimed = objects.put_if_match(key, claim.encode(), item.etag) is not None
    if not claimed:
        return _Attempt("waiting", can_continue=False)
    try:
        channel.send(notification)
    except Exception as error:  # a failing channel must not stop the others
        return _record_failure(objects, key, claim, notification, error, channel=channel.name, now=now)
    objects.put(key, claim.replace(state="sent").encode())
    return _Attempt("sent now")


def _record_failure(
    objects: ObjectStore,
    key: str,
    claim: Delivery,
    notification: Notification,
    error: Exception,
    *,
    channel: str,
    now: datetime,
) -> _Attempt:
    why = error.message if isinstance(error, DeltaworksError) else f"{type(error).__name__}: {error}"
    is_rejected = isinstance(error, ContractError)
    created_at = parse_iso(notification.at)
    over = created_at is not None and now - created_at > timedelta(days=GIVE_UP_DAYS)
    failed = claim.replace(state="abandoned" if over else "failed", error=why, is_rejected=is_rejected)
    objects.put(key, failed.encode())
    log.warning("notification %s is not sent by %s (%s): %s", notification.id, channel, failed.state, why)
    return _Attempt("abandoned" if over else "waiting", why, can_continue=is_rejected)


def _is_due(delivery: Delivery, now: datetime) -> bool:
    """Whether the delivery may be attempted: the claim has expired, or the retry delay is over."""
    wait: float = CLAIM_SECONDS
    if delivery.state == "failed":
        wait = min(FIRST_RETRY_SECONDS * 2.0 ** (delivery.attempts - 1), MAX_RETRY_SECONDS)
    at = parse_iso(delivery.at)
    return at is None or abs((now - at).total_seconds()) >= wait


def _alert_on_channels(objects: ObjectStore, failing: dict[str, str], succeeded: set[str], now: datetime) -> None:
    for name, error in failing.items():
        raise_alert(objects, cause="CHANNEL_FAILING", subject=name, summary=f"Channel {name}: {error}", now=now)
    for name in succeeded - failing.keys():
        resolve_alert(objects, cause="CHANNEL_FAILING", subject=name, now=now)


def _sender_id() -> str:
    return f"{socket.gethostname()}/{os.getpid()}"
