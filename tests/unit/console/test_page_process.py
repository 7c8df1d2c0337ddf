"""Pages from a process apart are those that the host would make, for the same people, and the host outlives it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltaworks.console.page_process import PageProcess
from tests.console_harness import ConsoleHarness, console_harness
from tests.waiting import eventually


@pytest.fixture
def elsewhere() -> Iterator[PageProcess]:
    process = PageProcess()
    yield process
    process.close()


@pytest.fixture
def apart(harness: ConsoleHarness, elsewhere: PageProcess) -> ConsoleHarness:
    """The console of `harness` over the same project and objects, whose pages are made apart."""
    return console_harness(harness.catalog.root, renderer=elsewhere)


def pid_of(elsewhere: PageProcess) -> int:
    worker = elsewhere._worker
    assert worker is not None
    return worker.process.pid


def test_pages_made_apart_are_those_made_here_for_everybody(harness: ConsoleHarness, apart: ConsoleHarness) -> None:
    harness.write_heartbeat("games")
    pages = ("/", "/streams/games", "/tables", "/alerts", "/dag/stream__games", "/lineage", "/costs", "/streams/none")
    for by in ("ada", "vic", "eve"):
        for page in pages:
            here, there = (one.get(f"{page}?format=json", by=by) for one in (harness, apart))

            assert there.status_code == here.status_code
            assert there.json() == here.json(), (page, by)
            shown = apart.get(page, by=by)
            assert (shown.status_code, shown.headers["content-type"]) == (here.status_code, "text/html; charset=utf-8")
            assert "frame-ancestors 'self'" in shown.headers["content-security-policy"]
    assert "games" not in apart.get("/", by="eve").text, "whoever may not see it is shown none of it"


def test_who_has_the_newest_already_is_told_so_and_others_get_it_packed(
    harness: ConsoleHarness, apart: ConsoleHarness
) -> None:
    first = apart.get("/", accept_encoding="gzip")
    assert first.headers["content-encoding"] == "gzip"
    assert first.headers["vary"] == "Accept-Encoding"
    plain = apart.get("/", accept_encoding="identity")
    assert "content-encoding" not in plain.headers
    assert first.text[:200] == plain.text[:200]

    again = apart.get("/", if_none_match=first.headers["etag"])

    assert (again.status_code, again.content) == (304, b"")
    assert apart.get("/", by="vic", if_none_match=first.headers["etag"]).status_code == 200


def test_a_right_that_is_taken_away_is_gone_with_the_next_page(harness: ConsoleHarness, apart: ConsoleHarness) -> None:
    harness.write_heartbeat("games")
    assert {row["name"] for row in apart.view("/")["streams"]} == {"edits", "games"}

    apart.people["ada"] = apart.people["eve"]

    assert {row["name"] for row in apart.view("/")["streams"]} == {"edits"}
    assert {row["may_restart"] for row in apart.view("/")["streams"]} == {False}


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_died_is_started_again_and_no_page_is_missing(
    apart: ConsoleHarness, elsewhere: PageProcess, end: signal.Signals
) -> None:
    assert apart.get("/").status_code == 200
    before = pid_of(elsewhere)
    os.kill(before, end)

    assert [apart.get("/").status_code for _ in range(3)] == [200] * 3
    assert pid_of(elsewhere) != before


@pytest.mark.parametrize("code", ["import time; time.sleep(60)", "raise SystemExit(3)", "import os; os.abort()"])
def test_what_a_process_does_not_make_is_made_by_the_host(harness: ConsoleHarness, code: str) -> None:
    process = PageProcess(command=(sys.executable, "-c", code), deadline_seconds=0.5)
    try:
        console = console_harness(harness.catalog.root, renderer=process)

        assert [console.get("/").status_code for _ in range(4)] == [200] * 4
        assert len(process._crashes) <= 3, "it is not started for ever"
    finally:
        process.close()


def test_a_program_that_is_not_there_is_the_hosts_work(harness: ConsoleHarness, tmp_path: Path) -> None:
    process = PageProcess(command=(str(tmp_path / "none"),))

    assert console_harness(harness.catalog.root, renderer=process).get("/").status_code == 200


def test_the_process_ends_with_its_host(apart: ConsoleHarness, elsewhere: PageProcess) -> None:
    apart.get("/")
    worker = elsewhere._worker
    assert worker is not None
    while not worker.idle.empty():
        worker.idle.get().close()

    eventually(lambda: worker.process.poll() == 0, "it ends once all sockets are closed")


def test_a_page_that_fails_there_fails_here_with_its_reason(
    harness: ConsoleHarness, elsewhere: PageProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The process has this variable of its start, and finds no project there.
    monkeypatch.setenv("DELTAWORKS_PROJECT", "/no/such/project")
    console = console_harness(harness.catalog.root, renderer=elsewhere)

    with pytest.raises(RuntimeError, match="could not be rendered"):
        console.get("/")
