"""Storage failures: a full disk, lost replies, two files of a table in one batch, a table that rejects every commit.

Two protections against lost replies of Spark suffice individually: the log store reads back which writer's commit was
put, and the table holds the step's transaction. A lost reply does harm only with both disabled. Small merges of live
tables do not use Spark; they are tested without both in tests/unit/engine/test_live_merge.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StopFlag
from deltaworks.control.home import PipelineHome
from sandbox.servers import fault_proxy
from sandbox.servers.fault_proxy import Action, FaultProxy, running_fault_proxy
from tests.faults.harness.driver import Driver
from tests.faults.harness.fault_project import PIPELINE, FaultProject
from tests.faults.harness.injection import Fault
from tests.faults.harness.live_counts import DECLARED, LIVE, judge_live, owed_counts, seen_counts
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


ROUND_SECONDS = 150.0
BOTH = ["put_read_back", "spark_transactions"]
OFF = pytest.mark.parametrize("off", [[], ["put_read_back"], BOTH], ids=["protected", "one of two", "without"])


def losing(table: str, *, every: int) -> fault_proxy.Fault:
    """Performs every n-th put of a commit to matching tables, but drops the reply.

    Not every second one: the client retries after each, so without a protection no commit would ever succeed.
    """
    path = rf"/{table}/_delta_log/\d{{20}}\.json(\?|$)"
    return fault_proxy.Fault(action=Action.LOSE_REPLY, method="PUT", path=path, every=every)


def unseen_puts(proxy: FaultProxy) -> int:
    return sum(incident.is_lost_reply for incident in proxy.incidents)


@OFF
def test_appends_by_spark_whose_reply_is_lost_land_once(make_stage: MakeStage, tell: Tell, off: list[str]) -> None:
    stage = make_stage(tables=4, storage="s3", spark_tables=("k01", "k02"))
    assert stage.server is not None
    stage.land(files=4)
    with running_fault_proxy(stage.server.endpoint, faults=[losing("k0[12]", every=3)], seed=stage.seed) as proxy:
        with Driver(stage, off=off, environment=stage.server.environment(endpoint=proxy.endpoint)) as driver:
            driver.run_to_end()
        unseen = unseen_puts(proxy)

    note = f"{unseen} appends by Spark landed whose reply was lost"
    verdict = tell("10 lost replies, appends by Spark", stage, off=", ".join(off), note=note)
    assert unseen >= 3
    assert not verdict.lost
    assert bool(verdict.doubled) == (off == BOTH)


def land_and_count(stage: FaultProject, *, off: Sequence[str], endpoint: dict[str, str], rounds: int) -> Counter[int]:
    """Runs drivers in sequence until each round's events are counted live; returns their exit codes."""
    codes: Counter[int] = Counter()
    driver: Driver | None = None
    try:
        for _ in range(rounds):
            stage.land()
            end = time.monotonic() + ROUND_SECONDS
            while seen_counts(stage) != owed_counts(stage):
                if driver is None or driver.process.poll() is not None:
                    codes.update([] if driver is None else [driver.wait()])
                    driver = Driver(stage, off=off, available_now=False, environment=endpoint)
                assert time.monotonic() < end, driver.tail()
                time.sleep(0.3)
        StopFlag(stage.objects, paths.pipeline_control(PIPELINE, "stop.json")).set(by="tests", reason="all is counted")
        assert driver is not None
        codes.update([driver.wait()])
    finally:
        if driver is not None:
            driver.__exit__()
    return codes


@pytest.mark.parametrize(
    ("off", "doubles"),
    [
        (["small_merges"], False),
        (["small_merges", "put_read_back"], False),
        (["small_merges", *BOTH], True),
        ([], False),
        (["replacement_steps"], False),
    ],
    ids=["spark", "spark, one of two", "spark, without", "ours", "ours, one of two"],
)
def test_merges_of_a_live_table_whose_reply_is_lost_count_once(
    make_stage: MakeStage, print_result: Callable[..., None], off: list[str], doubles: bool
) -> None:
    stage = make_stage(tables=4, storage="s3")
    stage.declare(live=DECLARED)
    assert stage.server is not None
    with running_fault_proxy(stage.server.endpoint, faults=[losing(LIVE, every=3)], seed=stage.seed) as proxy:
        endpoint = stage.server.environment(endpoint=proxy.endpoint)
        codes = land_and_count(stage, off=off, endpoint=endpoint, rounds=6)
        unseen = unseen_puts(proxy)

    verdict = judge_live(stage)
    print_result(
        "10 lost replies, merges of a live table",
        f"WITHOUT {', '.join(off)}" if off else "protected",
        f"seed {stage.seed}",
        "s3proxy",
        f"ids {stage.ids}",
        f"lost {verdict.lost}",
        f"doubled {verdict.doubled}",
        "recovery -",
        f"{verdict.merges} merges, {unseen} landed whose reply was lost; drivers ended with {dict(codes)}",
    )
    assert unseen >= 2
    assert verdict.lost == 0
    assert bool(verdict.doubled) == doubles
