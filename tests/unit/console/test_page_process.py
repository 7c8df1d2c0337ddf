"""The page process renders the same pages as the host, for the same people, and its crashes do not affect the host."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio
import httpx2
import pytest

from deltaworks.console.console import DOCUMENT_THREADS, THREADS
from deltaworks.console.page_process import PageProcess
from tests.console_harness import ConsoleHarness, console_harness
from tests.dags.airflow_project import write_project
from tests.waiting import eventually


@contextlib.contextmanager
def running_page_process() -> Iterator[PageProcess]:
    process = PageProcess(start_seconds=60)
    try:
        yield process
    finally:
        process.close()


@pytest.fixture
def page_process() -> Iterator[PageProcess]:
    with running_page_process() as process:
        yield process


@pytest.fixture
def remote_harness(harness: ConsoleHarness, page_process: PageProcess) -> ConsoleHarness:
    """The console of `harness` whose pages are rendered by a page process."""
    return console_harness(harness.catalog.root, renderer=page_process)


@dataclass(frozen=True, slots=True)
class Consoles:
    """Two consoles over one project: its pages are rendered here, and by a page process."""

    here: ConsoleHarness
    remote: ConsoleHarness


@pytest.fixture(scope="module")
def consoles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consoles]:
    """Consoles of tests that change nothing; a page process takes seconds to start."""
    project = write_project(tmp_path_factory.mktemp("consoles") / "project")
    with pytest.MonkeyPatch.context() as patched, running_page_process() as process:
        patched.setenv("DELTAWORKS_PROJECT", str(project))
        patched.setenv("DELTAWORKS_ENVIRONMENT", "local")
        here = console_harness(project)
        declare_dashboard(here)
        remote = console_harness(project, renderer=process)
        # The process has the variables of its start.
        assert remote.get("/").status_code == 200
        yield Consoles(here, remote)


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


def test_a_current_copy_gets_304_and_other_requests_a_compressed_page(consoles: Consoles) -> None:
    remote_harness = consoles.remote
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


def test_a_process_that_is_starting_shows_a_page_that_comes_back(harness: ConsoleHarness) -> None:
    process = PageProcess(start_seconds=0)
    slow = console_harness(harness.catalog.root, renderer=process)
    first, poll = slow.get("/"), slow.get("/?fragment=1")

    assert (first.status_code, first.headers["refresh"]) == (200, "1")
    assert "Still reading" in first.text
    assert poll.status_code == 204
    eventually(lambda: "Streams" in slow.get("/").text, "it has started")
    process.close()


def test_a_crashed_page_process_is_restarted_and_no_page_is_missing(
    remote_harness: ConsoleHarness, page_process: PageProcess
) -> None:
    assert remote_harness.get("/").status_code == 200
    for end in (signal.SIGKILL, signal.SIGTERM):
        before = pid_of(page_process)
        os.kill(before, end)

        assert [remote_harness.get("/").status_code for _ in range(3)] == [200] * 3, end
        assert pid_of(page_process) != before, end


DASHBOARD = """\
dashboards:
  - {name: noc, title: Operations, panels: [{title: Events, chart: number, y: n, sql: panels/events.sql}]}
