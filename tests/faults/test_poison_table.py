"""One table rejects every commit: the other 29 continue, and it catches up exactly once after the repair."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from tests.faults.harness.driver import Driver
from tests.faults.harness.fault_project import PIPELINE, FaultProject
from tests.faults.harness.injection import Fault
from tests.faults.harness.oracle import Verdict
from tests.faults.harness.timings import engine_seconds, recovery_seconds

POISONED = "k03"
TABLES = 30
Tell = Callable[..., Verdict]
MakeStage = Callable[..., FaultProject]


def poison(stage: FaultProject) -> Path:
    """Commits a writer feature to the table that neither delta-rs nor Spark supports, so that both refuse to write."""
    log = Path(stage.storage.prefix) / paths.table(PIPELINE, POISONED) / "_delta_log"
    newest = max(int(path.stem) for path in log.glob("*.json"))
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [], "writerFeatures": ["fromTomorrow"]}
    commit = log / f"{newest + 1:020d}.json"
    info = {"timestamp": 1_700_000_000_000, "operation": "SET TBLPROPERTIES", "userMetadata": "{}"}
    commit.write_text(f"{json.dumps({'commitInfo': info})}\n{json.dumps({'protocol': protocol})}\n")
    return commit


def lost_by_table(verdict: Verdict) -> Counter[str]:
    lost: Counter[str] = Counter()
    for (table, _), count in verdict.lost.items():
        lost[table] += count
    return lost


@pytest.mark.parametrize("off", [[], ["suspension"]], ids=["protected", "without"])
def test_a_table_that_always_fails_holds_none_of_the_others(make_stage: MakeStage, tell: Tell, off: list[str]) -> None:
    stage = make_stage(tables=TABLES)
    stage.land()
    with Driver(stage) as driver:
        driver.run_to_end()
    poison(stage)
    stage.land(files=3)
    with Driver(stage, off=off) as poisoned:
        code = poisoned.wait(300)

    lost = lost_by_table(tell("13 one table always fails", stage, off=", ".join(off), note=f"it ended with {code}"))
    assert (code == 0) == (not off)
    assert (set(lost) == {POISONED}) == (not off)


def test_a_suspended_table_catches_up_exactly_once_though_the_driver_is_killed_in_it(
    make_stage: MakeStage, tell: Tell
) -> None:
    stage = make_stage(tables=TABLES)
    stage.land()
    with Driver(stage) as driver:
        driver.run_to_end()
    cause = poison(stage)
    stage.land(files=3)
    with Driver(stage) as poisoned:
        poisoned.run_to_end(300)
    held = PipelineHome(stage.objects, PIPELINE).held.read()
    missing = lost_by_table(tell("13 one table always fails, held", stage))
    cause.unlink()
    PipelineHome(stage.objects, PIPELINE).held.request_resume(POISONED, by="tests")
    stage.land()
    with Driver(stage, faults=[Fault(point=f"caught_up:{POISONED}", nth=2)]) as broken:
        broken.wait()
    with Driver(stage) as successor:
        successor.run_to_end()

    note = f"held {dict(missing)} rows, then killed while it caught up"
    verdict = tell("13 one table catches up", stage, recovery=recovery_seconds(broken, successor), note=note)
    assert set(held) == set(missing) == {POISONED}
    assert engine_seconds(successor) is not None
    assert verdict.is_exact
    assert not PipelineHome(stage.objects, PIPELINE).held.read()
