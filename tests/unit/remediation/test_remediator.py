"""A remediation acts once for a notification, within its bounds, and takes back what does not help."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltaworks.alerts.notification import Notification
from deltaworks.alerts.raising import open_subjects
from deltaworks.errors import TransientError
from deltaworks.remediation.step_notifier import resolve_hold_alerts
from deltaworks.remediation.traffic import TrafficClient
from deltaworks.rules.subjects import UNKNOWN
from tests.unit.remediation.remediation_harness import RemediationStage
from tests.unit.remediation.traffic_server import Director, running_director

HALVES = {"a": 0.5, "b": 0.5}
SHIFTED = {"a": 0.3, "b": 0.7}


@pytest.fixture
def director() -> Iterator[Director]:
    with running_director(a=0.5, b=0.5) as running:
        yield running


@pytest.fixture
def stage(tmp_path: Path, director: Director) -> RemediationStage:
    return RemediationStage(tmp_path, director)


def reason(stage: RemediationStage, notification: Notification) -> str:
    """Why nothing was done about a notification."""
    record = stage.remediator().handle_notification(notification)
    assert record is not None
    assert record.state == "refused"
    return record.reason.partition(":")[0]


def test_weight_goes_from_the_slow_target_to_the_other_and_every_step_is_told(stage: RemediationStage) -> None:
    notification = stage.fires("a")
    record = stage.remediator().handle_notification(notification)
    assert record is not None
    assert record.state == "called"
    assert stage.director.weights == SHIFTED
    assert [move["key"] for move in stage.director.moves] == [notification.id]
    stage.passes(10)
    stage.ends("a")
    stage.remediator().resume_pending()
    assert stage.record(notification).state == "verified"
    assert stage.steps() == ["planned", "called", "verified"]


def test_a_dry_run_calls_nobody(tmp_path: Path, director: Director) -> None:
    stage = RemediationStage(tmp_path, director, dry_run=True)
    record = stage.remediator().handle_notification(stage.fires())
    assert record is not None
    assert (record.state, record.after) == ("dry_run", SHIFTED)
    assert (director.moves, stage.steps()) == ([], ["dry_run"])


def test_a_notice_that_is_delivered_twice_moves_weights_once(stage: RemediationStage) -> None:
    notification = stage.fires()
    for _ in range(2):
        stage.remediator().handle_notification(notification)
    stage.passes(16)
    stage.remediator().handle_notification(notification)
    assert stage.director.weights == SHIFTED
    assert len(stage.director.moves) == 1


def test_a_reply_that_is_lost_after_acting_moves_weights_once(stage: RemediationStage) -> None:
    stage.director.lost_replies = 1
    notification = stage.fires()
    record = stage.remediator().handle_notification(notification)
    assert record is not None
    assert record.state == "called"
    assert (stage.director.weights, len(stage.director.moves)) == (SHIFTED, 1)


def test_a_process_that_died_in_its_call_does_not_call_again(
    stage: RemediationStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(Exception): ...

    shift = TrafficClient.shift

    def shift_and_die(self: TrafficClient, *arguments: object, **named: object) -> None:
        shift(self, *arguments, **named)  # type: ignore[arg-type]
        raise Died

    notification = stage.fires()
    with monkeypatch.context() as patch:
        patch.setattr(TrafficClient, "shift", shift_and_die)
        with pytest.raises(Died):
            stage.remediator().handle_notification(notification)
    assert stage.record(notification).state == "planned"
    stage.remediator().resume_pending()
    assert (stage.record(notification).state, len(stage.director.moves)) == ("called", 1)


def test_a_process_that_died_before_its_call_calls(stage: RemediationStage) -> None:
    notification = stage.fires()
    stage.remediator().handle_notification(notification)
    done = stage.record(notification)
    planned = done.replace(state="planned", attempted_at=None, called_at=None)
    stage.records.replace(done, planned)
    stage.director.weights, stage.director.moves = dict(HALVES), []
    stage.remediator().resume_pending()
    assert (stage.record(notification).state, stage.director.weights) == ("called", SHIFTED)


def test_a_call_that_was_lost_on_its_way_is_told_and_not_repeated(
    stage: RemediationStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never_arrives(*_: object, **__: object) -> None:
        raise TransientError("TRAFFIC_UNREACHABLE", "nothing came back")

    monkeypatch.setattr(TrafficClient, "shift", never_arrives)
    notification = stage.fires()
    stage.remediator().handle_notification(notification)
    stage.remediator().resume_pending()
    assert stage.record(notification).state == "failed"
    assert stage.director.moves == []
    assert open_subjects(stage.objects, "REMEDIATION_FAILED") == {"shift_cdn"}


def test_an_address_that_tells_nothing_for_a_while_is_asked_again(stage: RemediationStage) -> None:
    stage.director.lost_replies = 1
    notification = stage.fires()
    remediator = stage.remediator()
    shift = TrafficClient.shift
    stage.director.silent_reads = 0

    class Silent(TrafficClient):
        def shift(self, *arguments: object, **named: object) -> None:
            stage.director.silent_reads = 4
            shift(self, *arguments, **named)  # type: ignore[arg-type]

    remediator._traffic = Silent(stage.spec.action)
    remediator.handle_notification(notification)
    assert stage.record(notification).state == "planned"
    stage.remediator().resume_pending()
    assert (stage.record(notification).state, len(stage.director.moves)) == ("called", 1)


@pytest.mark.parametrize("cause", ["RULE_FIRING", UNKNOWN])
def test_nothing_is_shifted_to_a_target_that_is_not_well(stage: RemediationStage, cause: str) -> None:
    stage.fires("b", cause=cause)
    notification = stage.fires("a")
    assert reason(stage, notification) == "no_target"
    assert (stage.director.moves, stage.steps()) == ([], ["refused"])


def test_a_shift_that_makes_it_worse_is_taken_back(stage: RemediationStage) -> None:
    notification = stage.fires("a")
    stage.remediator().handle_notification(notification)
    stage.passes(3)
    stage.fires("b")
    stage.remediator().resume_pending()
    assert (stage.record(notification).state, stage.director.weights) == ("rolled_back", HALVES)
    assert open_subjects(stage.objects, "REMEDIATION_FAILED") == {"shift_cdn"}
    assert stage.steps() == ["planned", "called", "rolled_back"]


@pytest.mark.parametrize(("value", "state"), [(280.0, "verified"), (295.0, "rolled_back"), (400.0, "rolled_back")])
def test_a_shift_has_to_make_the_figure_better_by_what_is_declared(
    stage: RemediationStage, value: float, state: str
) -> None:
    notification = stage.fires("a", value=300.0)
    stage.remediator().handle_notification(notification)
    stage.passes(9)
    stage.remediator().resume_pending()
    assert stage.record(notification).state == "called"
    stage.passes(1)
    stage.fires("a", value=value)
    stage.remediator().resume_pending()
    assert stage.record(notification).state == state


def test_weights_that_somebody_has_set_since_are_not_overwritten(stage: RemediationStage) -> None:
    notification = stage.fires("a")
    stage.remediator().handle_notification(notification)
    stage.director.weights = {"a": 0.1, "b": 0.9}
    stage.passes(10)
    stage.remediator().resume_pending()
    assert (stage.record(notification).state, stage.director.weights) == ("failed", {"a": 0.1, "b": 0.9})


def test_a_reply_that_is_lost_while_taking_back_takes_back_once(stage: RemediationStage) -> None:
    notification = stage.fires("a")
    stage.remediator().handle_notification(notification)
    stage.passes(10)
    stage.director.lost_replies = 1
    stage.remediator().resume_pending()
    assert (stage.record(notification).state, stage.director.weights) == ("rolled_back", HALVES)
    assert [move["key"] for move in stage.director.moves] == [notification.id, f"{notification.id}-back"]


def test_from_a_to_b_and_back_within_a_day_holds_itself(stage: RemediationStage) -> None:
    first = stage.fires("a")
    stage.remediator().handle_notification(first)
    stage.passes(10)
    stage.ends("a")
    stage.remediator().resume_pending()
    stage.passes(20)
    assert reason(stage, stage.fires("b")) == "ping_pong"
    assert stage.director.weights == SHIFTED
    assert open_subjects(stage.objects, "REMEDIATION_HELD") == {"shift_cdn"}
    stage.passes(20)
    assert reason(stage, stage.fires("b", region="eu")) == "on_hold"
    assert stage.records.resume("shift_cdn")
    resolve_hold_alerts(stage.objects, "shift_cdn")
    assert open_subjects(stage.objects, "REMEDIATION_HELD") == set()


def test_it_waits_between_shifts_and_acts_so_often_a_day(tmp_path: Path, director: Director) -> None:
    stage = RemediationStage(tmp_path, director, step=0.05, max_per_day=2)
    for _ in range(2):
        notification = stage.fires("a")
        stage.remediator().handle_notification(notification)
        stage.ends("a")
        stage.passes(10)
        stage.remediator().resume_pending()
        assert stage.record(notification).state == "verified"
        stage.passes(1)
        assert reason(stage, stage.fires("a", region="eu")) == "cooldown"
        stage.ends("a", region="eu")
        stage.passes(20)
    assert reason(stage, stage.fires("a", region="us")) == "daily_limit"
    assert director.weights == {"a": 0.4, "b": 0.6}


def test_every_target_keeps_its_floor(tmp_path: Path, director: Director) -> None:
    stage = RemediationStage(tmp_path, director, floor=0.4)
    stage.remediator().handle_notification(stage.fires("a"))
    assert director.weights == {"a": 0.4, "b": 0.6}
    stage.ends("a")
    stage.passes(10)
    stage.remediator().resume_pending()
    stage.passes(20)
    assert reason(stage, stage.fires("a", region="eu")) == "at_floor"


def test_a_notice_is_believed_only_as_far_as_its_alert_is_open(stage: RemediationStage) -> None:
    notification = stage.fires("a")
    stage.ends("a")
    assert reason(stage, notification) == "not_firing"
    forged = dataclasses.replace(
        notification, id="20260301T120000000000-ffffffffffff", subject="video_qos.cdn_slow{cdn=b}"
    )
    assert reason(stage, forged) == "not_firing"
    stage.passes(6)
    assert (
        reason(stage, dataclasses.replace(notification, id="20260301T120000000000-eeeeeeeeeeee"))
        == "stale_notification"
    )


def test_one_shift_at_a_time(tmp_path: Path, director: Director) -> None:
    stage = RemediationStage(tmp_path, director, cooldown_minutes=1)
    stage.remediator().handle_notification(stage.fires("a"))
    stage.passes(4)
    assert reason(stage, stage.fires("a", region="eu")) == "in_progress"


def test_notices_of_other_rules_and_of_ends_are_none_of_its_concern(stage: RemediationStage) -> None:
    notification = stage.fires("a")
    for other in (
        dataclasses.replace(notification, kind="resolved"),
        dataclasses.replace(notification, cause="GOLD_STALE"),
        dataclasses.replace(notification, subject="video_qos.errors{cdn=a}"),
    ):
        assert stage.remediator().handle_notification(other) is None
    assert list(stage.records.all()) == []


def test_weights_that_are_none_are_not_shifted(stage: RemediationStage) -> None:
    stage.director.weights = {"a": 0.5}
    assert reason(stage, stage.fires("a")) == "invalid_weights"
