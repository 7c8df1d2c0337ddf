"""A stream under two schedulers and PostgreSQL, as in a deployment: one scheduler is killed in the middle of a batch,
and the database is stopped for a minute. The stream must recover, every event must be in the table once, and Airflow
must run other tasks again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.dag_ids import HEALTH_DAG
from tests.faults.harness.held_stream import Switches
from tests.faults.harness.postgres import Postgres, missing, running_postgres
from tests.faults.harness.schedulers import Schedulers
from tests.integration.airflow_harness import (
    BACK_SECONDS,
    GONE_SECONDS,
    AirflowHarness,
    Sender,
    alive,
    ancestors,
    clicks_project,
    running_stack,
    wait,
)

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
Tell = Callable[..., None]
OUTAGE_SECONDS = 60.0
#: How long Airflow keeps the tasks of a failed scheduler.
GRACE_SECONDS = 20.0
#: If no task starts within this time, none will: the stream's own task runs for hours.
PATIENCE_SECONDS = 120.0
OURS, AIRFLOWS = "deltaworks.airflow.executor.LocalExecutor", "LocalExecutor"


@dataclass(frozen=True, slots=True)
class Deployment:
    """The stream's project, its control files and Airflow's database."""

    harness: AirflowHarness
    switches: Switches
    database: Postgres


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    project = clicks_project(tmp_path_factory.mktemp("project"))
    switches = Switches.install(project)
    with running_postgres() as database:
        variables = {
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database.address(),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONNECT_ARGS": "tests.faults.harness.postgres.CONNECT_ARGS",
            "PYTHONPATH": os.pathsep.join([str(project / "include"), str(PROJECT_ROOT)]),
        }
        with running_stack(project, variables=variables) as (home, catalog):
            harness = AirflowHarness(home, catalog, Sender(catalog))
            yield Deployment(harness, switches, database)
            harness.sender.close()


@pytest.fixture(scope="module")
def schedulers(deployment: Deployment, request: pytest.FixtureRequest) -> Iterator[Schedulers]:
    """Runs this many schedulers per executor; those of one executor end before those of the next start."""
    executor, count = request.param
    variables = {"AIRFLOW__CORE__EXECUTOR": executor, "DELTAWORKS_EXECUTOR_GRACE_SECONDS": str(GRACE_SECONDS)}
    with Schedulers(deployment.harness.home, variables=variables, count=count) as schedulers:
        yield schedulers


@dataclass(frozen=True, slots=True)
class Outcome:
    """The check's result, and the seconds until the stream landed rows again."""

    recovery_seconds: float
    sent: int
    lost: int
    doubled: int

    def tell(self, print_result: Tell, fault: str, *facts: str, off: str = "") -> None:
        """Prints the result line of the fault."""
        print_result(
            fault,
            f"WITHOUT {off}" if off else "protected",
            f"ids {self.sent}",
            f"lost {self.lost}",
            f"doubled {self.doubled}",
            f"recovery {self.recovery_seconds:.1f} s",
            *facts,
        )


def kill_a_scheduler_in_a_batch(deployment: Deployment, schedulers: Schedulers) -> Outcome:
    """Kills the scheduler of the stream's task after a batch's commits and before its completion."""
    harness = deployment.harness
    harness.send()
    before = harness.await_progress(len(harness.rows()))
    family = ancestors(before.pid)
    with deployment.switches.held():
        schedulers.kill_parent_of(before.pid)
        killed, gone = time.monotonic(), (family["driver"], family["jvm"])
        wait(lambda: not any(alive(pid) for pid in gone), "driver or JVM outlived the scheduler", GONE_SECONDS)
    after = harness.await_progress(len(harness.rows()))
    recovery = time.monotonic() - killed
    assert after.pid != before.pid
    assert after.epoch > before.epoch
    return Outcome(recovery, *harness.settle())


