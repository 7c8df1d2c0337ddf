"""Maintenance under Airflow's own processes: approvals of early deletion, and runs that share one slot."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from deltaworks.control.home import PipelineHome
from deltaworks.errors import ConfigError, ContractError
from deltaworks.operations.registry import get_operation
from deltaworks.specs.dag_ids import dag_id
from deltaworks.specs.shares import PROCESS_POOL
from deltaworks.tables.lake import Lake
from deltaworks.testing import present
from tests.integration.aged_files import KEY, AgedFiles, age_files, data_files
from tests.integration.airflow_harness import AirflowHarness, running_harness, wait
from tests.integration.airflow_people import People, Slot

NIGHT = dag_id("clicks", "maintenance")
VACUUM, BACK = (get_operation(name).dag_id("clicks") for name in ("vacuum_tables", "restore"))
ASKS, DELETES = "approve", "vacuum_tables"
REASON = {"allow_below_minimum": "the disk is full"}
#: Of the Spark jobs of all classes but gold, on one machine.
POOL = "spark_jobs"
SHORT = {"tables": ["clicks"], "retention_hours": 48, "dry_run": False}
#: A night without OPTIMIZE is two JVMs and four processes, one after another; a VACUUM is a JVM that counts and one
#: that deletes.
NIGHT_SECONDS = 240.0


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowHarness]:
    with running_harness(tmp_path_factory.mktemp("project"), more="maintenance: {optimize: false}\n") as harness:
        assert harness.queue
        harness.await_progress(50)
        harness.settle()
        yield harness


@pytest.fixture(scope="module")
def aged(harness: AirflowHarness) -> AgedFiles:
    return age_files(harness)


@pytest.fixture
def people(harness: AirflowHarness) -> Iterator[People]:
    with harness.people() as people:
        yield people


def state_of(people: People, dag_id: str, run_id: str, task_id: str) -> str | None:
    return next(task.state for task in people.task_instances(dag_id, run_id) if task.task_id == task_id)


def await_question(people: People, dag_id: str, run_id: str, task_id: str) -> str:
    """Waits until a run asks; returns the text of the question."""

    def asks() -> bool:
        return any(
            (task.task_id, task.state) == (task_id, "awaiting_input") for task in people.task_instances(dag_id, run_id)
        )

    wait(asks, f"{run_id} asks nobody", NIGHT_SECONDS)
    asked = present(people.question(dag_id, run_id, task_id))
    assert not asked["response_received"]
    assert asked["defaults"] is None
    return str(asked["body"])


@pytest.mark.timeout(520)
def test_a_failed_task_is_alerted_until_it_succeeds_and_a_rejection_deletes_nothing(
    harness: AirflowHarness, aged: AgedFiles, people: People
) -> None:
    before, subject = data_files(harness), f"{VACUUM}.count"

    people.trigger(VACUUM, conf=SHORT, run_id="without-a-reason")
    assert people.wait_for_run(VACUUM, "without-a-reason", timeout_seconds=NIGHT_SECONDS).state == "failed"

    wait(lambda: ("JOB_FAILED", subject, "raised") in harness.told(), "nobody was told of the task that failed", 60)
    assert state_of(people, VACUUM, "without-a-reason", ASKS) == "upstream_failed"
    assert ("JOB_FAILED", subject, "resolved") not in harness.told()

    people.trigger(VACUUM, conf=SHORT | REASON, run_id="rejected")
    await_question(people, VACUUM, "rejected", ASKS)
    wait(lambda: ("JOB_FAILED", subject, "resolved") in harness.told(), "its success was not told", 60)
    people.settle(VACUUM, "rejected", ASKS, "Reject")

    assert people.wait_for_run(VACUUM, "rejected", timeout_seconds=60).state == "success"
    assert state_of(people, VACUUM, "rejected", DELETES) == "skipped"
    assert data_files(harness) == before
    assert [notification[2] for notification in harness.told() if notification[:2] == ("JOB_FAILED", subject)] == [
        "raised",
        "resolved",
    ]


@pytest.mark.timeout(520)
def test_a_question_marked_as_successful_is_not_an_approval(
    harness: AirflowHarness, aged: AgedFiles, people: People
) -> None:
    before = data_files(harness)
    people.trigger(VACUUM, conf=SHORT | REASON, run_id="marked")
    await_question(people, VACUUM, "marked", ASKS)

    people.mark_successful(VACUUM, "marked", ASKS)

    assert people.wait_for_run(VACUUM, "marked", timeout_seconds=NIGHT_SECONDS).state == "failed"
    assert state_of(people, VACUUM, "marked", ASKS) == "success"
    assert state_of(people, VACUUM, "marked", DELETES) == "failed"
    assert data_files(harness) == before


@pytest.mark.timeout(520)
def test_runs_share_one_slot_and_only_an_approval_deletes(
    harness: AirflowHarness, aged: AgedFiles, people: People
) -> None:
    before, rows = data_files(harness), sorted(harness.rows())
    people.trigger(VACUUM, conf=SHORT | REASON, run_id="first")
    people.trigger(VACUUM, conf={"tables": ["clicks"]}, run_id="second")

    body = await_question(people, VACUUM, "first", ASKS)

    assert ["clicks", "True", str(len(aged.deletable)), str(aged.size)] in [
        line.split()[:4] for line in body.splitlines()
    ]
    assert "retention_hours: 48" in body.splitlines()
    assert "the disk is full" in body
    wait(lambda: people.occupied(POOL) == (0, 1), "what waits for a person holds the slot", 120)
    assert people.dag_run(VACUUM, "second").state == "queued"
    assert data_files(harness) == before

    people.settle(VACUUM, "first", ASKS, "Approve")
    first = people.wait_for_run(VACUUM, "first", timeout_seconds=NIGHT_SECONDS)
    assert first.state == "success"
    assert before - data_files(harness) == aged.deletable
    assert sorted(harness.rows()) == rows
    approval = PipelineHome.open(harness.catalog.environment.lake, "clicks").approvals
    with pytest.raises(ContractError, match="APPROVAL_EXPIRED"):
        approval.valid_approval("vacuum_tables", "first")

    second = people.wait_for_run(VACUUM, "second", timeout_seconds=NIGHT_SECONDS)
    assert second.state == "success"
    assert first.end is not None
    assert second.start is not None
    assert second.start >= first.end
    assert before - data_files(harness) == aged.deletable, "the second run only counts"
    slots = [slot for run in ("first", "second") for slot in people.slots(VACUUM, run) if slot.task_id == DELETES]
    assert {slot.pool for slot in slots} == {POOL}
    assert in_turn(slots)


@pytest.mark.timeout(400)
def test_a_count_does_not_wait_for_the_slot_of_a_night(harness: AirflowHarness, people: People) -> None:
    form = {"table": "clicks", "to_batch": 0, "repair": "none", "dry_run": False}
    people.trigger(NIGHT, conf={"tables": ["clicks"]}, run_id="night")
    wait(lambda: state_of(people, NIGHT, "night", "vacuum_tables") == "running", "the night does not begin", 120)
    people.trigger(BACK, conf=form, run_id="back")
    await_question(people, BACK, "back", "approve")
    people.settle(BACK, "back", "approve", "Reject")
    for dag, run_id in ((NIGHT, "night"), (BACK, "back")):
        assert people.wait_for_run(dag, run_id, timeout_seconds=NIGHT_SECONDS).state == "success"

    jobs = [slot for slot in people.slots(NIGHT, "night") if slot.pool == POOL]
    count = next(slot for slot in people.slots(BACK, "back") if slot.task_id == "count")
    assert DELETES in {slot.task_id for slot in jobs}
    assert in_turn(jobs)
    assert count.pool == PROCESS_POOL
    assert count.start < max(slot.end for slot in jobs if slot.end is not None)


def in_turn(slots: list[Slot]) -> bool:
    """Whether each task began after the previous one had ended."""
    ordered = sorted(slots, key=lambda slot: slot.start)
    return all(one.end is not None and one.end <= other.start for one, other in itertools.pairwise(ordered))


@pytest.mark.timeout(400)
def test_a_restore_asks_with_its_count_and_runs_only_after_approval(harness: AirflowHarness, people: People) -> None:
    kept = sorted(harness.rows())
    table = present(Lake(harness.catalog.environment.lake).open(KEY))
    harness.send()
    harness.await_progress(len(kept))
    harness.settle()
    landed = sorted(harness.rows())
    form = {"table": "clicks", "to_version": table.version(), "repair": "none", "reason": "a bad deploy"}
    form |= {"dry_run": False}
    with pytest.raises(ConfigError, match="AIRFLOW_REFUSED"):
        people.trigger(BACK, conf=form | {"table": "orders"}, run_id="no-such-table")

    for answer, expected in (("Reject", landed), ("Approve", kept)):
        people.trigger(BACK, conf=form, run_id=answer)
        body = await_question(people, BACK, answer, "approve")
        assert any({"clicks", str(len(landed) - len(kept))} <= {*line.split()} for line in body.splitlines())
        assert sorted(harness.rows()) == landed
        people.settle(BACK, answer, "approve", answer)
        assert people.wait_for_run(BACK, answer, timeout_seconds=120).state == "success"
        assert sorted(harness.rows()) == expected

    harness.send()
    harness.await_progress(len(kept))
    sent = harness.sender.close()
    wait(lambda: sent - 1 in harness.rows(), "the stream does not continue after the restore", 120)
    assert sorted(harness.rows()) == [*kept, *range(len(landed), sent)]
