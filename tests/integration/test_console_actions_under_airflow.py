"""Console actions and approvals under Airflow's own processes: in the person's name, and by two people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StopFlag, StopRequest
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import open_objects
from deltaworks.operations.base import APPROVE_TASK
from deltaworks.operations.registry import get_operation
from deltaworks.tables.lake import Lake
from deltaworks.testing import present
from sandbox.airflow.settings import passwords_path
from sandbox.servers.landing import LAKE_BUCKET
from sandbox.stack.stack import status
from tests.integration.airflow_harness import (
    BACK_SECONDS,
    AirflowHarness,
    Sender,
    clicks_project,
    running_harness,
    running_stack,
    wait,
)
from tests.integration.airflow_people import People
from tests.integration.console_pages import Console, console_of


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowHarness]:
    with running_harness(tmp_path_factory.mktemp("project")) as harness:
        harness.await_progress(5)
        yield harness


@pytest.fixture
def people(harness: AirflowHarness) -> Iterator[People]:
    with harness.people() as people:
        yield people


@pytest.fixture
def console(people: People) -> Iterator[Console]:
    with console_of(people) as console:
        yield console


def stop_of(harness: AirflowHarness, folder: str) -> StopRequest | None:
    return StopFlag(open_objects(harness.catalog.environment.lake), paths.stop_request(folder)).read()


@pytest.mark.timeout(900)
def test_a_stream_is_stopped_and_started_by_a_person(harness: AirflowHarness, console: Console) -> None:
    console.press("/actions/control/clicks", verb="stop", reason="a new key")

    request = present(stop_of(harness, paths.pipeline_control("clicks")))
    assert (request.by, request.reason) == (console.person, "a new key")
    assert "stopped" in console.page("/")

    console.press("/actions/control/clicks", verb="start")
    assert stop_of(harness, paths.pipeline_control("clicks")) is None
    harness.await_progress(len(harness.rows()))


@pytest.mark.timeout(900)
def test_a_restart_ends_the_run_and_the_next_one_continues(harness: AirflowHarness, console: Console) -> None:
    before = present(harness.beat())

    console.press("/actions/control/clicks", verb="restart", reason="as it is declared now")

    def back() -> bool:
        beat = harness.beat()
        return beat is not None and beat.epoch > before.epoch and beat.state in ("running", "idle")

    wait(back, "the stream did not come back", BACK_SECONDS)
    assert stop_of(harness, paths.pipeline_control("clicks")) is None


@pytest.mark.timeout(900)
def test_a_relay_is_stopped_and_started(harness: AirflowHarness, console: Console) -> None:
    console.press("/actions/control_relay/landing", verb="stop", reason="the queue moves")
    assert present(stop_of(harness, paths.relay_control("landing"))).by == console.person

    console.press("/actions/control_relay/landing", verb="start")
    assert stop_of(harness, paths.relay_control("landing")) is None
    harness.await_progress(len(harness.rows()))


@pytest.mark.timeout(900)
def test_a_reader_that_blocks_vacuum_is_unpinned(harness: AirflowHarness, console: Console) -> None:
    readers = PipelineHome.open(harness.catalog.environment.lake, "clicks").readers
    readers.pin("clicks", reader="training", version=0, hours=5)

    console.press("/actions/control/clicks", verb="unpin", target="clicks/training")

    assert readers.read() == []


@pytest.mark.timeout(900)
def test_orphans_are_counted_and_then_removed(harness: AirflowHarness, people: People, console: Console) -> None:
    form = "/actions/remove_orphans/clicks"
    counted = console.send(form, form, {})
    assert people.dag_run("clicks__maintenance", counted).conf["dry_run"] is True

    done = console.send(f"{form}/confirm/{counted}", form, {})

    assert people.dag_run("clicks__maintenance", done).conf["dry_run"] is False


RESTORE = get_operation("restore").dag_id("clicks")
SECONDS = 150.0
USERS = {"AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,ada:admin,bo:admin"}


@dataclass
class TwoPeople:
    """Ada and Bo, who may both trigger, clear and approve, and a table that could be restored."""

    harness: AirflowHarness
    ada: People
    bo: People
    then: datetime

    def ask(self, person: People, run_id: str) -> None:
        """Requests a restore."""
        form = {"table": "clicks", "to_time": self.then.isoformat(), "repair": "none", "dry_run": False}
        person.trigger(RESTORE, conf=form, run_id=run_id)

    def await_question(self, run_id: str) -> None:
        wait(lambda: self.state(run_id, APPROVE_TASK) == "awaiting_input", f"{run_id} asks nobody", SECONDS)

    def state(self, run_id: str, task_id: str = "restore") -> str | None:
        tasks = self.ada.task_instances(RESTORE, run_id)
        return next((task.state for task in tasks if task.task_id == task_id), None)

    def ends(self, run_id: str) -> tuple[str, str | None, str | None]:
        """Waits until the run has ended; returns the states of the run, its question and its restore."""
        ended = self.ada.wait_for_run(RESTORE, run_id, timeout_seconds=SECONDS)
        return ended.state, self.state(run_id, APPROVE_TASK), self.state(run_id)

    def log(self, run_id: str) -> str:
        """Returns the log of the newest try of the question, with its exception."""
        runs = self.harness.home.airflow / "logs" / f"dag_id={RESTORE}" / f"run_id={run_id}"
        tries = (runs / f"task_id={APPROVE_TASK}").glob("attempt=*.log")
        return max(tries, key=lambda path: path.stat().st_mtime).read_text()

    def version(self) -> int:
        return present(Lake(self.harness.catalog.environment.lake).open(paths.table("clicks", "clicks"))).version()

    @property
    def approvals_folder(self) -> Path:
        return self.harness.home.lake / LAKE_BUCKET / paths.pipeline_control("clicks", "approvals")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoPeople]:
    project = clicks_project(tmp_path_factory.mktemp("project"))
    environment = project / "include" / "environments" / "local.yaml"
    environment.write_text(environment.read_text().replace("approvals: {self_approval: true}\n", ""))
    with running_stack(project, variables=USERS) as (home, catalog), ExitStack() as clients:
        harness = AirflowHarness(home, catalog, Sender(catalog))
        clients.callback(harness.sender.close)
        assert harness.queue
        harness.await_progress(20)
        then = datetime.now(UTC)
        harness.await_progress(40)
        harness.settle()
        addresses = status(home=home).addresses
        assert addresses is not None
        passwords = json.loads(passwords_path(home).read_text())
        ada, bo = (
            clients.enter_context(
                People(replace(addresses.airflow_login(), username=name, password=passwords[name], token=""))
            )
            for name in ("ada", "bo")
        )
        yield TwoPeople(harness, ada, bo, then)


@pytest.mark.timeout(400)
def test_nobody_approves_their_own_run(two: TwoPeople) -> None:
    before = two.version()
    two.ask(two.bo, "own")
    two.await_question("own")

    two.bo.settle(RESTORE, "own", APPROVE_TASK, "Approve")

    assert two.ends("own") == ("failed", "failed", "upstream_failed")
    assert "APPROVAL_REFUSED" in two.log("own")
    assert two.version() == before

    two.ada.clear_run(RESTORE, "own")
    assert two.ends("own") == ("failed", "failed", "upstream_failed")
    assert "APPROVAL_REPEATED" in two.log("own")
    assert two.version() == before


@pytest.mark.timeout(400)
def test_a_cleared_run_is_not_approved_by_the_person_who_cleared_it(two: TwoPeople) -> None:
    two.ask(two.bo, "cleared")
    two.await_question("cleared")
    before = two.version()

    # Before it is answered.
    two.ada.clear_run(RESTORE, "cleared")
    assert two.ends("cleared") == ("failed", "failed", "upstream_failed")
    assert "APPROVAL_REPEATED" in two.log("cleared")

    # Without resetting the run, which then does not count as cleared.
    two.ada.clear_run(RESTORE, "cleared", reset=False)
    two.ada.queue_run(RESTORE, "cleared")
    assert two.ends("cleared") == ("failed", "failed", "upstream_failed")
    assert two.version() == before


@pytest.mark.timeout(400)
def test_a_rejected_run_does_not_ask_again(two: TwoPeople) -> None:
    before = two.version()
    two.ask(two.bo, "rejected")
    two.await_question("rejected")
    two.ada.settle(RESTORE, "rejected", APPROVE_TASK, "Reject")
    assert two.ends("rejected") == ("success", "success", "skipped")

    for person in (two.bo, two.ada):
        person.clear_run(RESTORE, "rejected")
        assert two.ends("rejected") == ("failed", "failed", "upstream_failed")
        assert "APPROVAL_REPEATED" in two.log("rejected")
    assert two.version() == before


@pytest.mark.timeout(400)
def test_a_retried_task_asks_again_and_a_used_approval_does_not(two: TwoPeople) -> None:
    before, folder = two.version(), two.approvals_folder
    hidden = folder.with_name("hidden")
    if folder.exists():
        folder.rename(hidden)
    folder.write_text("no folder, so that the question cannot be stored")
    try:
        two.ask(two.bo, "retried")
        wait(lambda: two.state("retried", APPROVE_TASK) == "up_for_retry", "the outage is not retried", SECONDS)
    finally:
        folder.unlink()
        if hidden.exists():
            hidden.rename(folder)
    two.await_question("retried")
    assert two.version() == before
    two.ada.settle(RESTORE, "retried", APPROVE_TASK, "Approve")
    assert two.ends("retried") == ("success", "success", "success")
    after = two.version()
    assert after > before

    for person in (two.bo, two.ada):
        person.clear_run(RESTORE, "retried")
        assert two.ends("retried")[:2] == ("failed", "failed")
        assert "APPROVAL_REPEATED" in two.log("retried")
    # The job alone is run again, with the used approval.
    two.bo.clear_run(RESTORE, "retried", task_ids=["restore"])
    two.bo.mark_successful(RESTORE, "retried", APPROVE_TASK)
    assert two.ends("retried")[2] != "success"
    assert two.version() == after


@pytest.mark.timeout(400)
def test_a_stolen_run_id_gets_no_approval(two: TwoPeople) -> None:
    before = two.version()
    two.ask(two.bo, "stolen")
    two.await_question("stolen")
    two.ada.delete_run(RESTORE, "stolen")

    two.ask(two.ada, "stolen")
    assert two.ends("stolen") == ("failed", "failed", "upstream_failed")
    assert "APPROVAL_REPEATED" in two.log("stolen")
    two.ada.delete_run(RESTORE, "stolen")
    two.ask(two.bo, "stolen")
    assert two.ends("stolen") == ("failed", "failed", "upstream_failed")
    assert two.version() == before
