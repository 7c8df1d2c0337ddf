"""A remediation acts once per notification, by SNS and SQS, within its limits, and rolls back what does not help."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from deltaworks.alerts.channels import MessageContext
from deltaworks.alerts.channels.senders import publish, sns_message
from deltaworks.alerts.notification import Notification
from deltaworks.alerts.raising import open_subjects
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.health.heartbeat import StopFlag
from deltaworks.control.health.report import subjects
from deltaworks.control.objects import open_objects
from deltaworks.control.records.remediation import RemediationRecord, RemediationRecords
from deltaworks.errors import ConfigError, TransientError
from deltaworks.remediation import remediator as remediating
from deltaworks.remediation.notifications import resolve_hold_alerts
from deltaworks.remediation.process import RemediationProcess, find_remediation
from deltaworks.remediation.remediator import Remediator, TrafficClient
from deltaworks.rules.subjects import UNKNOWN
from deltaworks.sources.objects.relay.queue import NotificationQueue
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.testing import environment_spec, present
from tests.unit.alerts.aws_harness import Aws
from tests.unit.remediation.remediation_harness import RemediationHarness, declared
from tests.unit.remediation.traffic_server import Director

HALVES = {"a": 0.5, "b": 0.5}
SHIFTED = {"a": 0.3, "b": 0.7}


def reason(harness: RemediationHarness, notification: Notification) -> str:
    """Returns why nothing was done."""
    record = present(harness.remediator().handle_notification(notification))
    assert record.state == "refused"
    return record.reason.partition(":")[0]


def test_weight_goes_from_the_slow_target_to_the_other_and_every_step_is_told(harness: RemediationHarness) -> None:
    notification = harness.fires("a")
    assert present(harness.remediator().handle_notification(notification)).state == "called"
    assert harness.director.weights == SHIFTED
    assert [move["key"] for move in harness.director.moves] == [notification.id]
    harness.passes(10)
    harness.ends("a")
    harness.remediator().resume_pending()
    assert harness.record(notification).state == "verified"
    assert harness.steps() == ["planned", "called", "verified"]


def test_a_dry_run_calls_nobody(tmp_path: Path, director: Director) -> None:
    harness = RemediationHarness(tmp_path, director, dry_run=True)
    record = present(harness.remediator().handle_notification(harness.fires()))
    assert (record.state, record.after) == ("dry_run", SHIFTED)
    assert (director.moves, harness.steps()) == ([], ["dry_run"])


def test_a_notice_that_is_delivered_twice_moves_weights_once(harness: RemediationHarness) -> None:
    notification = harness.fires()
    for _ in range(2):
        harness.remediator().handle_notification(notification)
    harness.passes(16)
    harness.remediator().handle_notification(notification)
    assert harness.director.weights == SHIFTED
    assert len(harness.director.moves) == 1


def test_a_reply_that_is_lost_after_acting_moves_weights_once(harness: RemediationHarness) -> None:
    harness.director.lost_replies = 1
    notification = harness.fires()
    assert present(harness.remediator().handle_notification(notification)).state == "called"
    assert (harness.director.weights, len(harness.director.moves)) == (SHIFTED, 1)


def test_a_process_that_died_in_its_call_does_not_call_again(
    harness: RemediationHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(Exception): ...

    shift = TrafficClient.shift

    def shift_and_die(self: TrafficClient, *arguments: object, **named: object) -> None:
        shift(self, *arguments, **named)  # type: ignore[arg-type]
        raise Died

    notification = harness.fires()
    with monkeypatch.context() as patch:
        patch.setattr(TrafficClient, "shift", shift_and_die)
        with pytest.raises(Died):
            harness.remediator().handle_notification(notification)
    assert harness.record(notification).state == "planned"
    harness.remediator().resume_pending()
    assert (harness.record(notification).state, len(harness.director.moves)) == ("called", 1)


def test_a_process_that_died_before_its_call_calls(harness: RemediationHarness) -> None:
    notification = harness.fires()
    harness.remediator().handle_notification(notification)
    done = harness.record(notification)
    planned = done.replace(state="planned", attempted_at=None, called_at=None)
    harness.records.replace(done, planned)
    harness.director.weights, harness.director.moves = dict(HALVES), []
    harness.remediator().resume_pending()
    assert (harness.record(notification).state, harness.director.weights) == ("called", SHIFTED)


def test_a_call_that_was_lost_on_its_way_is_told_and_not_repeated(
    harness: RemediationHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never_arrives(*_: object, **__: object) -> None:
        raise TransientError("TRAFFIC_UNREACHABLE", "nothing came back")

    monkeypatch.setattr(TrafficClient, "shift", never_arrives)
    notification = harness.fires()
    harness.remediator().handle_notification(notification)
    harness.remediator().resume_pending()
    assert harness.record(notification).state == "failed"
    assert harness.director.moves == []
    assert open_subjects(harness.objects, "REMEDIATION_FAILED") == {"shift_cdn"}


def test_an_address_that_tells_nothing_for_a_while_is_asked_again(harness: RemediationHarness) -> None:
    harness.director.lost_replies = 1
    notification = harness.fires()
    remediator = harness.remediator()
    shift = TrafficClient.shift
    harness.director.silent_reads = 0

    class Silent(TrafficClient):
        def shift(self, *arguments: object, **named: object) -> None:
            harness.director.silent_reads = 4
            shift(self, *arguments, **named)  # type: ignore[arg-type]

    remediator._traffic = Silent(harness.spec.action)
    remediator.handle_notification(notification)
    assert harness.record(notification).state == "planned"
    harness.remediator().resume_pending()
    assert (harness.record(notification).state, len(harness.director.moves)) == ("called", 1)


@pytest.mark.parametrize("cause", ["RULE_FIRING", UNKNOWN])
def test_nothing_is_shifted_to_a_target_that_is_not_well(harness: RemediationHarness, cause: str) -> None:
    harness.fires("b", cause=cause)
    notification = harness.fires("a")
    assert reason(harness, notification) == "no_target"
    assert (harness.director.moves, harness.steps()) == ([], ["refused"])


def test_a_shift_that_makes_it_worse_is_taken_back(harness: RemediationHarness) -> None:
    notification = harness.fires("a")
    harness.remediator().handle_notification(notification)
    harness.passes(3)
    harness.fires("b")
    harness.remediator().resume_pending()
    assert (harness.record(notification).state, harness.director.weights) == ("rolled_back", HALVES)
    assert open_subjects(harness.objects, "REMEDIATION_FAILED") == {"shift_cdn"}
    assert harness.steps() == ["planned", "called", "rolled_back"]


@pytest.mark.parametrize(("value", "state"), [(280.0, "verified"), (295.0, "rolled_back"), (400.0, "rolled_back")])
def test_a_shift_has_to_make_the_figure_better_by_what_is_declared(
    harness: RemediationHarness, value: float, state: str
) -> None:
    notification = harness.fires("a", value=300.0)
    harness.remediator().handle_notification(notification)
    harness.passes(9)
    harness.remediator().resume_pending()
    assert harness.record(notification).state == "called"
    harness.passes(1)
    harness.fires("a", value=value)
    harness.remediator().resume_pending()
    assert harness.record(notification).state == state


def test_weights_that_somebody_has_set_since_are_not_overwritten(harness: RemediationHarness) -> None:
    notification = harness.fires("a")
    harness.remediator().handle_notification(notification)
    harness.director.weights = {"a": 0.1, "b": 0.9}
    harness.passes(10)
    harness.remediator().resume_pending()
    assert (harness.record(notification).state, harness.director.weights) == ("failed", {"a": 0.1, "b": 0.9})


def test_a_reply_that_is_lost_while_taking_back_takes_back_once(harness: RemediationHarness) -> None:
    notification = harness.fires("a")
    harness.remediator().handle_notification(notification)
    harness.passes(10)
    harness.director.lost_replies = 1
    harness.remediator().resume_pending()
    assert (harness.record(notification).state, harness.director.weights) == ("rolled_back", HALVES)
    assert [move["key"] for move in harness.director.moves] == [notification.id, f"{notification.id}-back"]


def test_from_a_to_b_and_back_within_a_day_holds_itself(harness: RemediationHarness) -> None:
    first = harness.fires("a")
    harness.remediator().handle_notification(first)
    harness.passes(10)
    harness.ends("a")
    harness.remediator().resume_pending()
    harness.passes(20)
    assert reason(harness, harness.fires("b")) == "ping_pong"
    assert harness.director.weights == SHIFTED
    assert open_subjects(harness.objects, "REMEDIATION_HELD") == {"shift_cdn"}
    harness.passes(20)
    assert reason(harness, harness.fires("b", region="eu")) == "on_hold"
    assert harness.records.resume("shift_cdn")
    resolve_hold_alerts(harness.objects, "shift_cdn")
    assert open_subjects(harness.objects, "REMEDIATION_HELD") == set()


def test_it_waits_between_shifts_and_acts_so_often_a_day(tmp_path: Path, director: Director) -> None:
    harness = RemediationHarness(tmp_path, director, step=0.05, max_per_day=2)
    for _ in range(2):
        notification = harness.fires("a")
        harness.remediator().handle_notification(notification)
        harness.ends("a")
        harness.passes(10)
        harness.remediator().resume_pending()
        assert harness.record(notification).state == "verified"
        harness.passes(1)
        assert reason(harness, harness.fires("a", region="eu")) == "cooldown"
        harness.ends("a", region="eu")
        harness.passes(20)
    assert reason(harness, harness.fires("a", region="us")) == "daily_limit"
    assert director.weights == {"a": 0.4, "b": 0.6}


def test_every_target_keeps_its_floor(tmp_path: Path, director: Director) -> None:
    harness = RemediationHarness(tmp_path, director, floor=0.4)
    harness.remediator().handle_notification(harness.fires("a"))
    assert director.weights == {"a": 0.4, "b": 0.6}
    harness.ends("a")
    harness.passes(10)
    harness.remediator().resume_pending()
    harness.passes(20)
    assert reason(harness, harness.fires("a", region="eu")) == "at_floor"


def test_a_notice_is_believed_only_as_far_as_its_alert_is_open(harness: RemediationHarness) -> None:
    notification = harness.fires("a")
    harness.ends("a")
    assert reason(harness, notification) == "not_firing"
    forged = notification.replace(id="20260301T120000000000-ffffffffffff", subject="video_qos.cdn_slow{cdn=b}")
    assert reason(harness, forged) == "not_firing"
    harness.passes(6)
    assert reason(harness, notification.replace(id="20260301T120000000000-eeeeeeeeeeee")) == "stale_notification"


def test_one_shift_at_a_time(tmp_path: Path, director: Director) -> None:
    harness = RemediationHarness(tmp_path, director, cooldown_minutes=1)
    harness.remediator().handle_notification(harness.fires("a"))
    harness.passes(4)
    assert reason(harness, harness.fires("a", region="eu")) == "in_progress"


def test_notices_of_other_rules_and_of_ends_are_none_of_its_concern(harness: RemediationHarness) -> None:
    notification = harness.fires("a")
    for other in (
        notification.replace(kind="resolved"),
        notification.replace(cause="GOLD_STALE"),
        notification.replace(subject="video_qos.errors{cdn=a}"),
    ):
        assert harness.remediator().handle_notification(other) is None
    assert list(harness.records.all()) == []


def test_weights_that_are_none_are_not_shifted(harness: RemediationHarness) -> None:
    harness.director.weights = {"a": 0.5}
    assert reason(harness, harness.fires("a")) == "invalid_weights"


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"targets": ["a"]}, "at least two distinct targets"),
        ({"targets": ["a", "a"]}, "at least two distinct targets"),
        ({"floor": 0.6}, "cannot all have"),
        ({"step": 0.6}, "maximum step is 0.5"),
        ({"verify": {"after_minutes": 1, "min_improvement": 0.05}}, "ttl_seconds"),
        ({"rule": "cdn_slow"}, "pipeline.rule"),
        ({"action": {"kind": "webhook", "url": "traffic"}}, "https://"),
    ],
)
def test_an_invalid_remediation_is_rejected_with_a_suggestion(spec: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        declared(**spec)


def test_it_is_a_dry_run_unless_declared_otherwise() -> None:
    spec = declared().model_dump(mode="json", exclude_unset=True)
    del spec["dry_run"]
    assert declared(**spec | {"dry_run": True}).dry_run
    assert type(declared()).model_fields["dry_run"].default is True


def test_two_remediations_of_one_rule_are_refused() -> None:
    one, other = (declared(name=name).model_dump(mode="json") for name in ("one", "other"))
    storage = {"root": "file:///tmp/lake"}
    with pytest.raises(ValidationError, match="two would interfere"):
        EnvironmentSpec.model_validate(
            {"environment": "x", "lake": storage, "landing": storage, "messaging": {}, "remediations": [one, other]}
        )


@pytest.fixture
def without_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier notifications are forgotten."""
    monkeypatch.setattr(RemediationRecords, "read", lambda self, notification: None)
    monkeypatch.setattr(RemediationRecords, "create", lambda self, record: True)
    monkeypatch.setattr(RemediationRecords, "replace", lambda self, before, after: after)
    monkeypatch.setattr(RemediationRecords, "all", lambda self, remediation=None, **_: iter(()))


