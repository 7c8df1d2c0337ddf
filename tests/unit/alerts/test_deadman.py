"""The dead man's switch: silence of the health check is notified, also without control storage."""

from __future__ import annotations

from typing import Any

import pytest

from deltaworks.alerts.channels import channel_problems, open_channels
from deltaworks.alerts.deadman import Deadman, write_health_heartbeat
from deltaworks.alerts.notification import Notification, sample_notifications
from deltaworks.alerts.raising import alerts, raise_alert
from deltaworks.control.objects import LocalObjects, ObjectStore
from deltaworks.errors import TransientError
from deltaworks.specs.alert_channels import AlertsSpec
from tests.unit.alerts.aws_harness import Aws
from tests.unit.alerts.conftest import Clock
from tests.unit.alerts.test_sending import RecordingSender, channel_of

AFTER = 300.0


def open_deadman(objects: ObjectStore, said: RecordingSender, **more: Any) -> Deadman:
    return Deadman(objects, [channel_of(said)], after_seconds=AFTER, **more)


def notified(said: RecordingSender) -> list[tuple[str, str]]:
    return [(notification.cause, notification.kind) for notification in said.notifications]


def test_a_silent_health_check_is_notified_once_and_so_is_its_return(objects: LocalObjects, clock: Clock) -> None:
    said = RecordingSender()
    deadman = open_deadman(objects, said)
    for _ in range(10):
        write_health_heartbeat(objects, run="health", checked=3, unhealthy=0, now=clock.advance(60))
        assert deadman.check(now=clock.now).state == "well"
    assert notified(said) == []

    states = [deadman.check(now=clock.advance(60)).state for _ in range(10)]
    assert states == ["well"] * 5 + ["silent"] * 5
    assert notified(said) == [("HEALTH_SILENT", "raised")]
    assert said.notifications[0].severity == "critical"
    assert said.notifications[0].runbook == "reference/alerts.md#the-health-check-is-silent"

    write_health_heartbeat(objects, run="health", checked=3, unhealthy=0, now=clock.advance(60))
    assert deadman.check(now=clock.now).state == "well"
    assert notified(said) == [("HEALTH_SILENT", "raised"), ("HEALTH_SILENT", "resolved")]


def test_a_health_check_that_never_ran_is_notified_too(objects: LocalObjects, clock: Clock) -> None:
    said = RecordingSender()

    states = [open_deadman(objects, said).check(now=clock.advance(60)).state for _ in range(8)]

    assert states == ["well"] * 6 + ["silent"] * 2
    assert notified(said) == [("HEALTH_SILENT", "raised")]


def test_the_grace_period_covers_a_stack_that_was_down(objects: LocalObjects, clock: Clock) -> None:
    write_health_heartbeat(objects, run="health", checked=3, unhealthy=0, now=clock.now)
    clock.advance(86_400)

    assert open_deadman(objects, RecordingSender(), grace=True).check(now=clock.now).state == "well"
    assert open_deadman(objects, RecordingSender()).check(now=clock.now).state == "silent"


def test_it_sends_notifications_raised_before_the_scheduler_died(objects: LocalObjects, clock: Clock) -> None:
    said = RecordingSender()
    raise_alert(objects, cause="STREAM_HUNG", subject="stream games", summary="It hangs.", now=clock.now)

    open_deadman(objects, said).check(now=clock.now)

    assert notified(said) == [("STREAM_HUNG", "raised")]


class Unreachable(LocalObjects):
    """Control storage that does not answer while `down`."""

    down = True

    def get(self, key: str) -> Any:
        if self.down:
            raise TransientError("STORAGE_UNREACHABLE", "no answer")
        return super().get(key)


def test_unreachable_control_storage_is_notified_directly(tmp_path: Any, clock: Clock) -> None:
    objects, said = Unreachable(tmp_path), RecordingSender()
    deadman = open_deadman(objects, said)

    assert [deadman.check(now=clock.advance(30)).state for _ in range(20)] == ["unreadable"] * 20
    assert notified(said) == [("CONTROL_UNREADABLE", "raised")]

    objects.down = False
    write_health_heartbeat(objects, run="health", checked=1, unhealthy=0, now=clock.now)
    assert deadman.check(now=clock.now).state == "well"
    assert notified(said) == [("CONTROL_UNREADABLE", "raised"), ("CONTROL_UNREADABLE", "resolved")]


def test_a_damaged_heartbeat_of_the_health_check_counts_as_silence(objects: LocalObjects, clock: Clock) -> None:
    objects.put("control/alerts/health.json", b"{")

    assert open_deadman(objects, RecordingSender()).check(now=clock.now).state == "silent"
    (alert,) = alerts(objects)
    assert alert.state.is_open


def test_topics_without_subscriptions_and_subscriptions_without_dead_letters_are_named(aws: Aws) -> None:
    topic, queue, letters = aws.topic(), aws.queue(), aws.queue()
    declared = [
        {"kind": "sns", "name": "people", "topic": topic, "dead_letters": aws.arn(letters)},
        {"kind": "log", "name": "log"},
    ]
    people, log = open_channels(AlertsSpec.model_validate({"channels": declared}), aws.messaging)

    assert "has no subscriptions" in channel_problems(people, aws.messaging)[0].text
    subscription = aws.subscribe(topic, queue)
    (problem,) = channel_problems(people, aws.messaging)
    assert "no dead-letter queue" in problem.text
    assert not problem.is_blocking
    aws.client("sns").unsubscribe(SubscriptionArn=subscription)
    aws.subscribe(topic, queue, dead_letters=queue)
    assert "is declared" in channel_problems(people, aws.messaging)[0].text

    assert channel_problems(log, aws.messaging) == []


def test_a_missing_topic_is_named_and_a_working_one_accepts_a_test(aws: Aws) -> None:
    topic, queue, letters = aws.topic(), aws.queue(), aws.queue()
    aws.subscribe(topic, queue, dead_letters=letters)
    spec = {"kind": "sns", "name": "people", "topic": topic}
    (well,) = open_channels(
        AlertsSpec.model_validate({"channels": [spec], "docs_url": "https://docs.test/"}), aws.messaging
    )
    (gone,) = open_channels(AlertsSpec.model_validate({"channels": [{**spec, "topic": topic + "x"}]}), aws.messaging)

    assert channel_problems(well, aws.messaging) == []
    assert [problem.is_blocking for problem in channel_problems(gone, aws.messaging)] == [True]
    well.send(sample_notifications(ends=False)[0])
    (got,) = aws.received(queue)
    assert got["runbook"] == "https://docs.test/reference/alerts.md#channels"
    with pytest.raises(TransientError) as refused:
        gone.send(sample_notifications(ends=False)[0])
    assert refused.value.condition == "CHANNEL_FAILED"


def test_a_failing_channel_does_not_stop_direct_notifications_on_others(tmp_path: Any, clock: Clock) -> None:
    broken, well = RecordingSender(), RecordingSender()
    broken.fails = True
    deadman = Deadman(Unreachable(tmp_path), [channel_of(broken, "a"), channel_of(well, "b")], after_seconds=AFTER)

    deadman.check(now=clock.now)

    assert [type(notification) for notification in well.notifications] == [Notification]
