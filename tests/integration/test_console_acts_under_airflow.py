"""Acts of the console under Airflow's own processes: each form mends what the overview shows, in the person's name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deltaworks.control import paths
from deltaworks.control.health.stop import StopFlag, StopRequest
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import open_objects
from tests.integration.airflow_people import People
from tests.integration.airflow_stage import BACK_SECONDS, Stage, running_stage, wait
from tests.integration.console_pages import Console, console_of

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with running_stage(tmp_path_factory.mktemp("project")) as stage:
        stage.await_progress(5)
        yield stage


@pytest.fixture
def people(stage: Stage) -> Iterator[People]:
    with stage.people() as people:
        yield people


@pytest.fixture
def console(people: People) -> Iterator[Console]:
    with console_of(people) as console:
        yield console


def stop_of(stage: Stage, folder: str) -> StopRequest | None:
    return StopFlag(open_objects(stage.catalog.environment.lake), paths.stop_request(folder)).read()


@pytest.mark.timeout(900)
def test_a_stream_is_stopped_and_started_in_the_name_of_the_person(stage: Stage, console: Console) -> None:
    console.press("/actions/control/clicks", verb="stop", reason="a new key")

    request = stop_of(stage, paths.pipeline_control("clicks"))
    assert request is not None
    assert (request.by, request.reason) == (console.person, "a new key")
    assert "stopped" in console.page("/")

    console.press("/actions/control/clicks", verb="start")
    assert stop_of(stage, paths.pipeline_control("clicks")) is None
    stage.await_progress(len(stage.rows()))


@pytest.mark.timeout(900)
def test_a_restart_ends_the_run_and_the_next_one_goes_on(stage: Stage, console: Console) -> None:
    before = stage.beat()
    assert before is not None

    console.press("/actions/control/clicks", verb="restart", reason="as it is declared now")

    def back() -> bool:
        beat = stage.beat()
        return beat is not None and beat.epoch > before.epoch and beat.state in ("running", "idle")

    wait(back, "the stream did not come back", BACK_SECONDS)
    assert stop_of(stage, paths.pipeline_control("clicks")) is None


@pytest.mark.timeout(900)
def test_a_relay_is_stopped_and_started(stage: Stage, console: Console) -> None:
    console.press("/actions/control_relay/landing", verb="stop", reason="the queue moves")
    request = stop_of(stage, paths.relay_control("landing"))
    assert request is not None
    assert request.by == console.person

    console.press("/actions/control_relay/landing", verb="start")
    assert stop_of(stage, paths.relay_control("landing")) is None
    stage.await_progress(len(stage.rows()))


@pytest.mark.timeout(900)
def test_a_reader_that_holds_vacuum_back_is_released(stage: Stage, console: Console) -> None:
    readers = PipelineHome.open(stage.catalog.environment.lake, "clicks").readers
    readers.pin("clicks", reader="training", version=0, hours=5)

    console.press("/actions/control/clicks", verb="release", target="clicks/training")

    assert readers.read() == []


@pytest.mark.timeout(900)
def test_orphans_are_counted_and_then_removed(stage: Stage, people: People, console: Console) -> None:
    form = "/actions/remove_orphans/clicks"
    counted = console.send(form, form, {})
    assert people.dag_run("remove_orphans__clicks", counted).conf["dry_run"] is True

    done = console.send(f"{form}/confirm/{counted}", form, {})

    assert people.dag_run("remove_orphans__clicks", done).conf["dry_run"] is False