@pytest.mark.usefixtures("without_records")
def test_a_notice_delivered_twice_moves_weight_twice(harness: RemediationHarness) -> None:
    notification = harness.fires("a")
    for _ in range(2):
        harness.remediator().handle_notification(notification)
    assert (len(harness.director.moves), harness.director.weights) == (2, {"a": 0.1, "b": 0.9})


@pytest.mark.usefixtures("without_records")
def test_a_lost_reply_that_is_taken_for_a_failure_moves_weight_twice(
    harness: RemediationHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Remediator, record: RemediationRecord, **_: Any) -> RemediationRecord:
        raise TransientError("TRAFFIC_UNREACHABLE", "given back to the queue")

    monkeypatch.setattr(Remediator, "_confirm_weights", fails)
    harness.director.lost_replies = 1
    notification = harness.fires("a")
    with pytest.raises(TransientError):
        harness.remediator().handle_notification(notification)
    harness.remediator().handle_notification(notification)
    assert (len(harness.director.moves), harness.director.weights) == (2, {"a": 0.1, "b": 0.9})


def test_a_call_that_is_not_on_record_before_it_begins_is_made_twice(harness: RemediationHarness) -> None:
    notification = harness.fires("a")
    harness.remediator().handle_notification(notification)
    done = harness.record(notification)
    # The record if the attempt were not recorded: planned, nothing started.
    harness.records.replace(done, done.replace(state="planned", attempted_at=None, called_at=None))
    harness.remediator().resume_pending()
    assert len(harness.director.moves) == 2


