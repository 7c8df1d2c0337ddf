"""A driver is killed between the history's commit and the merge into its keyed table, and around the merge. Its
successor merges the missing rows, and no key keeps an older row.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from deltaworks.control import paths
from deltaworks.testing import declare_table
from tests.faults.harness.driver import Driver
from tests.faults.harness.fault_project import PIPELINE, FaultProject
from tests.faults.harness.injection import Fault

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
        rows = self.stage.lake.rows(paths.table(PIPELINE, LATEST), columns=["symbol", "version"])
        assert rows is not None
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
