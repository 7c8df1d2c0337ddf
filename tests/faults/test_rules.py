"""The process that judges rules is killed, runs twice, and is away for twenty minutes: the same episodes and notifications as
of one that never died. Each fault also runs with its protection off, and must then do harm."""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deltaworks.control import paths, rule_paths
from deltaworks.control.health.heartbeat import read_heartbeat
from deltaworks.control.health.limits import HealthLimits
from deltaworks.control.health.report import check_subject, subjects
from deltaworks.specs.catalog import PROJECT_ROOT
from tests.unit.rules import rule_harness
from tests.unit.rules.rule_harness import RATE, RuleStage, rules_project
from tests.waiting import eventually

pytestmark = pytest.mark.faults

BAD, WELL = 0.2, 0.01
LINE = [WELL] * 5 + [BAD] * 6 + [WELL] * 9
#: Kills the process before it writes a state or before it delivers its outbox; without protection the outbox is kept in
#: memory only.
ENTRY = """
import os, signal, sys
from deltaworks.rules import __main__, process, rule_evaluator
process.MAX_RUN_SECONDS, process.EVALUATION_INTERVAL_SECONDS, process.LEASE_SECONDS = 2, 1, 3
at, off = sys.argv[1:3]
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if off == "outbox":
    write = rule_evaluator.RuleEvaluator._write
    def forgetful(self, state):
        write(self, state.replace(outbox=()))
        if state.outbox:
            rule_evaluator.deliver(self._objects, state.outbox)
    rule_evaluator.RuleEvaluator._write = forgetful
if off == "lease":
    from deltaworks.control import paths
    shared = paths.lease
    paths.lease = lambda folder: shared(f"{folder}-{os.getpid()}")
if at == "hangs":
    # A query that DuckDB does not end when it is told to.
    from contextlib import nullcontext
    from pathlib import Path
    from deltaworks.rules import rule_query
    process.MAX_RUN_SECONDS, process.STALL_SECONDS = 600, 2 if off != "stall" else float("inf")
    evaluate = process.PipelineEvaluator.evaluate
    def marked(*positional, **named):
        Path(os.environ["HANGS"]).touch()
        return evaluate(*positional, **named)
    process.PipelineEvaluator.evaluate = marked
    rule_query.query_timeout = lambda *_: nullcontext()
if at == "before_telling":
    rule_evaluator.deliver = die
if at == "before_writing":
    rule_evaluator.RuleEvaluator._write = die
sys.exit(__main__.main(sys.argv[3:]))
"""


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RuleStage:
    """A rule evaluated up to the start of its series, twenty-four minutes ago."""
    now = dt.datetime.now(dt.UTC).replace(second=0, microsecond=0)
    monkeypatch.setattr(rule_harness, "START", now - dt.timedelta(minutes=24))
    rule = RATE.replace("fire: ", "evaluation_delay_seconds: 60, stale_seconds: 3600, fire: ")
    stage = RuleStage(rules_project(tmp_path, rule))
    stage.rates([*LINE, WELL])
    stage.look(2.5)
    return stage


def process(stage: RuleStage, *, dies: str = "never", off: str = "") -> subprocess.Popen[bytes]:
    settings = {
        "DELTAWORKS_PROJECT": str(stage.catalog.root),
        "DELTAWORKS_ENVIRONMENT": "local",
        "HANGS": str(stage.catalog.root / "hangs"),
        "PYTHONPATH": os.pathsep.join([str(PROJECT_ROOT / "include"), str(PROJECT_ROOT)]),
    }
    command = [sys.executable, "-c", ENTRY, dies, off, "--rules", "rules", "--early-failure-wait-seconds", "0"]
    return subprocess.Popen(command, env={**os.environ, **settings}, stdout=subprocess.DEVNULL)


def episodes(stage: RuleStage) -> list[tuple[float, float, float | None]]:
    """Minutes after the line began."""

    def after(text: str | None) -> float | None:
        if text is None:
            return None
        at = dt.datetime.strptime(text, "%Y-%m-%dT%H:%MZ").replace(tzinfo=dt.UTC)
        return (at - rule_harness.START).total_seconds() / 60

    return [(after(one.began), after(one.fired), after(one.ended)) for one in stage.state().episodes]  # type: ignore[misc]


