"""Acts of the console under Airflow's own processes: each form mends what the overview shows, in the person's name."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from deltaworks.control import paths
from deltaworks.control.health.stop import StopFlag, StopRequest
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import open_objects
from tests.integration.airflow_people import People
from tests.integration.airflow_stage import BACK_SECONDS, Stage, running_stage, wait

pytestmark = pytest.mark.integration
RUN_SECONDS = 240.0


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with running_stage(tmp_path_factory.mktemp("project")) as stage:
        stage.await_progress(5)
        yield stage


@pytest.fixture
def people(stage: Stage) -> Iterator[People]:
    with stage.people() as people:
        yield people


class Console:
    """The console as a browser uses it: its forms are opened, filled in and sent."""

    def __init__(self, people: People) -> None:
        login = people.login
        answer = httpx.post(f"{login.url}/auth/token", json={"username": login.username, "password": login.password})
        self.person = login.username
        self._people = people
        self._client = httpx.Client(
            base_url=f"{login.url}/deltaworks",
            headers={"Accept": "text/html", "Authorization": f"Bearer {answer.json()['access_token']}"},
            timeout=60,
        )
        self._origin = login.url

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def page(self, path: str) -> str:
        """A page."""
        answer = self._client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text

    def press(self, operation: str, subject: str, **values: str) -> str:
        """Send a form, wait until its run has succeeded, and give the run's id."""
        return self._send(f"/acts/{operation}/{subject}", operation, subject, values)

    def go_on(self, operation: str, subject: str, counted: str) -> str:
        """Do what was counted, and give the run's id."""
        path = f"/acts/{operation}/{subject}/confirm/{counted}"
        return self._send(path, operation, subject, {"_counted": counted})

    def _send(self, form: str, operation: str, subject: str, values: dict[str, str]) -> str:
        nonce = re.search(r'name="_nonce" value="([^"]+)"', self.page(form))
        assert nonce is not None, "no form is shown"
        answer = self._client.post(
            f"/acts/{operation}/{subject}", data={"_nonce": nonce[1], **values}, headers={"Origin": self._origin}
        )
        assert answer.status_code == 303, answer.text
        run_id = answer.headers["location"].rpartition("/")[2]
        ended = self._people.wait_for_run(f"{operation}__{subject}", run_id, timeout_seconds=RUN_SECONDS)
        assert ended.state == "success", self._people.task_instances(ended.dag_id, run_id)
        return run_id


@pytest.fixture
def console(people: People) -> Iterator[Console]:
    with Console(people) as console:
        yield console


def stop_of(stage: Stage, folder: str) -> StopRequest | None:
    return StopFlag(open_objects(stage.catalog.environment.lake), paths.stop_request(folder)).read()


@pytest.mark.timeout(900)
def test_a_stream_is_stopped_and_started_in_the_name_of_the_person(stage: Stage, console: Console) -> None:
    console.press("control", "clicks", verb="stop", reason="a new key")

    request = stop_of(stage, paths.pipeline_control("clicks"))
    assert request is not None
    assert (request.by, request.reason) == (console.person, "a new key")
    assert "stopped" in console.page("/")

    console.press("control", "clicks", verb="start")
    assert stop_of(stage, paths.pipeline_control("clicks")) is None
    stage.await_progress(len(stage.rows()))


@pytest.mark.timeout(900)
def test_a_restart_ends_the_run_and_the_next_one_goes_on(stage: Stage, console: Console) -> None:
    before = stage.beat()
    assert before is not None

    console.press("control", "clicks", verb="restart", reason="as it is declared now")

    def back() -> bool:
        beat = stage.beat()
        return beat is not None and beat.epoch > before.epoch and beat.state in ("running", "idle")

    wait(back, "the stream did not come back", BACK_SECONDS)
    assert stop_of(stage, paths.pipeline_control("clicks")) is None


@pytest.mark.timeout(900)
def test_a_relay_is_stopped_and_started(stage: Stage, console: Console) -> None:
    console.press("control_relay", "landing", verb="stop", reason="the queue moves")
    request = stop_of(stage, paths.relay_control("landing"))
    assert request is not None
    assert request.by == console.person

    console.press("control_relay", "landing", verb="start")
    assert stop_of(stage, paths.relay_control("landing")) is None
    stage.await_progress(len(stage.rows()))


@pytest.mark.timeout(900)
def test_a_reader_that_holds_vacuum_back_is_released(stage: Stage, console: Console) -> None:
    readers = PipelineHome.open(stage.catalog.environment.lake, "clicks").readers
    readers.keep("clicks", reader="training", version=0, hours=5)

    console.press("control", "clicks", verb="release", target="clicks/training")

    assert readers.read() == []


@pytest.mark.timeout(900)
def test_orphans_are_counted_and_then_removed(stage: Stage, people: People, console: Console) -> None:
    counted = console.press("remove_orphans", "clicks")
    assert people.dag_run("remove_orphans__clicks", counted).conf["dry_run"] is True

    done = console.go_on("remove_orphans", "clicks", counted)

    assert people.dag_run("remove_orphans__clicks", done).conf["dry_run"] is False