def test_weight_goes_to_a_target_that_is_slow_itself(
    harness: RemediationHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_rule_state = remediating.read_rule_state
    monkeypatch.setattr(
        remediating,
        "read_rule_state",
        lambda *arguments: dataclasses.replace(read_rule_state(*arguments), unhealthy={}),
    )
    harness.fires("b")
    harness.remediator().handle_notification(harness.fires("a"))
    assert harness.director.weights == {"a": 0.3, "b": 0.7}


def test_a_shift_that_makes_it_worse_stays(harness: RemediationHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Remediator, "_verify_shift", lambda self, record: record)
    harness.remediator().handle_notification(harness.fires("a"))
    harness.passes(10)
    harness.fires("b")
    harness.remediator().resume_pending()
    assert harness.director.weights == {"a": 0.3, "b": 0.7}


@pytest.mark.usefixtures("without_records")
def test_weight_swings_back_and_forth(harness: RemediationHarness) -> None:
    for cdn in ("a", "b", "a"):
        harness.remediator().handle_notification(harness.fires(cdn))
        harness.ends(cdn)
        harness.passes(20)
    assert [(move["from"], move["to"]) for move in harness.director.moves] == [("a", "b"), ("b", "a"), ("a", "b")]


def test_a_message_alone_moves_traffic(harness: RemediationHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    notification = harness.fires("a")
    alert = remediating.read_rule_state(harness.objects, harness.spec, notification.subject)
    harness.ends("a")
    # The alert from the message, not its current state.
    monkeypatch.setattr(remediating, "read_rule_state", lambda *_: dataclasses.replace(alert, unhealthy={}))
    harness.remediator().handle_notification(notification)
    assert len(harness.director.moves) == 1


class Wired:
    """A remediation with a queue subscribed to a topic, and a process run step by step."""

    def __init__(self, root: Path, aws: Aws, director: Director) -> None:
        self.aws, self.queue, self.topic = aws, aws.queue(), aws.topic()
        aws.subscribe(self.topic, self.queue)
        self.harness = RemediationHarness(root, director, queue_url=self.queue)
        self.harness.now = utc_now()
        remediations = (self.harness.spec,)
        self.environment = environment_spec(
            root, lake=self.harness.storage, messaging=aws.messaging, remediations=remediations
        )

    def process(self, **more: Any) -> RemediationProcess:
        queue = NotificationQueue(self.aws.messaging, self.queue, wait_seconds=1, visibility_seconds=30)
        return RemediationProcess(
            self.environment, self.harness.spec, queue=queue, remediator=self.harness.remediator(), **more
        )

    def waiting(self) -> int:
        return sum(NotificationQueue(self.aws.messaging, self.queue, wait_seconds=1).approximate_counts())


@pytest.fixture
def wired(tmp_path: Path, aws: Aws, director: Director) -> Wired:
    return Wired(tmp_path, aws, director)


def test_a_rule_that_fires_moves_weight_once_though_its_notice_comes_twice(wired: Wired) -> None:
    notification = wired.harness.fires("a")
    for _ in range(2):
        publish(wired.aws.client("sns"), sns_message(wired.topic, notification, MessageContext()))
    process = wired.process()
    for _ in range(2):
        process.run_once()
    assert wired.harness.director.weights == {"a": 0.3, "b": 0.7}
    assert len(wired.harness.director.moves) == 1
    assert wired.waiting() == 0


def test_a_message_that_says_nothing_is_kept_aside(wired: Wired) -> None:
    bodies = ["no json", "[]", '{"id": "../../x", "kind": "raised"}', '{"Message": "x", "TopicArn": "t"}']
    assert not NotificationQueue(wired.aws.messaging, wired.queue).send(bodies)
    process = wired.process()
    process.run_once()
    assert process.counts.unusable == len(bodies)
    folder = paths.remediation_control("shift_cdn") + "/unusable/"
    assert len(wired.harness.objects.list(folder)) == len(bodies)
    assert wired.waiting() == 0


def test_a_message_that_could_not_be_handled_yet_comes_again(wired: Wired) -> None:
    notification = wired.harness.fires("a")
    publish(wired.aws.client("sns"), sns_message(wired.topic, notification, MessageContext()))
    wired.harness.director.silent_reads = 1
    process = wired.process()
    with pytest.raises(Exception, match="TRAFFIC_UNREACHABLE"):
        process.run_once()
    assert wired.waiting() == 1
    process.run_once()
    assert wired.harness.record(notification).state == "called"


def test_a_process_ends_by_its_flag_and_is_watched(wired: Wired) -> None:
    folder = paths.remediation_control("shift_cdn")
    StopFlag(open_objects(wired.harness.storage), paths.stop_request(folder)).set(by="me", reason="over")
    counts = wired.process().run()
    assert counts.messages == 0
    catalog = Catalog(wired.environment, {}, {}, Path())
    assert [subject.dag_id for subject in subjects(catalog)] == ["shift_cdn__remediation"]


def test_a_name_that_is_not_declared_gets_the_nearest(wired: Wired) -> None:
    catalog = Catalog(wired.environment, {}, {}, Path())
    with pytest.raises(ConfigError, match="shift_cdn"):
        find_remediation(catalog, "shift_cnd")
    empty = dataclasses.replace(catalog, environment=wired.environment.model_copy(update={"remediations": ()}))
    with pytest.raises(ConfigError, match="REMEDIATION_UNKNOWN"):
        find_remediation(empty, "shift_cdn")
