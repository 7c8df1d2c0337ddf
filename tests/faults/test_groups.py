"""The driver of a stream group is killed in the middle of a batch; its successor resumes each pipeline exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from deltaworks.control import paths
from tests.faults.harness.driver import Driver
from tests.faults.harness.injection import Fault
from tests.faults.harness.oracle import added_again
from tests.spark.engine.group.group_harness import MEMBERS, GroupHarness

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
