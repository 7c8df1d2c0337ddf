"""Storage failures: a full disk, a lost reply, two files of a table in one batch, a table that rejects every commit."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from sandbox.servers import fault_proxy
from sandbox.servers.fault_proxy import Action, running_fault_proxy
from tests.faults.harness.driver import Driver
from tests.faults.harness.fault_project import PIPELINE, FaultProject
from tests.faults.harness.injection import Fault
from tests.faults.harness.oracle import Verdict
from tests.faults.harness.timings import engine_seconds, recovery_seconds
from tests.processes import run_process

Tell = Callable[..., Verdict]
MakeStage = Callable[..., FaultProject]
COMMITS = r"/_delta_log/\d{20}\.json(\?|$)"
PREPARED = r"/prepared/g\d+/\d+\.json(\?|$)"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MB, if this machine allows the test to mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = run_process(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)])
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip() or os.getuid()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize(
    ("point", "off"),
    [("files_written", []), ("committed:.*", []), ("files_written", ["whole_objects"])],
    ids=["before the batch is fixed", "between commits", "without"],
)
def test_a_full_disk_is_loud_and_leaves_nothing_torn(
    make_stage: MakeStage, tell: Tell, small_disk: Path, point: str, off: list[str]
) -> None:
    stage = make_stage(tables=8, lake=small_disk / "lake")
    stage.land(files=2)
    full = Fault(point=point, nth=3 if point.startswith("committed") else 1, action="fill", path=str(small_disk))
    with Driver(stage, faults=[full], off=off) as broken:
        code = broken.wait()
    (small_disk / "filler").unlink()
    with Driver(stage) as successor:
        after = successor.wait()

    recovery = recovery_seconds(broken, successor) if after == 0 else None
    note = f"disk full at {point}; it ended with {code}, its successor with {after}"
    verdict = tell("8 disk full", stage, off=", ".join(off), recovery=recovery, note=note)
    assert code not in (0, -9)
    assert verdict.is_exact == (not off)
    assert bool(verdict.lost) == bool(off)


def run_behind_lost_replies(stage: FaultProject, *, off: list[str]) -> int:
    """Lands batches while the reply to every third commit put and every second prepared batch is dropped."""
    assert stage.server is not None
    stage.land(files=3)
    faults = [
        fault_proxy.Fault(action=Action.LOSE_REPLY, method="PUT", path=path, every=every)
        for path, every in ((COMMITS, 3), (PREPARED, 2))
    ]
    with running_fault_proxy(stage.server.endpoint, faults=faults, seed=stage.seed) as proxy:
        behind_it = stage.server.environment(endpoint=proxy.endpoint)
        with Driver(stage, off=off, environment=behind_it) as driver:
            driver.run_to_end()
    return sum(incident.is_lost_reply for incident in proxy.incidents)


def test_commits_whose_reply_is_lost_land_once(make_stage: MakeStage, tell: Tell) -> None:
    stage = make_stage(tables=12, storage="s3", spark_tables=("k01",))
    unseen = run_behind_lost_replies(stage, off=[])

    verdict = tell("10 lost replies", stage, note=f"{unseen} puts landed whose reply was lost")
    assert unseen > 10
    assert verdict.is_exact


def test_without_the_transaction_of_a_step_lost_replies_double(make_stage: MakeStage, tell: Tell) -> None:
    stage = make_stage(tables=6, storage="s3")
    unseen = run_behind_lost_replies(stage, off=["transactions"])

    note = f"{unseen} puts landed whose reply was lost"
    verdict = tell("10 lost replies", stage, off="transactions", note=note)
    assert verdict.doubled


@pytest.mark.parametrize("off", [[], ["one_commit_a_table"]], ids=["protected", "without"])
def test_two_files_of_one_batch_in_one_table_both_land(make_stage: MakeStage, tell: Tell, off: list[str]) -> None:
    stage = make_stage(tables=4)
    stage.declare(source={"max_files_per_batch": 4})
    stage.land(files=4)
    with Driver(stage, off=off) as driver:
        driver.run_to_end()

    verdict = tell("12 two files to one table in one batch", stage, off=", ".join(off), recovery=engine_seconds(driver))
    assert verdict.is_exact == (not off)
    assert bool(verdict.lost) == bool(off)


POISONED = "k03"
TABLES = 30


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
