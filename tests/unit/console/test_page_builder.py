"""No page says what it does not know: while its data are still being read, it says so, and judges nothing."""

from __future__ import annotations

import json
import threading
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from deltaworks.alerts.deadman import write_health_heartbeat
from deltaworks.console import cached_objects, page_builder
from deltaworks.console.cached_objects import CachedObjects, CatalogCache
from deltaworks.console.pages.registry import PAGES
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.health import report
from deltaworks.control.objects import LocalObjects, StoredObject
from deltaworks.errors import TransientError
from tests.console_harness import ConsoleHarness, console_harness, write_process_heartbeat
from tests.waiting import eventually

#: Words that a page must not say of a lake in which all is well.
FALSE_WORDS = ("HEARTBEAT_STALE", "HEALTH_SILENT", "HEARTBEAT_UNREADABLE", "</span> unhealthy", "has not answered")
PAUSES = (0, 20, 50, 240, 600, 1800)
#: Pages that read tables in a child process, and those of namespaces and widgets, which this project does not have.
_OTHERS = ("cascade", "history", "samples", "certificates", "erasures", "widget")
ROUTES = {
    page.name: page.route.format(pipeline="games", batch=1, table="purchase", dag_id="games__stream")
    for page in PAGES
    if not page.document and page.name not in _OTHERS
}


