"""The harm of each fault without its protection."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from deltaworks.control.records.remediation import RemediationRecord, RemediationRecords
from deltaworks.errors import TransientError
from deltaworks.remediation import remediator as remediating
from deltaworks.remediation.remediator import Remediator
from tests.unit.remediation.remediation_harness import RemediationHarness


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
