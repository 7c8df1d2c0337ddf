"""Sending notifications: read from subscribed queues over HTTP, through outages and crashes."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any, get_args

import pytest

from deltaworks.alerts import sending
from deltaworks.alerts.channels import SENDERS, Channel, MessageContext, open_channels, senders
from deltaworks.alerts.channels.channel import Router
from deltaworks.alerts.channels.senders import boto3_sns_sender
from deltaworks.alerts.notification import Notification
from deltaworks.alerts.raising import alerts, flush_alerts, raise_alert, resolve_alert
from deltaworks.alerts.sending import (
    CLAIM_SECONDS,
    Delivery,
    SendResult,
    delete_old_deliveries,
    retry_now,
    send_notifications,
)
from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.errors import ContractError, TransientError
from deltaworks.specs.alert_channels import AlertsSpec, AnyChannelSpec, LogChannelSpec, SnsChannelSpec
from deltaworks.testing import present
from tests.http_server import HttpAnswer, HttpRequest, http_server
from tests.unit.alerts.aws_harness import Aws
from tests.unit.alerts.conftest import Clock

ALERT: dict[str, Any] = {
    "cause": "STREAM_HUNG",
    "subject": "stream games",
    "summary": "It hangs.",
    "detail": {"pid": 7},
}
CLOSED_PORT_URL = "http://127.0.0.1:9"


def spec_of(topic: str, **more: Any) -> AlertsSpec:
    return AlertsSpec.model_validate({"channels": [{"kind": "sns", "name": "people", "topic": topic, **more}]})


def raise_and_read(objects: LocalObjects, clock: Clock, **more: Any) -> Notification:
    return present(raise_alert(objects, **{**ALERT, **more}, now=clock.now))


def pending_notifications(objects: LocalObjects) -> int:
    return len(objects.list(paths.alerts("spool/")))


def test_every_subscribed_queue_gets_the_notification_once(aws: Aws, objects: LocalObjects, clock: Clock) -> None:
    topic, queues = aws.topic(), [aws.queue(), aws.queue()]
    for queue in queues:
        aws.subscribe(topic, queue)
    notification = raise_and_read(objects, clock)
    opened = open_channels(spec_of(topic), aws.messaging)

    first = send_notifications(objects, opened, now=clock.now)
    again = send_notifications(objects, opened, now=clock.advance(60))

    assert first == SendResult(sent=1, waiting=0, abandoned=0, failing_channels=())
    assert again.sent == 0
    for queue in queues:
        (got,) = aws.received(queue)
        assert got["id"] == notification.id
        assert got["title"] == "[critical] STREAM_HUNG stream games"
        assert got["runbook"] == "reference/alerts.md#a-stream-hangs"
        assert got["detail"] == {"pid": 7}
    assert pending_notifications(objects) == 0


def test_a_channel_gets_its_severities_and_ends_only_if_configured(
    aws: Aws, objects: LocalObjects, clock: Clock
) -> None:
    topics = {name: aws.topic() for name in ("all", "pager", "begins")}
    queues = {name: aws.queue() for name in topics}
    for name, topic in topics.items():
        aws.subscribe(topic, queues[name])
    more = {"all": {"min_severity": "info"}, "pager": {"min_severity": "critical"}, "begins": {"resolved": False}}
    declared = [{"kind": "sns", "name": name, "topic": topics[name], **more[name]} for name in topics]
    opened = open_channels(AlertsSpec.model_validate({"channels": declared}), aws.messaging)

    raise_alert(objects, **{**ALERT, "severity": "info"}, now=clock.now)
    raise_alert(objects, **{**ALERT, "severity": "critical"}, now=clock.advance(1))
    resolve_alert(objects, cause=ALERT["cause"], subject=ALERT["subject"], now=clock.advance(1))
    send_notifications(objects, opened, now=clock.advance(1))

    kinds = {name: [got["kind"] for got in aws.received(queue)] for name, queue in queues.items()}
    assert kinds == {
        "all": ["raised", "escalated", "resolved"],
        "pager": ["escalated", "resolved"],
        "begins": ["escalated"],
    }


def test_notifications_survive_an_sns_outage_and_are_sent_once_in_order(
    aws: Aws, objects: LocalObjects, clock: Clock
) -> None:
    topic, queue = aws.topic(), aws.queue()
    aws.subscribe(topic, queue)
    spec = spec_of(topic)
    down = open_channels(spec, aws.messaging.model_copy(update={"endpoint": CLOSED_PORT_URL}))
    log = Channel(LogChannelSpec(kind="log", name="log", min_severity="info"), said := RecordingSender())
    raise_and_read(objects, clock)
    resolve_alert(objects, cause=ALERT["cause"], subject=ALERT["subject"], now=clock.advance(30))

    for _ in range(3):
        result = send_notifications(objects, [*down, log], now=clock.advance(600))
    assert result.failing_channels == ("people",)
    assert [notification.kind for notification in said.notifications[:2]] == ["raised", "resolved"]
    assert [notification.cause for notification in said.notifications[2:]] == ["CHANNEL_FAILING"], (
        "told on the channel that works"
    )

    up = open_channels(spec, aws.messaging)
    for _ in range(3):
        send_notifications(objects, [*up, log], now=clock.advance(601))

    got = aws.received(queue)
    assert [(each["cause"], each["kind"]) for each in got] == [
        ("STREAM_HUNG", "raised"),
        ("STREAM_HUNG", "resolved"),
        ("CHANNEL_FAILING", "raised"),
        ("CHANNEL_FAILING", "resolved"),
    ]
    assert len({each["id"] for each in got}) == 4
    assert pending_notifications(objects) == 0
    assert [alert.subject for alert in alerts(objects) if alert.state.is_open] == []


class RecordingSender:
    """A sender that records notifications, and can fail or be slow."""

    def __init__(self) -> None:
        self.notifications: list[Notification] = []
        self.fails = False
        self.before: Any = lambda: None

    def __call__(self, notification: Notification) -> None:
        self.before()
        if self.fails:
            raise TransientError("CHANNEL_FAILED", "down")
        self.notifications.append(notification)


def channel_of(said: RecordingSender, name: str = "log") -> Channel:
    return Channel(LogChannelSpec(kind="log", name=name, min_severity="info"), said)


@pytest.mark.parametrize("off", [False, True], ids=["protected", "without claims"])
def test_one_of_many_concurrent_senders_sends(objects: LocalObjects, clock: Clock, off: bool) -> None:
    raise_and_read(objects, clock)
    said, gate = RecordingSender(), threading.Barrier(12)
    store = ClaimGrantingObjects(objects) if off else objects

    def send() -> None:
        gate.wait()
        send_notifications(store, [channel_of(said)], now=clock.now)

    threads = [threading.Thread(target=send) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (len(said.notifications) == 1) == (not off)


class ClaimGrantingObjects(LocalObjects):
    """Control storage that grants every claim, like one without conditional writes."""

    def __init__(self, inner: LocalObjects) -> None:
        self.__dict__ = inner.__dict__
        self._gate = threading.Barrier(12)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if "/deliveries/" in key:
            self._gate.wait()  # all have looked before one writes
            self.put(key, data)
            return True
        return super().put_if_absent(key, data)


def test_the_claim_of_a_crashed_sender_is_taken_over_with_the_same_id(objects: LocalObjects, clock: Clock) -> None:
    notification = raise_and_read(objects, clock)
    said = RecordingSender()

    def die() -> None:
        raise KeyboardInterrupt

    said.before = die
    with pytest.raises(KeyboardInterrupt):
        send_notifications(objects, [channel_of(said)], now=clock.now)
    said.before = lambda: None

    assert send_notifications(objects, [channel_of(said)], now=clock.advance(CLAIM_SECONDS - 1)).waiting == 1
    assert send_notifications(objects, [channel_of(said)], now=clock.advance(2)).sent == 1
    assert [each.id for each in said.notifications] == [notification.id]


@pytest.mark.parametrize("fifo", [True, False], ids=["fifo", "standard"])
def test_a_duplicate_notification_arrives_once_only_on_a_fifo_topic(
    aws: Aws, objects: LocalObjects, clock: Clock, fifo: bool
) -> None:
    topic, queue = aws.topic(fifo=fifo), aws.queue(fifo=fifo)
    aws.subscribe(topic, queue)
    send = boto3_sns_sender(SnsChannelSpec(kind="sns", name="people", topic=topic), aws.messaging, MessageContext())
    notification = raise_and_read(objects, clock)

    send(notification)
    send(notification)

    assert len(aws.received(queue)) == (1 if fifo else 2)


@pytest.mark.parametrize("redrive", [True, False], ids=["with redrive", "without"])
def test_a_dead_subscriber_does_not_affect_others_and_its_dead_letters_have_the_notification(
    aws: Aws, objects: LocalObjects, clock: Clock, redrive: bool
) -> None:
    topic, dead, alive, letters = aws.topic(), aws.queue(), aws.queue(), aws.queue()
    aws.subscribe(topic, dead, dead_letters=letters if redrive else None)
    aws.subscribe(topic, alive)
    aws.client("sqs").delete_queue(QueueUrl=dead)
    notification = raise_and_read(objects, clock)

    result = send_notifications(objects, open_channels(spec_of(topic), aws.messaging), now=clock.now)

    assert result.failing_channels == ()
    assert [got["id"] for got in aws.received(alive)] == [notification.id]
    assert [got["id"] for got in aws.received(letters)] == ([notification.id] if redrive else [])


def test_a_notification_is_abandoned_after_days_of_failures(objects: LocalObjects, clock: Clock) -> None:
    raise_and_read(objects, clock)
    said = RecordingSender()
    said.fails = True
    for _ in range(20):
        result = send_notifications(objects, [channel_of(said)], now=clock.advance(4 * 3600))
        flush_alerts(objects, now=clock.now)

    assert result.failing_channels == ("log",)
    states = [
        found.state
        for key in objects.list(paths.alerts("deliveries/"))
        if (found := Delivery.decode_or_none(objects.get(key).data)) is not None  # type: ignore[union-attr]
    ]
    assert "abandoned" in states


def test_a_recovered_channel_is_retried_without_delay(objects: LocalObjects, clock: Clock) -> None:
    raise_and_read(objects, clock)
    said, other = RecordingSender(), RecordingSender()
    said.fails = True
    for _ in range(6):
        send_notifications(objects, [channel_of(said, "people"), channel_of(other, "log")], now=clock.advance(601))
    said.fails = False
    both = [channel_of(said, "people"), channel_of(other, "log")]
    assert send_notifications(objects, both, now=clock.advance(1)).failing_channels == ("people",), (
        "it waits for its next try"
    )

    due = retry_now(objects, "people"), retry_now(objects, "log")
    result = send_notifications(objects, both, now=clock.advance(1))

    assert due == (1, 0), "of those in order, the first alone has been tried"
    assert result.failing_channels == ()
    assert [notification.cause for notification in said.notifications] == ["STREAM_HUNG", "CHANNEL_FAILING"]
    assert [alert.subject for alert in alerts(objects) if alert.state.is_open] == ["stream games"]


def test_a_claimed_notification_is_left_to_its_sender(objects: LocalObjects, clock: Clock) -> None:
    notification = raise_and_read(objects, clock)
    key = paths.alert_delivery(notification.id, "people")
    claim = Delivery(state="sending", at=clock.now.isoformat(), by="elsewhere", claim="c").encode()
    objects.put(key, claim)

    assert retry_now(objects, "people") == 0
    assert present(objects.get(key)).data == claim


def test_a_failing_sender_does_not_block_other_channels(objects: LocalObjects, clock: Clock) -> None:
    raise_and_read(objects, clock)
    broken, well = RecordingSender(), RecordingSender()

    def wrong() -> None:
        raise TypeError("no notification")

    broken.before = wrong

    result = send_notifications(objects, [channel_of(broken, "a"), channel_of(well, "b")], now=clock.now)

    assert result.failing_channels == ("a",)
    assert [notification.cause for notification in well.notifications] == ["STREAM_HUNG"]


def test_a_channel_that_never_answers_delays_no_other_and_is_told(
    objects: LocalObjects, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "PASS_SECONDS", 0.2)
    monkeypatch.setattr(sending, "STUCK_SECONDS", 0.2)
    raise_and_read(objects, clock)
    stuck, well, gate = RecordingSender(), RecordingSender(), threading.Event()
    stuck.before = gate.wait
    try:
        channels = [channel_of(stuck, "a"), channel_of(well, "b")]
        first = send_notifications(objects, channels, now=clock.now)
        at_once = [notification.cause for notification in well.notifications]
        send_notifications(objects, channels, now=clock.advance(1))
    finally:
        gate.set()

    assert (first.failing_channels, first.sent, first.waiting) == (("a",), 1, 1)
    assert at_once == ["STREAM_HUNG"]
    assert [notification.cause for notification in well.notifications] == ["STREAM_HUNG", "CHANNEL_FAILING"]
    assert "has not answered" in well.notifications[1].summary


def test_a_notification_that_a_channel_rejects_holds_up_no_later_one(objects: LocalObjects, clock: Clock) -> None:
    first = raise_and_read(objects, clock)
    clock.advance(1)
    raise_and_read(objects, clock, subject="later")
    said = RecordingSender()

    rejections = [ContractError("NOTIFICATION_REJECTED", "invalid_blocks")]

    def reject_first() -> None:
        if rejections:
            raise rejections.pop()

    said.before = reject_first
    result = send_notifications(objects, [channel_of(said)], now=clock.now)

    assert (result.sent, result.waiting, result.failing_channels) == (1, 1, ("log",))
    assert [notification.subject for notification in said.notifications] == ["later"]
    send_notifications(objects, [channel_of(said)], now=clock.advance(601))
    assert first.id in {notification.id for notification in said.notifications}, "it is tried again"


def test_the_routes_of_an_environment_decide_what_is_sent(objects: LocalObjects, clock: Clock) -> None:
    declared = {
        "channels": [{"kind": "log", "name": name} for name in ("people", "games")],
        "routes": [{"owners": ["games-data"], "channels": ["games"]}, {"channels": ["people"]}],
    }
    spec, owners = AlertsSpec.model_validate(declared), {"games": "games-data", "shop": "sales"}
    told = {name: RecordingSender() for name in ("people", "games")}
    opened = [Channel(channel, told[channel.name], Router(spec, owners)) for channel in spec.channels]
    raise_and_read(objects, clock)
    raise_and_read(objects, clock, subject="stream shop")

    result = send_notifications(objects, opened, now=clock.now)

    assert (result.sent, result.waiting) == (2, 0)
    assert [one.subject for one in told["games"].notifications] == ["stream games"]
    assert [one.subject for one in told["people"].notifications] == ["stream shop"]


def test_an_invalid_spool_object_is_skipped(objects: LocalObjects, clock: Clock) -> None:
    objects.put(paths.alerts("spool/0.json"), b"{")
    raise_and_read(objects, clock)

    assert send_notifications(objects, [channel_of(said := RecordingSender())], now=clock.now).sent == 1
    assert pending_notifications(objects) == 0
    assert len(said.notifications) == 1


def test_delivery_records_are_deleted_after_a_week(objects: LocalObjects, clock: Clock) -> None:
    raise_and_read(objects, clock)
    send_notifications(objects, [channel_of(RecordingSender())], now=clock.now)

    assert delete_old_deliveries(objects, now=clock.now + timedelta(days=6)) == 0
    assert delete_old_deliveries(objects, now=clock.now + timedelta(days=8)) == 1


def test_sending_deletes_old_delivery_records(objects: LocalObjects, clock: Clock) -> None:
    raise_and_read(objects, clock)
    send_notifications(objects, [channel_of(RecordingSender())], now=clock.now)
    (first,) = objects.list(paths.alerts("deliveries/"))
    clock.advance(8 * 86_400)
    raise_and_read(objects, clock, subject="later")

    send_notifications(objects, [channel_of(RecordingSender())], now=clock.now)

    (second,) = objects.list(paths.alerts("deliveries/"))
    assert second != first


def test_the_record_of_an_old_notification_stays_while_another_channel_is_pending(
    objects: LocalObjects, clock: Clock
) -> None:
    raise_and_read(objects, clock)
    down = RecordingSender()
    down.fails = True
    send_notifications(objects, [channel_of(RecordingSender()), channel_of(down, "down")], now=clock.now)

    assert pending_notifications(objects) >= 1
    assert delete_old_deliveries(objects, now=clock.now + timedelta(days=8)) == 0


class Webhook:
    """A server with configurable answers that records its requests."""

    def __init__(self) -> None:
        self.status = 200
        self.got: list[tuple[dict[str, str], dict[str, Any]]] = []

    def __call__(self, request: HttpRequest) -> HttpAnswer:
        self.got.append((dict(request.headers), request.json()))
        return self.status, b""


def test_a_webhook_gets_json_and_a_rejection_is_retried(
    objects: LocalObjects, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = Webhook()
    monkeypatch.setenv("HOOK_TOKEN", "s3cret")
    declared = {"kind": "webhook", "name": "chat", "url": "env:HOOK_URL", "token": "env:HOOK_TOKEN"}
    notification = raise_and_read(objects, clock)
    with http_server(hook) as address:
        monkeypatch.setenv("HOOK_URL", f"{address}/hook")
        opened = open_channels(AlertsSpec.model_validate({"channels": [declared]}), Aws("").messaging)
        hook.status = 503
        assert send_notifications(objects, opened, now=clock.now).failing_channels == ("chat",)
        assert send_notifications(objects, opened, now=clock.advance(5)).sent == 0, "not tried again at once"
        hook.status = 204
        send_notifications(objects, opened, now=clock.advance(60))

    mine = [(headers, body) for headers, body in hook.got if body["id"] == notification.id]
    assert len(mine) == 2
    headers, body = mine[-1]
    assert headers["Authorization"] == "Bearer s3cret"
    assert headers["X-Deltaworks-Notification"] == notification.id
    assert body["text"].startswith("It hangs.")


def test_errors_do_not_contain_the_url(objects: LocalObjects, clock: Clock) -> None:
    declared = {"kind": "webhook", "name": "chat", "url": f"{CLOSED_PORT_URL}/secret-path"}
    opened = open_channels(AlertsSpec.model_validate({"channels": [declared]}), Aws("").messaging)
    raise_and_read(objects, clock)

    send_notifications(objects, opened, now=clock.now)

    assert all(b"secret-path" not in objects.get(key).data for key in objects.list(""))  # type: ignore[union-attr]


def test_the_log_is_the_default_channel(objects: LocalObjects, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[tuple[Any, ...]] = []
    monkeypatch.setattr(senders.log, "log", lambda *said: lines.append(said))
    raise_and_read(objects, clock)

    send_notifications(objects, open_channels(AlertsSpec(), Aws("").messaging), now=clock.now)

    ((_, form, *said),) = lines
    assert (form % tuple(said)).startswith("[critical] STREAM_HUNG stream games: It hangs.")


def test_every_kind_of_channel_that_can_be_declared_has_a_sender() -> None:
    specs = get_args(get_args(AnyChannelSpec)[0])
    declared = {get_args(spec.model_fields["kind"].annotation)[0] for spec in specs}

    assert declared == {*SENDERS, "sns"}


def test_channel_names_are_unique() -> None:
    one = {"kind": "log", "name": "log"}

    with pytest.raises(ValueError, match="same name"):
        AlertsSpec.model_validate({"channels": [one, one]})


def test_a_long_notification_fits_sns(aws: Aws, objects: LocalObjects, clock: Clock) -> None:
    topic, queue = aws.topic(), aws.queue()
    aws.subscribe(topic, queue)
    raised = raise_and_read(objects, clock, detail={f"log{n}": "ü" * 90_000 for n in range(20)})
    notification = raised.replace(subject="ü" * 300)

    send = boto3_sns_sender(SnsChannelSpec(kind="sns", name="people", topic=topic), aws.messaging, MessageContext())
    send(notification)

    assert len(notification.title) <= 100
    assert len(aws.received(queue)) == 1
