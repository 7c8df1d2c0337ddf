"""The page process renders the same pages as the host, for the same people, and its crashes do not affect the host."""

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
def page_process() -> Iterator[PageProcess]:
    process = PageProcess()
    yield process
    process.close()


@pytest.fixture
def remote_harness(harness: ConsoleHarness, page_process: PageProcess) -> ConsoleHarness:
    """The console of `harness` whose pages are rendered by a page process."""
    return console_harness(harness.catalog.root, renderer=page_process)


def pid_of(page_process: PageProcess) -> int:
    worker = page_process._worker
    assert worker is not None
    return worker.process.pid


def test_the_page_process_and_the_host_render_the_same_pages_for_every_person(
    harness: ConsoleHarness, remote_harness: ConsoleHarness
) -> None:
    harness.write_heartbeat("games")
    pages = ("/", "/streams/games", "/tables", "/alerts", "/dag/games__stream", "/lineage", "/costs", "/streams/none")
    for by in ("ada", "vic", "eve"):
        for page in pages:
            here, there = (one.get(f"{page}?format=json", by=by) for one in (harness, remote_harness))

            assert there.status_code == here.status_code
            assert there.json() == here.json(), (page, by)
            shown = remote_harness.get(page, by=by)
            assert (shown.status_code, shown.headers["content-type"]) == (here.status_code, "text/html; charset=utf-8")
            assert "frame-ancestors 'self'" in shown.headers["content-security-policy"]
    assert "games" not in remote_harness.get("/", by="eve").text, "whoever may not see it is shown none of it"


def test_a_current_copy_gets_304_and_other_requests_a_compressed_page(
    harness: ConsoleHarness, remote_harness: ConsoleHarness
) -> None:
    first = remote_harness.get("/", accept_encoding="gzip")
    assert first.headers["content-encoding"] == "gzip"
    assert first.headers["vary"] == "Accept-Encoding"
    plain = remote_harness.get("/", accept_encoding="identity")
    assert "content-encoding" not in plain.headers
    assert first.text[:200] == plain.text[:200]

    again = remote_harness.get("/", if_none_match=first.headers["etag"])

    assert (again.status_code, again.content) == (304, b"")
    assert remote_harness.get("/", by="vic", if_none_match=first.headers["etag"]).status_code == 200


def test_a_revoked_right_applies_to_the_next_page(harness: ConsoleHarness, remote_harness: ConsoleHarness) -> None:
    harness.write_heartbeat("games")
    assert {row["name"] for row in remote_harness.view("/")["streams"]} == {"edits", "games"}

    remote_harness.people["ada"] = remote_harness.people["eve"]

    assert {row["name"] for row in remote_harness.view("/")["streams"]} == {"edits"}
    assert {row["may_restart"] for row in remote_harness.view("/")["streams"]} == {False}


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_crashed_page_process_is_restarted_and_no_page_is_missing(
    remote_harness: ConsoleHarness, page_process: PageProcess, end: signal.Signals
) -> None:
    assert remote_harness.get("/").status_code == 200
    before = pid_of(page_process)
    os.kill(before, end)

    assert [remote_harness.get("/").status_code for _ in range(3)] == [200] * 3
    assert pid_of(page_process) != before


@pytest.mark.parametrize("code", ["import time; time.sleep(60)", "raise SystemExit(3)", "import os; os.abort()"])
def test_the_host_renders_what_the_page_process_does_not(harness: ConsoleHarness, code: str) -> None:
    process = PageProcess(command=(sys.executable, "-c", code), deadline_seconds=0.5)
    try:
        console = console_harness(harness.catalog.root, renderer=process)

        assert [console.get("/").status_code for _ in range(4)] == [200] * 4
        assert len(process._crashes) <= 3, "it is not started for ever"
    finally:
        process.close()


def test_the_host_renders_pages_if_the_program_is_missing(harness: ConsoleHarness, tmp_path: Path) -> None:
    process = PageProcess(command=(str(tmp_path / "none"),))

    assert console_harness(harness.catalog.root, renderer=process).get("/").status_code == 200


def test_the_process_ends_with_its_host(remote_harness: ConsoleHarness, page_process: PageProcess) -> None:
    remote_harness.get("/")
    worker = page_process._worker
    assert worker is not None
    while not worker.idle.empty():
        worker.idle.get().close()

    eventually(lambda: worker.process.poll() == 0, "it ends once all sockets are closed")


def test_a_failed_render_fails_the_request_with_its_reason(
    harness: ConsoleHarness, page_process: PageProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The process has this variable of its start, and finds no project there.
    monkeypatch.setenv("DELTAWORKS_PROJECT", "/no/such/project")
    console = console_harness(harness.catalog.root, renderer=page_process)

    with pytest.raises(RuntimeError, match="could not be rendered"):
        console.get("/")
