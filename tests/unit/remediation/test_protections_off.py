"""What each protection of a remediation is worth: the same faults with it off, and the harm they then do."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control.records.remediation import RemediationRecord, RemediationRecords
from deltaworks.errors import TransientError
from deltaworks.remediation import remediator as remediating
from deltaworks.remediation.remediator import Remediator
from tests.unit.remediation.remediation_harness import RemediationStage
from tests.unit.remediation.traffic_server import Director, running_director


@pytest.fixture
def director() -> Iterator[Director]:
    with running_director(a=0.5, b=0.5) as running:
        yield running


@pytest.fixture
def stage(tmp_path: Path, director: Director) -> RemediationStage:
    return RemediationStage(tmp_path, director)


@pytest.fixture
def without_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of an earlier notification is remembered when the next one is taken up."""
    monkeypatch.setattr(RemediationRecords, "read", lambda self, notification: None)
    monkeypatch.setattr(RemediationRecords, "create", lambda self, record: True)
    monkeypatch.setattr(RemediationRecords, "replace", lambda self, before, after: after)
    monkeypatch.setattr(RemediationRecords, "all", lambda self, remediation=None, **_: iter(()))


@pytest.mark.usefixtures("without_records")
def test_a_notice_delivered_twice_moves_weight_twice(stage: RemediationStage) -> None:
    notification = stage.fires("a")
    for _ in range(2):
        stage.remediator().handle_notification(notification)
    assert (len(stage.director.moves), stage.director.weights) == (2, {"a": 0.1, "b": 0.9})


@pytest.mark.usefixtures("without_records")
def test_a_lost_reply_that_is_taken_for_a_failure_moves_weight_twice(
    stage: RemediationStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Remediator, record: RemediationRecord, **_: Any) -> RemediationRecord:
        raise TransientError("TRAFFIC_UNREACHABLE", "given back to the queue")

    monkeypatch.setattr(Remediator, "_confirm_weights", fails)
    stage.director.lost_replies = 1
    notification = stage.fires("a")
    with pytest.raises(TransientError):
        stage.remediator().handle_notification(notification)
    stage.remediator().handle_notification(notification)
    assert (len(stage.director.moves), stage.director.weights) == (2, {"a": 0.1, "b": 0.9})


def test_a_call_that_is_not_on_record_before_it_begins_is_made_twice(stage: RemediationStage) -> None:
    notification = stage.fires("a")
    stage.remediator().handle_notification(notification)
    done = stage.record(notification)
    # As it is on record where the attempt is not: planned, and nothing begun.
    stage.records.replace(done, done.replace(state="planned", attempted_at=None, called_at=None))
    stage.remediator().resume_pending()
    assert len(stage.director.moves) == 2


def test_weight_goes_to_a_target_that_is_slow_itself(stage: RemediationStage, monkeypatch: pytest.MonkeyPatch) -> None:
    read_rule_state = remediating.read_rule_state
    monkeypatch.setattr(
        remediating, "read_rule_state", lambda *arguments: dataclasses.replace(read_rule_state(*arguments), unhealthy={})
    )
    stage.fires("b")
    stage.remediator().handle_notification(stage.fires("a"))
    assert stage.director.weights == {"a": 0.3, "b": 0.7}


def test_a_shift_that_makes_it_worse_stays(stage: RemediationStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Remediator, "_verify_shift", lambda self, record: record)
    stage.remediator().handle_notification(stage.fires("a"))
    stage.passes(10)
    stage.fires("b")
    stage.remediator().resume_pending()
    assert stage.director.weights == {"a": 0.3, "b": 0.7}


@pytest.mark.usefixtures("without_records")
def test_weight_swings_back_and_forth(stage: RemediationStage) -> None:
    for cdn in ("a", "b", "a"):
        stage.remediator().handle_notification(stage.fires(cdn))
        stage.ends(cdn)
        stage.passes(20)
    assert [(move["from"], move["to"]) for move in stage.director.moves] == [("a", "b"), ("b", "a"), ("a", "b")]


def test_a_message_alone_moves_traffic(stage: RemediationStage, monkeypatch: pytest.MonkeyPatch) -> None:
    notification = stage.fires("a")
    alert = remediating.read_rule_state(stage.objects, stage.spec, notification.subject)
    stage.ends("a")
    # The alert as the message has it, and not as it is now.
    monkeypatch.setattr(remediating, "read_rule_state", lambda *_: dataclasses.replace(alert, unhealthy={}))
    stage.remediator().handle_notification(notification)
    assert len(stage.director.moves) == 1