"""


def declare_dashboard(harness: ConsoleHarness) -> None:
    folder = harness.catalog.root / "include" / "pipelines" / "games"
    (folder / "panels").mkdir()
    (folder / "panels" / "events.sql").write_text("SELECT 1 AS n")
    (folder / "pipeline.yaml").write_text((folder / "pipeline.yaml").read_text() + DASHBOARD)


def process_with_reads(program: Path) -> PageProcess:
    """Returns a page process whose table reads run another program."""
    code = (
        "import sys; from deltaworks.console import page_process, table_reads; "
        f"table_reads.read_tables.__kwdefaults__['command'] = (sys.executable, {str(program)!r}); "
        "page_process.main(sys.argv[1:])"
    )
    return PageProcess(command=(sys.executable, "-c", code), start_seconds=60)


def test_a_dashboard_is_drawn_by_a_child_of_the_page_process(consoles: Consoles) -> None:
    remote_harness = consoles.remote
    page = "/dashboards/games/noc?from=2026-03-01&to=2026-03-02"

    shown, listed = remote_harness.get(page), remote_harness.get("/dashboards")

    assert (shown.status_code, "Operations" in shown.text) == (200, True), shown.text
    assert "style-src 'unsafe-inline'" in shown.headers["content-security-policy"]
    assert "hx-get" not in shown.text, "a fixed time span stays as it is"
    current = remote_harness.get("/dashboards/games/noc").text
    script = re.search(r'src="../..(/assets/[0-9a-f]+/htmx.min.js)"', current)
    assert script is not None
    assert (remote_harness.get(script[1]).status_code, 'hx-trigger="every 60s"' in current) == (200, True)
    assert 'href="/dashboards/games/noc"' in listed.text
    assert remote_harness.get(page, by="eve").status_code == 404
    assert remote_harness.get("/dashboards/games/noc?from=yesterday").status_code == 400


def test_a_crash_while_a_dashboard_is_drawn_affects_no_other_page(harness: ConsoleHarness, tmp_path: Path) -> None:
    declare_dashboard(harness)
    crash = tmp_path / "reads.py"
    process = process_with_reads(crash)
    try:
        console = console_harness(harness.catalog.root, renderer=process)
        console.get("/")
        pid = pid_of(process)
        for day, end in enumerate(("os.abort()", "os.kill(os.getpid(), 9)", "print('{')"), start=1):
            crash.write_text(f"import os\n{end}\n")

            answer = console.get(f"/dashboards/games/noc?from=2026-03-0{day}&to=2026-03-0{day + 1}")

            assert (answer.status_code, "ended with exit code" in answer.text) == (500, True), end
            assert console.get("/").status_code == 200
            assert pid_of(process) == pid, "the page process has not ended"
    finally:
        process.close()


def test_pages_do_not_wait_for_documents(harness: ConsoleHarness, tmp_path: Path) -> None:
    declare_dashboard(harness)
    begun, go = tmp_path / "begun", tmp_path / "go"
    slow = tmp_path / "reads.py"
    slow.write_text(
        f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\n"
        f'while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\nprint(\'{{"document": "drawn"}}\')\n'
    )
    process = process_with_reads(slow)
    console = console_harness(harness.catalog.root, renderer=process)

    async def read_pages() -> tuple[list[int], set[str]]:
        drawn: set[str] = set()
        transport = httpx2.ASGITransport(app=console.client.app)
        headers = {"X-Person": "ada"}
        async with httpx2.AsyncClient(transport=transport, base_url="http://t", headers=headers, timeout=60) as client:

            async def read_dashboard() -> None:
                drawn.add((await client.get("/dashboards/games/noc")).text)

            async with anyio.create_task_group() as group:
                for _ in range(DOCUMENT_THREADS + 2):
                    group.start_soon(read_dashboard)
                with anyio.fail_after(60):
                    while not begun.exists():
                        await anyio.sleep(0.01)
                    pages = [(await client.get("/")).status_code for _ in range(2 * THREADS)]
                go.touch()
        return pages, drawn

    try:
        assert anyio.run(read_pages) == ([200] * 2 * THREADS, {"drawn"})
    finally:
        process.close()


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
    for idle in worker.idle.values():
        while not idle.empty():
            idle.get().connection.close()

    eventually(lambda: worker.process.poll() == 0, "it ends once all sockets are closed")


def test_a_failed_render_fails_the_request_with_its_reason(
    harness: ConsoleHarness, page_process: PageProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The process has this variable of its start, and finds no project there.
    monkeypatch.setenv("DELTAWORKS_PROJECT", "/no/such/project")
    console = console_harness(harness.catalog.root, renderer=page_process)

    with pytest.raises(RuntimeError, match="could not be rendered"):
        console.get("/")
