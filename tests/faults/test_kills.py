"""Processes are killed in the middle of batches: the driver at every kind of point, only its JVM, only its Python, or a
worker. The successor commits the written files once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.testing import declare_table, present
from tests.faults.harness.driver import Driver
from tests.faults.harness.fault_project import PIPELINE, FaultProject
from tests.faults.harness.injection import Fault
from tests.faults.harness.oracle import Verdict, added_again, rows_in_folder
from tests.faults.harness.timings import engine_seconds, recovery_seconds
from tests.spark.engine.group_harness import MEMBERS, GroupHarness

TABLES = 30
#: Numbers of committed tables, between first and last, after which a driver is killed.
SAMPLES = {"local": 4, "s3": 1}
Tell = Callable[..., Verdict]
MakeStage = Callable[..., FaultProject]


def kill_points(seed: int, tables: int, samples: int) -> list[Fault]:
    """Returns kills after table k of n for a sample of k, and at every other kind of point of a batch."""
    after = sorted(random.Random(seed).sample(range(2, tables), samples))
    own = [
        *(Fault(point=point, after="begun") for point in ("files_written", "prepared")),
        *(Fault(point="committed:.*", nth=k, after="begun") for k in [1, *after, tables]),
        *(Fault(point=point, after="begun") for point in ("committed", "half_ledger", "completed")),
    ]
    return [Fault(point="begun"), *own, Fault(point="begun", nth=2)]


def kill_again_and_again(stage: FaultProject, points: list[Fault]) -> list[float]:
    """Starts a driver per point: each completes its predecessor's batch and is killed in its own."""
    recoveries: list[float] = []
    broken: Driver | None = None
    stage.land(files=2)
    for point in [*points, None]:
        stage.land()
        with Driver(stage, faults=[point] if point else []) as driver:
            code = driver.wait()
            assert (code == 0) == (point is None), driver.tail()
            if broken is not None and driver.first_reached_at("completed"):
                recoveries.append(recovery_seconds(broken, driver))
            broken = driver
    return recoveries


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("storage", ["local", "s3"])
def test_a_driver_killed_at_any_point_of_a_batch_loses_and_doubles_nothing(
    make_stage: MakeStage, tell: Tell, seed: int, storage: str, half: int
) -> None:
    stage = make_stage(tables=TABLES, storage=storage)
    points = kill_points(seed, TABLES, SAMPLES[storage])[half::2]

    recoveries = kill_again_and_again(stage, points)

    note = "kill -9 at " + ", ".join(f"{fault.point}#{fault.nth}" for fault in points)
    verdict = tell("1 driver killed", stage, recovery=max(recoveries), note=note)
    assert verdict.is_exact
    assert max(recoveries) < 90


@pytest.mark.parametrize("storage", ["local", "s3"])
def test_without_the_transaction_of_a_step_a_killed_driver_doubles(
    make_stage: MakeStage, tell: Tell, storage: str
) -> None:
    stage = make_stage(tables=TABLES, storage=storage)
    stage.land()
    with Driver(stage, faults=[Fault(point="committed:.*", nth=17)]) as broken:
        broken.wait()
    with Driver(stage, off=["transactions"]) as successor:
        successor.run_to_end()

    verdict = tell("1 driver killed", stage, off="transactions", recovery=recovery_seconds(broken, successor))
    assert verdict.doubled
    assert not verdict.lost


def in_the_middle(action: str) -> list[Fault]:
    """Runs the action at the fourteenth of thirty commits and delays ten further commits.

    Eight commits run concurrently and all are delayed, so that surviving threads have time and work to continue.
    """
    waiting = [Fault(point="committed:.*", nth=k, action="sleep", seconds=12) for k in range(15, 22)]
    return [Fault(point="committed:.*", nth=14, action=action, seconds=12), *waiting]


def written_later(driver: Driver) -> int:
    return sum(point.startswith("committed:") and at > driver.first_fault_at() + 5 for at, _, point in driver.points())


@pytest.mark.parametrize("part", ["jvm", "python"])
def test_half_a_driver_killed_in_the_middle_of_thirty_commits_leaves_nothing_that_writes(
    make_stage: MakeStage, tell: Tell, part: str
) -> None:
    stage = make_stage(tables=TABLES)
    stage.land(files=2)
    with Driver(stage, faults=in_the_middle(f"kill_{part}")) as broken:
        broken.wait()
        gone = broken.await_group_exit() - broken.first_fault_at()
        with Driver(stage) as successor:
            successor.run_to_end()

    recovery = recovery_seconds(broken, successor)
    verdict = tell(f"1 {part} killed alone", stage, recovery=recovery, note=f"nothing left after {gone:.1f} s")
    assert verdict.is_exact
    assert written_later(broken) == 0
    assert gone < 10


def test_without_the_guard_a_driver_without_jvm_goes_on_writing(make_stage: MakeStage, tell: Tell) -> None:
    stage = make_stage(tables=TABLES)
    stage.land(files=2)
    with Driver(stage, faults=in_the_middle("kill_jvm"), off=["guard"]) as broken:
        broken.await_point("injected kill_jvm")
        broken.await_group_exit(60)
    with Driver(stage) as successor:
        successor.run_to_end()

    late = written_later(broken)
    tell("1 jvm killed alone", stage, off="guard", note=f"{late} commits by what was left, seconds later")
    assert late > 0


def test_without_the_transaction_of_a_step_half_a_driver_killed_doubles(make_stage: MakeStage, tell: Tell) -> None:
    stage = make_stage(tables=TABLES)
    stage.land()
    with Driver(stage, faults=[Fault(point="committed:.*", nth=14, action="kill_python")]) as broken:
        broken.wait()
    with Driver(stage, off=["transactions"]) as successor:
        successor.run_to_end()

    verdict = tell("1 python killed alone", stage, off="transactions", recovery=recovery_seconds(broken, successor))
    assert verdict.doubled


