"""A remediation acts once per notification, within its limits, and rolls back what does not help."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaworks.alerts.notification import Notification
from deltaworks.alerts.raising import open_subjects
from deltaworks.errors import TransientError
from deltaworks.remediation.remediator import TrafficClient
from deltaworks.remediation.step_notifier import resolve_hold_alerts
from deltaworks.rules.subjects import UNKNOWN
from tests.unit.remediation.remediation_harness import RemediationHarness
from tests.unit.remediation.traffic_server import Director

HALVES = {"a": 0.5, "b": 0.5}
SHIFTED = {"a": 0.3, "b": 0.7}


def reason(harness: RemediationHarness, notification: Notification) -> str:
    """Returns why nothing was done."""
    record = harness.remediator().handle_notification(notification)
    assert record is not None
    assert record.state == "refused"
    return record.reason.partition(":")[0]


def test_weight_goes_from_the_slow_target_to_the_other_and_every_step_is_told(harness: RemediationHarness) -> None:
    notification = harness.fires("a")
    record = harness.remediator().handle_notification(notification)
    assert record is not None
    assert record.state == "called"
    assert harness.director.weights == SHIFTED
    assert [move["key"] for move in harness.director.moves] == [notification.id]
    harness.passes(10)
    harness.ends("a")
    harness.remediator().resume_pending()
    assert harness.record(notification).state == "verified"
    assert harness.steps() == ["planned", "called", "verified"]


def test_a_dry_run_calls_nobody(tmp_path: Path, director: Director) -> None:
    harness = RemediationHarness(tmp_path, director, dry_run=True)
    record = harness.remediator().handle_notification(harness.fires())
    assert record is not None
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
    record = harness.remediator().handle_notification(notification)
    assert record is not None
    assert record.state == "called"
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
