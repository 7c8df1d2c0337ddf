"""A stream builds gold and a job of the DAG does at once, and either is killed: one answer lands, the newer one, and
what comes after is exact."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.specs.catalog import PROJECT_ROOT
from tests.faults.harness.driver import Driver, python_environment, submit_command
from tests.faults.harness.injection import Fault
from tests.faults.harness.process_group import ProcessGroup
from tests.faults.harness.stage import PIPELINE, Stage
from tests.waiting import eventually

MINUTES = "minutes"
#: A JVM starts, lands, waits for its next look at gold, and builds.
PATIENCE_SECONDS = 400.0
SQL = """\
SELECT event_date, date_trunc('MINUTE', event_time) AS minute, count(*) AS events
FROM events GROUP BY event_date, date_trunc('MINUTE', event_time)
"""
GOLD: dict[str, Any] = {
    "dedupe": {"by": "event_id", "across_days": 1, "across_hours": 1},
    "tables": [
        {
            "name": MINUTES,
            "sql": f"gold/{MINUTES}.sql",
            "reads": ["events"],
            "partition_by": "event_date",
            "grain": {"column": "minute", "part": "hour"},
            "refresh_seconds": 15,
            "checks": {"unique": ["minute"]},
        }
    ],
}


class Minutes:
    """A stage whose stream and whose DAG build events by the minute."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        stage.declare(gold=GOLD)
        path = stage.root / "include" / "pipelines" / PIPELINE / "gold" / f"{MINUTES}.sql"
        path.parent.mkdir()
        path.write_text(SQL)

    def land(self) -> None:
        """An object that is announced twice, and so counts once."""
        self.stage.land(copies=2)

    def await_landed(self) -> None:
        """Wait until all that was landed is in bronze."""
        events = sum(table == "events" for table, _ in self.stage.owed)
        eventually(lambda: self._bronze().total() == events, f"{events} events in bronze", seconds=PATIENCE_SECONDS)

    def build_by_dag(self) -> None:
        """Run the job that the DAG runs, to its end."""
        number = len(list(self.stage.root.glob("dag-*.log"))) + 1
        script = str(PROJECT_ROOT / "spark_jobs" / "rebuild_gold.py")
        command = [*submit_command(self.stage), script, "--pipeline", PIPELINE]
        environment = {**python_environment(), **self.stage.environment()}
        log = self.stage.root / f"dag-{number}.log"
        with ProcessGroup(command, log=log, environment=environment, folder=self.stage.root) as job:
            assert job.process.wait(PATIENCE_SECONDS) == 0, job.tail()

    def is_exact(self) -> bool:
        """Whether every minute has its events."""
        rows = self.stage.lake.rows(paths.table(PIPELINE, MINUTES))
        assert rows is not None
        return Counter({row["minute"]: row["events"] for row in rows.to_pylist()}) == self._bronze()

    def totals(self) -> list[int]:
        """The events in each version of the answer."""
        table = self.stage.lake.open(paths.table(PIPELINE, MINUTES))
        assert table is not None
        totals = []
        for version in range(table.version() + 1):
            table.load_as_version(version)
            totals.append(sum(table.to_pyarrow_table(columns=["events"]).column("events").to_pylist()))
        return totals

    def _bronze(self) -> Counter[dt.datetime]:
        rows = self.stage.lake.rows(paths.table(PIPELINE, "events"), columns=["event_id", "event_time"])
        times = {row["event_id"]: row["event_time"] for row in rows.to_pylist()} if rows is not None else {}
        return Counter(at.replace(second=0, microsecond=0) for at in times.values())


@pytest.mark.parametrize("off", ["", "gold_numbers"])
def test_a_stream_that_built_before_a_dag_did_does_not_write_its_older_answer_over_the_newer(
    make_stage: Callable[..., Stage], tell_line: Callable[..., None], off: str
) -> None:
    minutes = Minutes(make_stage(tables=1))
    minutes.land()
    go_on = minutes.stage.root / "go_on"
    waiting = Fault(point=f"building:{MINUTES}", nth=2, action="await", path=str(go_on))
    with Driver(minutes.stage, available_now=False, faults=[waiting], off=[off] if off else []) as driver:
        driver.await_point(f"built:{MINUTES}", PATIENCE_SECONDS)
        minutes.land()
        driver.await_point(f"injected await at building:{MINUTES}", PATIENCE_SECONDS)
        minutes.land()
        minutes.await_landed()
        minutes.build_by_dag()
        newer = minutes.totals()
        go_on.touch()
        eventually(lambda: len(outcomes(driver)) == 2, "its second build ends", seconds=PATIENCE_SECONDS)
        # Its next look would mend what it has written.
        driver.kill()
        totals = minutes.totals()

    tell_line(
        "gold of a stream and of a DAG at once", f"WITHOUT {off}" if off else "protected", f"events by version {totals}"
    )
    assert outcomes(driver) == [f"built:{MINUTES}", f"built:{MINUTES}" if off else f"overtaken:{MINUTES}"]
    assert newer[-1] == max(newer)
    assert (totals == sorted(totals)) is (not off)
    assert minutes.is_exact() is (not off)


def test_a_driver_killed_before_and_after_its_build_lands_leaves_an_exact_answer_to_the_dag(
    make_stage: Callable[..., Stage], tell_line: Callable[..., None]
) -> None:
    minutes = Minutes(make_stage(tables=1))
    versions = []
    for point in (f"building:{MINUTES}", f"built:{MINUTES}"):
        minutes.land()
        with Driver(minutes.stage, available_now=False, faults=[Fault(point=point)]) as driver:
            assert driver.wait(PATIENCE_SECONDS) != 0, driver.tail()
            driver.injected()
        minutes.build_by_dag()
        assert minutes.is_exact()
        versions.append(len(minutes.totals()))

    tell_line("driver killed at its build of gold, then a DAG", "protected", f"events by version {minutes.totals()}")
    assert minutes.totals() == sorted(minutes.totals())
    # What a driver has built before it was killed is not built again.
    assert versions == [1, 2]


def outcomes(driver: Driver) -> list[str]:
    """How the builds of a driver ended, in order."""
    return [point for _, _, point in driver.points() if point.startswith(("built:", "overtaken:"))]