class SlowObjects(LocalObjects):
    """Objects on disk whose reads wait for `answers` or fail."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.answers = threading.Event()
        self.answers.set()
        self.failure = ""

    def _wait(self) -> None:
        self.answers.wait(30)
        if self.failure:
            raise TransientError("STORAGE_UNREACHABLE", self.failure)

    def get(self, key: str) -> StoredObject | None:
        self._wait()
        return super().get(key)

    def list(self, prefix: str) -> list[str]:
        self._wait()
        return super().list(prefix)


class Lake:
    """A console over a lake in which all is well, and one clock of both that tests advance."""

    def __init__(self, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moved = 0.0
        self._root = project
        written = console_harness(project).objects
        assert isinstance(written, LocalObjects)
        self.objects = written
        self.storage = SlowObjects(written._root)
        monkeypatch.setattr(page_builder, "utc_now", self.now)
        self.run_all()
        self.harness = self.new_console()

    def now(self) -> datetime:
        return utc_now() + timedelta(seconds=self.moved)

    def new_console(self) -> ConsoleHarness:
        return console_harness(self._root, storage=lambda: self.storage, clock=lambda: time.monotonic() + self.moved)

    def run_all(self) -> None:
        """All processes run: they write what they write each few seconds."""
        at = self.now().isoformat()
        for name in ("games", "edits"):
            write_process_heartbeat(
                self.objects, paths.pipeline_control(name), name, written_at=at, last_batch_at=at, started_at=at
            )
        write_process_heartbeat(
            self.objects, paths.relay_control("landing"), "landing", batch_id=None, written_at=at, started_at=at
        )
        write_health_heartbeat(self.objects, run="health__check/r/check/1", checked=3, unhealthy=0, now=self.now())
        report.write_verdicts(self.objects, {}, now=self.now())

    def read_page(self, route: str) -> Any:
        """Returns a page once its records have been read."""
        eventually(lambda: "Still reading" not in self.harness.get(route).text, "it is read")
        return self.harness.get(route)

    def pass_time(self, seconds: float) -> None:
        self.moved += seconds
        self.run_all()


@pytest.fixture
def lake(project: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    return Lake(project, monkeypatch)


def false_words(text: str) -> list[str]:
    return [word for word in FALSE_WORDS if word in text]


@pytest.mark.parametrize("pause", PAUSES)
def test_no_page_judges_what_it_read_before_a_pause(lake: Lake, pause: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy machine may need longer for all the pages than a read may be without an answer.
    monkeypatch.setattr(cached_objects, "_TIMEOUT_SECONDS", 600.0)
    first = {name: lake.read_page(route) for name, route in ROUTES.items()}
    assert {name: words for name, page in first.items() if (words := false_words(page.text))} == {}
    lake.pass_time(pause)
    lake.storage.answers.clear()

    shown = {name: lake.harness.get(route).text for name, route in ROUTES.items()}

    assert {name: words for name, text in shown.items() if (words := false_words(text))} == {}
    if pause > 180:
        assert {name for name, text in shown.items() if "Still reading" not in text} == {
            "lineage",
            "dashboards",
            "mutations",
            "widgets",
        }, "only pages that read no records of this project"
    lake.storage.answers.set()
    for name, route in ROUTES.items():
        again = lake.read_page(route)
        assert (again.status_code, false_words(again.text)) == (first[name].status_code, [])


def test_a_page_that_is_still_read_asks_the_browser_to_come_back_and_a_poll_keeps_the_old_page(lake: Lake) -> None:
    lake.storage.answers.clear()
    page, poll, data = (lake.harness.get(path) for path in ("/", "/?fragment=1", "/?format=json"))
    lake.storage.answers.set()

    assert (page.status_code, page.headers["refresh"], page.headers["cache-control"]) == (200, "1", "no-store")
    assert "Still reading" in page.text
    assert "No open issues" not in page.text
    assert (poll.status_code, poll.text) == (204, "")
    assert (data.status_code, data.headers["retry-after"]) == (503, "1")


def test_a_storage_that_fails_is_told_and_the_page_is_that_of_the_time_of_its_data(lake: Lake) -> None:
    lake.read_page("/")
    lake.moved += 600
    lake.storage.failure = "refused"
    eventually(lambda: "has not answered" in lake.harness.get("/").text, "a read has failed")
    shown = lake.harness.get("/")

    assert [word for word in false_words(shown.text) if word != "has not answered"] == []
    data = lake.harness.get("/?format=json").json()
    failing_for = (utc_now() - datetime.fromisoformat(data["stale_since"])).total_seconds()
    assert failing_for < 60, "it counts from the first read that failed, not from the last that did not"
    assert data["problem"] == "refused"
    assert {row["state"] for row in data["view"]["streams"]} == {"healthy"}


def test_a_storage_that_hangs_is_told_once_a_read_has_timed_out(lake: Lake) -> None:
    lake.read_page("/")
    lake.moved += 600
    lake.storage.answers.clear()
    assert "has not answered" not in lake.harness.get("/").text
    shown: list[str] = []

    def look() -> bool:
        """Opens the page some seconds later: a thread begins to read when the machine lets it."""
        lake.moved += 9
        shown.append(lake.harness.get("/").text)
        return "has not answered" in shown[-1]

    eventually(look, "the storage does not answer")
    lake.storage.answers.set()
    text = shown[-1]

    assert [word for word in false_words(text) if word != "has not answered"] == []


def test_a_real_trouble_is_shown_after_a_pause(lake: Lake) -> None:
    lake.read_page("/")
    lake.moved += 600

    eventually(lambda: "HEARTBEAT_STALE" in lake.harness.get("/").text, "the streams really are silent")
    assert "HEALTH_SILENT" in lake.harness.get("/").text


def test_a_slow_storage_with_many_keys_shows_a_page_in_the_end(lake: Lake) -> None:
    """Reads may need longer than a copy may be old: then the page is that of the time of its data."""
    lake.harness.get("/")
    for _ in range(3):
        lake.storage.answers.clear()
        lake.harness.get("/")
        lake.pass_time(7)
        lake.pass_time(80)
        lake.storage.answers.set()
        time.sleep(0.1)
    lake.moved += 40

    shown = json.loads(lake.harness.get("/?format=json").text)
    assert "view" in shown


@pytest.mark.parametrize("route", ["/", "/streams/games"])
def test_of_processes_that_were_never_read_before_an_outage_nothing_is_said(lake: Lake, route: str) -> None:
    lake.storage.failure = "nobody answers"

    page = lake.read_page(route).text

    assert "CONTROL_UNREADABLE" in page
    assert "</span> unknown" in page
    assert "</span> unhealthy" not in page
    assert ">restart<" not in page


def test_nothing_is_read_ahead_while_nobody_opens_pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(page_builder, "_IDLE_SECONDS", 0.3)
    records = CachedObjects(lambda: LocalObjects(tmp_path))
    builder = page_builder.PageBuilder(records=records, catalog=CatalogCache())
    reads: list[float] = []

    def read_ahead() -> bool:
        reads.append(time.monotonic())
        return True

    monkeypatch.setattr(builder, "read_ahead", read_ahead)

    def pause(seconds: float) -> None:
        time.sleep(0.02)

    reader = threading.Thread(target=page_builder.keep_read, args=(builder,), kwargs={"sleep": pause}, daemon=True)
    reader.start()
    eventually(lambda: bool(reads) and time.monotonic() - reads[-1] > 0.3, "it goes on reading for nobody")
    before = len(reads)
    assert before > 1, "it reads once the process has started"

    builder.note_reader()
    eventually(lambda: len(reads) > before, "a reader has come")
