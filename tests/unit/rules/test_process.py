"""The process that judges rules: it judges until it is stopped, and one whose look hangs is seen to hang."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deltaworks.control import paths, rule_paths
from deltaworks.control.health.heartbeat import read_heartbeat
from deltaworks.control.health.report import check_subject, subjects
from deltaworks.control.health.stop import StopFlag
from deltaworks.rules import process
from deltaworks.rules.pipeline_evaluator import PipelineEvaluator
from deltaworks.rules.process import RuleProcess
from tests.unit.rules.rule_harness import RATE, RuleStage, rules_project
from tests.waiting import eventually

Look = Callable[..., int]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RuleStage:
    catalog = rules_project(tmp_path, RATE, RATE.replace("name: rate", "name: second"))
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(catalog.root))
    monkeypatch.setattr(process, "LOOK_SECONDS", 0.1)
    stage = RuleStage(catalog)
    stage.rates([0.01] * 5)
    return stage


@contextmanager
def running(stage: RuleStage, *, on_tick: Callable[[], None] = lambda: None) -> Iterator[RuleProcess]:
    """The process in a thread of this one, stopped by its flag."""
    judging = RuleProcess(stage.catalog, on_tick=on_tick)
    thread = threading.Thread(target=judging.run)
    thread.start()
    try:
        yield judging
    finally:
        StopFlag(stage.objects, paths.stop_request(rule_paths.rules_control())).set(by="me", reason="over")
        thread.join(60)
        assert not thread.is_alive()


def verdict(stage: RuleStage, *, after_seconds: float = 0) -> tuple[str, str]:
    """What health says of it so long after its last beat."""
    beat = read_heartbeat(stage.objects, paths.heartbeat(rule_paths.rules_control()))
    assert beat is not None
    now = dt.datetime.fromisoformat(beat.written_at) + dt.timedelta(seconds=after_seconds)
    (subject,) = [item for item in subjects(stage.catalog) if item.kind == "rules"]
    found = check_subject(subject, stage.objects, now=now).verdict
    return found.state, found.cause


def test_a_look_that_hangs_is_noticed_by_whoever_watches_the_process(
    stage: RuleStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "STALL_SECONDS", 1.0)
    looks, hangs, goes_on = list[int](), threading.Event(), threading.Event()
    real: Look = PipelineEvaluator.evaluate

    def look(self: PipelineEvaluator, *arguments: object, **more: object) -> int:
        looks.append(1)
        if len(looks) == 3:
            hangs.set()
            goes_on.wait(120)
        return real(self, *arguments, **more)

    monkeypatch.setattr(PipelineEvaluator, "look", look)
    turns = list[int]()
    with running(stage, on_tick=lambda: turns.append(1)) as judging:
        tenure = judging._leased_process
        assert hangs.wait(60)
        eventually(lambda: tenure.is_stalled, "its bound is over")
        told = read_heartbeat(stage.objects, paths.heartbeat(rule_paths.rules_control()))
        for _ in range(2):
            tenure.heartbeat.update(rows=7)
            eventually(lambda: not tenure.heartbeat._wake.is_set(), "the thread of the heartbeat has looked")
        assert read_heartbeat(stage.objects, paths.heartbeat(rule_paths.rules_control())) == told
        assert verdict(stage, after_seconds=130) == ("unhealthy", "HEARTBEAT_STALE")
        goes_on.set()
        eventually(lambda: not tenure.is_stalled and len(looks) > 3, "it looks on")
        eventually(lambda: read_heartbeat(stage.objects, paths.heartbeat("control/rules")) != told, "it beats again")


def test_a_look_over_many_rules_gets_on_though_it_takes_longer_than_its_bound(
    stage: RuleStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "STALL_SECONDS", 600.0)
    asked = list[float]()
    with running(stage) as judging:
        tenure = judging._leased_process
        turn = tenure.record_progress
        monkeypatch.setattr(tenure, "record_progress", lambda: (asked.append(1), turn())[1])
        eventually(lambda: judging._counts.rounds > 2, "it looks")
    assert len(asked) > 2 * judging._counts.rounds, "it turns for every rule"