def outage(deployment: Deployment, *, patience_seconds: float) -> tuple[int, float, float | None]:
    """Stops the database for a minute while the stream runs.

    Returns:
        Rows landed meanwhile; the time of the database's return; seconds from there until Airflow ran a task, None if
            it
        did not within the time limit.
    """
    harness, run_id = deployment.harness, f"after-{time.time():.0f}"
    harness.send()
    harness.await_progress(len(harness.rows()))
    rows = len(harness.rows())
    deployment.database.stop()
    time.sleep(OUTAGE_SECONDS)
    landed = len(harness.rows()) - rows
    deployment.database.start()
    returned = time.monotonic()
    with harness.people() as people:
        people.trigger(HEALTH_DAG, run_id=run_id)
        while time.monotonic() - returned < patience_seconds:
            if people.dag_run(HEALTH_DAG, run_id).is_finished:
                return landed, returned, time.monotonic() - returned
            time.sleep(1)
    return landed, returned, None


@pytest.mark.parametrize("schedulers", [(OURS, 2)], ids=["deltaworks"], indirect=True)
def test_a_scheduler_that_is_killed_in_the_middle_of_a_batch_loses_and_doubles_nothing(
    deployment: Deployment, schedulers: Schedulers, print_result: Tell
) -> None:
    outcome = kill_a_scheduler_in_a_batch(deployment, schedulers)

    turns = deployment.harness.turns()
    outcome.tell(print_result, "one of two schedulers killed", f"{len(turns)} runs wrote")
    assert (outcome.lost, outcome.doubled) == (0, 0)
    assert len(turns) == len(set(turns)), "a run wrote again after its successor had begun"


@pytest.mark.parametrize("schedulers", [(OURS, 2)], ids=["deltaworks"], indirect=True)
def test_while_the_database_is_away_nothing_is_lost_and_schedulers_come_back(
    deployment: Deployment, schedulers: Schedulers, print_result: Tell
) -> None:
    landed, returned, scheduled = outage(deployment, patience_seconds=BACK_SECONDS)

    deployment.harness.await_progress(len(deployment.harness.rows()))
    outcome = Outcome(time.monotonic() - returned, *deployment.harness.settle())
    fault = f"Airflow's database away for {OUTAGE_SECONDS:.0f} s"
    outcome.tell(print_result, fault, f"{landed} rows landed meanwhile, the next task ran after {scheduled} s")
    assert scheduled is not None
    assert landed > 0
    assert (outcome.lost, outcome.doubled) == (0, 0)


@pytest.mark.parametrize("schedulers", [(OURS, 2)], ids=["deltaworks"], indirect=True)
def test_without_what_is_fixed_of_a_batch_a_killed_scheduler_doubles_rows(
    deployment: Deployment, schedulers: Schedulers, print_result: Tell
) -> None:
    deployment.switches.disable("transactions", "prepared")
    try:
        outcome = kill_a_scheduler_in_a_batch(deployment, schedulers)
    finally:
        deployment.switches.disable()

    outcome.tell(print_result, "one of two schedulers killed", off="transactions, prepared")
    assert outcome.doubled > 0


@pytest.mark.parametrize("schedulers", [(AIRFLOWS, 1)], ids=["airflow"], indirect=True)
def test_without_its_end_a_scheduler_waits_for_the_stream_and_starts_nothing(
    deployment: Deployment, schedulers: Schedulers, print_result: Tell
) -> None:
    # One scheduler, which runs the stream: of two, the one without a running task would recover.
    landed, _, scheduled = outage(deployment, patience_seconds=PATIENCE_SECONDS)

    ran = "no task ran" if scheduled is None else f"a task ran after {scheduled:.0f} s"
    fault = f"Airflow's database away for {OUTAGE_SECONDS:.0f} s"
    print_result(
        fault, "WITHOUT executor_end", f"{landed} rows landed meanwhile, {ran} within {PATIENCE_SECONDS:.0f} s"
    )
    assert scheduled is None
