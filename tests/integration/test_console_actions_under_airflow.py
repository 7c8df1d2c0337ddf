"""Console actions under Airflow's own processes: each form resolves its issue, in the person's name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StopFlag, StopRequest
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import open_objects
from tests.integration.airflow_harness import BACK_SECONDS, AirflowHarness, running_harness, wait
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

    request = stop_of(harness, paths.pipeline_control("clicks"))
    assert request is not None
    assert (request.by, request.reason) == (console.person, "a new key")
    assert "stopped" in console.page("/")

    console.press("/actions/control/clicks", verb="start")
    assert stop_of(harness, paths.pipeline_control("clicks")) is None
    harness.await_progress(len(harness.rows()))


@pytest.mark.timeout(900)
def test_a_restart_ends_the_run_and_the_next_one_continues(harness: AirflowHarness, console: Console) -> None:
    before = harness.beat()
    assert before is not None

    console.press("/actions/control/clicks", verb="restart", reason="as it is declared now")

    def back() -> bool:
        beat = harness.beat()
        return beat is not None and beat.epoch > before.epoch and beat.state in ("running", "idle")

    wait(back, "the stream did not come back", BACK_SECONDS)
    assert stop_of(harness, paths.pipeline_control("clicks")) is None


@pytest.mark.timeout(900)
def test_a_relay_is_stopped_and_started(harness: AirflowHarness, console: Console) -> None:
    console.press("/actions/control_relay/landing", verb="stop", reason="the queue moves")
    request = stop_of(harness, paths.relay_control("landing"))
    assert request is not None
    assert request.by == console.person

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