def test_a_worker_killed_after_it_has_written_leaves_files_that_count_for_nobody(
    make_stage: MakeStage, tell: Tell, print_result: Callable[..., None]
) -> None:
    stage = make_stage(tables=4)
    stage.declare(source={"max_files_per_batch": 4})
    stage.land(files=4)
    with Driver(stage, environment={"DELTAWORKS_TEST_KILL_WORKER": "1"}) as driver:
        driver.run_to_end()
        killed = (driver.timeline.with_suffix(".worker_killed")).exists()

    verdict = tell("4 worker killed", stage, recovery=engine_seconds(driver), note="the same driver reads it again")
    folder = rows_in_folder(stage.lake, PIPELINE, "events")
    doubled = sum(count - 1 for count in folder.values())
    print_result(
        "4 worker killed", "WITHOUT the log: all files are read", f"ids {stage.ids}", "lost 0", f"doubled {doubled}"
    )
    assert killed
    assert verdict.is_exact
    assert doubled > 0


Line = Callable[..., None]


def killed_and_resumed(stage: GroupHarness, point: str, *, nth: int, off: list[str]) -> tuple[int, int]:
    """Kills a driver at a point of one member and lets another finish; returns events lost and doubled."""
    for name in MEMBERS:
        stage.declare(name)
        stage.land(name, files=2)
    with Driver(stage, faults=[Fault(point=point, nth=nth)]) as broken:
        broken.wait()
        broken.first_fault_at()
    for name in MEMBERS:
        stage.land(name)
    with Driver(stage, off=off) as successor:
        successor.run_to_end()
    # A file added by two commits is one file in the table, but change readers receive its rows twice.
    landed, owed = stage.landed() + added_twice(stage), stage.expected()
    return sum((owed - landed).values()), sum((landed - owed).values())


def added_twice(stage: GroupHarness) -> Counter[tuple[str, int]]:
    """Returns the events in files that a later commit added again."""
    again = ((name, added_again(stage.lake, paths.table(name, "events"), "n")[0]) for name in MEMBERS)
    return Counter((name, number) for name, numbers in again for number in numbers)


@pytest.mark.parametrize(("point", "nth"), [("prepared", 2), ("committed:events", 2), ("half_ledger", 1)])
def test_a_groups_driver_killed_in_a_batch_of_one_loses_and_doubles_nothing_of_any(
    tmp_path: Path, print_result: Line, point: str, nth: int
) -> None:
    stage = GroupHarness(tmp_path)

    lost, doubled = killed_and_resumed(stage, point, nth=nth, off=[])

    print_result("group killed", "protected", f"at {point}#{nth}", f"ids {Counter(stage.owed).total()}", f"lost {lost}")
    assert (lost, doubled) == (0, 0)


def test_without_the_transaction_of_a_step_a_killed_group_doubles(tmp_path: Path, print_result: Line) -> None:
    stage = GroupHarness(tmp_path)

    lost, doubled = killed_and_resumed(stage, "committed:events", nth=2, off=["transactions"])

    print_result("group killed", "WITHOUT transactions", f"lost {lost}", f"doubled {doubled}")
    assert doubled > 0
    assert lost == 0


LATEST = "latest_ticks"
TABLE: dict[str, Any] = declare_table(
    "ticks", "symbol string", "version long", keyed={"by": "symbol", "newest_by": "version"}
)
#: The first point is between the two commits.
POINTS = ("committed:ticks", f"merging:{LATEST}", f"merged:{LATEST}")


class Ticks:
    """Events of some symbols with versions in random order, and the greatest version of each symbol."""

    def __init__(self, stage: FaultProject) -> None:
        self.stage = stage
        self.newest: dict[str, int] = {}
        self._random = random.Random(stage.seed)
        self._versions = list(range(10_000))
        self._random.shuffle(self._versions)

    def land(self, count: int) -> None:
        """Lands one object and announces it twice."""
        events = []
        for _ in range(count):
            symbol, version = f"s{self._random.randrange(40)}", self._versions.pop()
            self.newest[symbol] = max(version, self.newest.get(symbol, -1))
            events.append(self.stage.event("tick", symbol=symbol, version=version))
        self.stage.announce(events, copies=2)

    def merged(self) -> dict[str, int]:
        rows = present(self.stage.lake.rows(paths.table(PIPELINE, LATEST), columns=["symbol", "version"]))
        merged = {row["symbol"]: row["version"] for row in rows.to_pylist()}
        assert len(merged) == rows.num_rows
        return merged


def test_a_driver_killed_before_a_merge_leaves_it_to_its_successor(
    make_stage: Callable[..., FaultProject], print_result: Callable[..., None]
) -> None:
    stage = make_stage(tables=1)
    stage.declare(tables=[TABLE])
    ticks = Ticks(stage)
    behind = []
    ticks.land(60)
    with Driver(stage) as first:
        first.run_to_end()
    assert ticks.merged() == ticks.newest

    for point in POINTS:
        ticks.land(60)
        with Driver(stage, faults=[Fault(point=point, after="begun")]) as driver:
            assert driver.wait() != 0, driver.tail()
            driver.first_fault_at()
        merged = ticks.merged()
        behind.append(sum(merged.get(symbol) != version for symbol, version in ticks.newest.items()))
    with Driver(stage) as last:
        last.run_to_end()

    print_result(
        f"driver killed at {', '.join(POINTS)}", "protected", f"keys {len(ticks.newest)}", f"behind then {behind}"
    )
    assert ticks.merged() == ticks.newest
    # Otherwise the successor had nothing to do.
    assert behind[0] > 0
    assert behind[1] > 0
