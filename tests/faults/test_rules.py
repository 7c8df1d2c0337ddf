"""The rule process is killed, runs twice, or is down for twenty minutes: episodes and notifications do not change. Each
fault also runs without its protection, and must then do harm.
"""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import read_heartbeat
from deltaworks.control.health.limits import HealthLimits
from deltaworks.control.health.report import check_subject, subjects
from deltaworks.specs.catalog import PROJECT_ROOT
from tests.unit.rules import rule_harness
from tests.unit.rules.rule_harness import RATE, RuleHarness, rules_project
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
    # A query that DuckDB does not end on interrupt.
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
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RuleHarness:
    """A rule evaluated up to the start of its series, twenty-four minutes ago."""
    now = dt.datetime.now(dt.UTC).replace(second=0, microsecond=0)
    monkeypatch.setattr(rule_harness, "START", now - dt.timedelta(minutes=24))
    rule = RATE.replace("fire: ", "evaluation_delay_seconds: 60, stale_seconds: 3600, fire: ")
    harness = RuleHarness(rules_project(tmp_path, rule))
    harness.append_rates([*LINE, WELL])
    harness.evaluate_at(2.5)
    return harness


def process(harness: RuleHarness, *, dies: str = "never", off: str = "") -> subprocess.Popen[bytes]:
    settings = {
        "DELTAWORKS_PROJECT": str(harness.catalog.root),
        "DELTAWORKS_ENVIRONMENT": "local",
        "HANGS": str(harness.catalog.root / "hangs"),
        "PYTHONPATH": os.pathsep.join([str(PROJECT_ROOT / "include"), str(PROJECT_ROOT)]),
    }
    command = [sys.executable, "-c", ENTRY, dies, off, "--rules", "rules", "--early-failure-wait-seconds", "0"]
    return subprocess.Popen(command, env={**os.environ, **settings}, stdout=subprocess.DEVNULL)


def episodes(harness: RuleHarness) -> list[tuple[float, float, float | None]]:
    """Minutes after the start of the series."""

    def after(text: str | None) -> float | None:
        if text is None:
            return None
        at = dt.datetime.strptime(text, "%Y-%m-%dT%H:%MZ").replace(tzinfo=dt.UTC)
        return (at - rule_harness.START).total_seconds() / 60

    return [(after(one.began), after(one.fired), after(one.ended)) for one in harness.state().episodes]  # type: ignore[misc]


def kinds(harness: RuleHarness) -> list[str]:
    return [kind for kind, _ in harness.sent()]


@pytest.mark.parametrize("dies", ["before_writing", "before_telling"])
def test_a_killed_process_changes_no_episode_or_notification(harness: RuleHarness, dies: str) -> None:
    assert process(harness, dies=dies).wait(120) == -signal.SIGKILL
    assert process(harness).wait(120) == 0

    assert episodes(harness) == [(5.0, 7.0, 15.0)]
    assert kinds(harness) == ["raised", "resolved"]


def test_without_a_stored_outbox_a_kill_loses_notifications(harness: RuleHarness) -> None:
    assert process(harness, dies="before_telling", off="outbox").wait(120) == -signal.SIGKILL
    assert process(harness).wait(120) == 0

    assert episodes(harness) == [(5.0, 7.0, 15.0)]
    assert kinds(harness) == []


def test_two_processes_notify_once(harness: RuleHarness) -> None:
    running = [process(harness), process(harness)]

    # The second process waits for the first one's lease, or gets it.
    assert {one.wait(120) for one in running} <= {0, 20}
    assert episodes(harness) == [(5.0, 7.0, 15.0)]
    assert kinds(harness) == ["raised", "resolved"]


def test_two_processes_without_a_lease_notify_once(harness: RuleHarness) -> None:
    """Conditional writes keep the series correct; the lease only saves work."""
    running = [process(harness, off="lease"), process(harness, off="lease")]

    assert {one.wait(120) for one in running} == {0}
    assert episodes(harness) == [(5.0, 7.0, 15.0)]
    assert kinds(harness) == ["raised", "resolved"]


ENDLESS = """\
SELECT minute, cdn, rate AS value, requests AS samples
FROM errors_minute
WHERE minute >= $from AND minute < $to AND (SELECT count(*) FROM range(1000000), range(1000000), range(1000000)) > 0
"""


class HungRules:
    """A process whose query hangs."""

    def __init__(self, harness: RuleHarness, *, off: str = "") -> None:
        self.harness = harness
        folder = harness.catalog.folder("shop")
        (folder / "rules" / "rate.sql").write_text(ENDLESS)
        self.running = process(harness, dies="hangs", off=off)
        marker = harness.catalog.root / "hangs"
        eventually(marker.exists, "it evaluates")

    def __enter__(self) -> HungRules:
        return self

    def __exit__(self, *_: object) -> None:
        self.running.kill()
        self.running.wait()

    @property
    def written_at(self) -> str:
        """Time of its last heartbeat."""
        beat = read_heartbeat(self.harness.objects, paths.heartbeat(paths.rules_control()))
        return beat.written_at if beat is not None else ""

    @property
    def is_noticed(self) -> bool:
        """Whether health reports a hang once the last heartbeat is more than ten seconds old."""
        (subject,) = [item for item in subjects(self.harness.catalog) if item.kind == "rules"]
        later = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=HealthLimits().stale_seconds_min - 10)
        return check_subject(subject, self.harness.objects, now=later).verdict.cause == "HEARTBEAT_STALE"


def test_health_detects_a_hanging_query(harness: RuleHarness) -> None:
    with HungRules(harness) as hung:
        eventually(lambda: hung.is_noticed, "health sees that it hangs")
        assert hung.running.poll() is None, "it has ended, and did not hang"


def test_without_progress_checks_a_hang_is_not_detected(harness: RuleHarness) -> None:
    with HungRules(harness, off="stall") as hung:
        beats = {hung.written_at}
        noticed = []

        def beats_on() -> bool:
            beats.add(hung.written_at)
            noticed.append(hung.is_noticed)
            return len(beats) > 4

        eventually(beats_on, "it beats on")
        assert not any(noticed)