def kinds(stage: RuleStage) -> list[str]:
    return [kind for kind, _ in stage.told()]


@pytest.mark.parametrize("dies", ["before_writing", "before_telling"])
def test_one_that_is_killed_is_followed_by_one_that_judges_and_tells_the_same(stage: RuleStage, dies: str) -> None:
    assert process(stage, dies=dies).wait(120) == -signal.SIGKILL
    assert process(stage).wait(120) == 0

    assert episodes(stage) == [(5.0, 7.0, 15.0)]
    assert kinds(stage) == ["raised", "resolved"]


def test_with_what_is_to_be_told_in_memory_alone_the_killed_one_tells_nobody(stage: RuleStage) -> None:
    assert process(stage, dies="before_telling", off="outbox").wait(120) == -signal.SIGKILL
    assert process(stage).wait(120) == 0

    assert episodes(stage) == [(5.0, 7.0, 15.0)]
    assert kinds(stage) == []


def test_two_at_once_judge_and_tell_once(stage: RuleStage) -> None:
    running = [process(stage), process(stage)]

    # The second one waits for the first one's lease, and ends by itself or has it.
    assert {one.wait(120) for one in running} <= {0, 20}
    assert episodes(stage) == [(5.0, 7.0, 15.0)]
    assert kinds(stage) == ["raised", "resolved"]


def test_two_at_once_without_a_lease_judge_twice_and_tell_once(stage: RuleStage) -> None:
    """What is written over what was read, and only over that, keeps the figures; the lease spares the work."""
    running = [process(stage, off="lease"), process(stage, off="lease")]

    assert {one.wait(120) for one in running} == {0}
    assert episodes(stage) == [(5.0, 7.0, 15.0)]
    assert kinds(stage) == ["raised", "resolved"]


ENDLESS = """\
SELECT minute, cdn, rate AS value, requests AS samples
FROM errors_minute
WHERE minute >= $from AND minute < $to AND (SELECT count(*) FROM range(1000000), range(1000000), range(1000000)) > 0
"""


class HungRules:
    """A process whose query never ends, seen from outside."""

    def __init__(self, stage: RuleStage, *, off: str = "") -> None:
        self.stage = stage
        folder = stage.catalog.folder("shop")
        (folder / "rules" / "rate.sql").write_text(ENDLESS)
        self.running = process(stage, dies="hangs", off=off)
        marker = stage.catalog.root / "hangs"
        eventually(marker.exists, "it looks")

    def __enter__(self) -> HungRules:
        return self

    def __exit__(self, *_: object) -> None:
        self.running.kill()
        self.running.wait()

    @property
    def written_at(self) -> str:
        """When it last said that it lives."""
        beat = read_heartbeat(self.stage.objects, paths.heartbeat(rule_paths.rules_control()))
        return beat.written_at if beat is not None else ""

    @property
    def is_noticed(self) -> bool:
        """Whether health takes it for hung once its last beat is more than ten seconds old."""
        (subject,) = [item for item in subjects(self.stage.catalog) if item.kind == "rules"]
        later = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=HealthLimits().stale_seconds_min - 10)
        return check_subject(subject, self.stage.objects, now=later).verdict.cause == "HEARTBEAT_STALE"


def test_a_query_that_never_ends_is_noticed(stage: RuleStage) -> None:
    with HungRules(stage) as hung:
        eventually(lambda: hung.is_noticed, "health sees that it hangs")
        assert hung.running.poll() is None, "it has ended, and did not hang"


def test_with_a_heartbeat_of_a_thread_alone_nobody_notices(stage: RuleStage) -> None:
    with HungRules(stage, off="stall") as hung:
        beats = {hung.written_at}
        noticed = []

        def beats_on() -> bool:
            beats.add(hung.written_at)
            noticed.append(hung.is_noticed)
            return len(beats) > 4

        eventually(beats_on, "it beats on")
        assert not any(noticed)
