"""The rule process runs until it is stopped, and health detects one that hangs."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StopFlag, read_heartbeat
from deltaworks.control.health.report import check_subject, subjects
from deltaworks.rules import process
from deltaworks.rules.process import PipelineEvaluator, RuleProcess
from tests.unit.rules.rule_harness import RATE, RuleHarness, rules_project
from tests.waiting import eventually

Evaluate = Callable[..., int]


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RuleHarness:
    catalog = rules_project(tmp_path, RATE, RATE.replace("name: rate", "name: second"))
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(catalog.root))
    monkeypatch.setattr(process, "EVALUATION_INTERVAL_SECONDS", 0.1)
    harness = RuleHarness(catalog)
    harness.append_rates([0.01] * 5)
    return harness


@contextmanager
def running(harness: RuleHarness, *, on_tick: Callable[[], None] = lambda: None) -> Iterator[RuleProcess]:
    """The process in a thread of this one, stopped by its flag."""
    rules = RuleProcess(harness.catalog, on_tick=on_tick)
    thread = threading.Thread(target=rules.run)
    thread.start()
    try:
        yield rules
    finally:
        StopFlag(harness.objects, paths.stop_request(paths.rules_control())).set(by="me", reason="over")
        thread.join(60)
        assert not thread.is_alive()


def verdict(harness: RuleHarness, *, after_seconds: float = 0) -> tuple[str, str]:
    """The health verdict so many seconds after the last heartbeat."""
    beat = read_heartbeat(harness.objects, paths.heartbeat(paths.rules_control()))
    assert beat is not None
    now = dt.datetime.fromisoformat(beat.written_at) + dt.timedelta(seconds=after_seconds)
    (subject,) = [item for item in subjects(harness.catalog) if item.kind == "rules"]
    found = check_subject(subject, harness.objects, now=now).verdict
    return found.state, found.cause


def test_health_detects_a_round_that_hangs(harness: RuleHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STALL_SECONDS", 1.0)
    rounds, hangs, resumes = list[int](), threading.Event(), threading.Event()
    real: Evaluate = PipelineEvaluator.evaluate

    def evaluate(self: PipelineEvaluator, *arguments: object, **more: object) -> int:
        rounds.append(1)
        if len(rounds) == 3:
            hangs.set()
            resumes.wait(120)
        return real(self, *arguments, **more)

    monkeypatch.setattr(PipelineEvaluator, "evaluate", evaluate)
    turns = list[int]()
    with running(harness, on_tick=lambda: turns.append(1)) as rules:
        leased_process = rules._leased_process
        assert hangs.wait(60)
        eventually(lambda: leased_process.is_stalled, "its bound is over")
        heartbeat = read_heartbeat(harness.objects, paths.heartbeat(paths.rules_control()))
        for _ in range(2):
            leased_process.heartbeat.update(rows=7)
            eventually(lambda: not leased_process.heartbeat._wake.is_set(), "the thread of the heartbeat has looked")
        assert read_heartbeat(harness.objects, paths.heartbeat(paths.rules_control())) == heartbeat
        assert verdict(harness, after_seconds=130) == ("unhealthy", "HEARTBEAT_STALE")
        resumes.set()
        eventually(lambda: not leased_process.is_stalled and len(rounds) > 3, "it rounds on")
        eventually(
            lambda: read_heartbeat(harness.objects, paths.heartbeat("control/rules")) != heartbeat, "it beats again"
        )


def test_a_long_round_over_many_rules_records_progress(harness: RuleHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STALL_SECONDS", 600.0)
    asked = list[float]()
    with running(harness) as rules:
        leased_process = rules._leased_process
        turn = leased_process.record_progress
        monkeypatch.setattr(leased_process, "record_progress", lambda: (asked.append(1), turn())[1])
        eventually(lambda: rules._counts.rounds > 2, "it rounds")
    assert len(asked) > 2 * rules._counts.rounds, "it turns for every rule"
