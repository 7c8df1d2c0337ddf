"""Streams of widgets over a real server: one source for all readers, nothing twice, nothing missed, bounded."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pyarrow as pa
import pytest
import uvicorn
from deltalake import write_deltalake

from deltaworks.console.widget_streams import StreamLimits, WidgetStreams
from deltaworks.control import paths
from tests.console_harness import ConsoleHarness, console_harness
from tests.waiting import PATIENCE_SECONDS, eventually

EVENTS = "/widgets/games/popular/events"
VIEWS = """\
views:
  - {name: popular, sql: popular.sql, reads: [events], widget: {title: Most popular now, every_seconds: 1}}
  - {name: other, sql: popular.sql, reads: [events], widget: {}}
  - {name: internal, sql: popular.sql, reads: [events]}
"""
#: Ends a test whose event never comes. Comments arrive meanwhile, so that the timeout of the client would not.
STREAM_SECONDS = 60.0
#: Stands for the process that queries widgets: writes the lines of one file, and stores its input in another. At a line
#: `!` its first run ends while it reads `popular`.
PROGRAM = """\
import os, pathlib, sys, threading, time
told, heard = map(pathlib.Path, sys.argv[1:3])
def hear():
    for line in sys.stdin:
        with heard.open("a") as file: file.write(line)
thread = threading.Thread(target=hear)
thread.start()
count = 0
while thread.is_alive():
    lines = told.read_text().split("\\n")[:-1]
    for line in lines[count:]:
        if line != "!": print(line, flush=True)
        elif heard.read_text().count("+ games popular") == 1:
            os.pwrite(int(sys.argv[3]), b"games popular", 0)
            os._exit(3)
    count = len(lines)
    time.sleep(0.01)
"""


@dataclass
class Source:
    """The messages that the process writes, and what it was told."""

    told: Path
    heard: Path

    def send(self, number: int, *, view: str = "popular", text: str = "") -> None:
        data = {"columns": [], "rows": [{"n": number, "text": text}], "is_truncated": False, "at": ""}
        self.write({"pipeline": "games", "view": view, "id": f"v{number}", "data": data})

    def write(self, message: dict[str, Any]) -> None:
        with self.told.open("a") as file:
            file.write(json.dumps(message) + "\n")

    @property
    def lines(self) -> list[str]:
        """The lines of the process's input without the seconds until the first read."""
        return [line.rpartition(" ")[0] for line in self.heard.read_text().splitlines()]


@dataclass
class Event:
    id: str
    data: dict[str, Any]

    @property
    def number(self) -> int:
        return int(self.data["rows"][0]["n"])


@dataclass
class Stream:
    """A client of one stream."""

    response: httpx2.Response
    lines: Iterator[str]

    def blocks(self) -> Iterator[list[str]]:
        block: list[str] = []
        for line in self.lines:
            if line:
                block.append(line)
            else:
                yield block
                block = []

    def next(self) -> Event:
        deadline = time.monotonic() + STREAM_SECONDS
        for block in self.blocks():
            assert time.monotonic() < deadline, "no event"
            fields = dict(line.split(": ", 1) for line in block if not line.startswith(":"))
            if "data" in fields:
                return Event(fields.get("id", ""), json.loads(fields["data"]))
        raise EOFError


@contextmanager
def serving(app: Any, sockets: list[socket.socket] | None = None) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, lifespan="off"))
    listener = (sockets or [socket.create_server(("127.0.0.1", 0))])[0]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(STREAM_SECONDS)
        listener.close()
        assert not thread.is_alive(), "the server stops"


@contextmanager
def streaming(address: str, *, by: str = "ada", last: str = "", path: str = EVENTS) -> Iterator[Stream]:
    headers = {"X-Person": by} | ({"Last-Event-ID": last} if last else {})
    with (
        httpx2.Client(base_url=address, headers=headers, timeout=STREAM_SECONDS) as client,
        client.stream("GET", path) as response,
    ):
        # A caller may hold no reference, and the response is closed with its iterator.
        stream = Stream(response, response.iter_lines())
        yield stream


def declare(harness: ConsoleHarness) -> Path:
    folder = harness.catalog.root / "include" / "pipelines" / "games"
    (folder / "pipeline.yaml").write_text((folder / "pipeline.yaml").read_text() + VIEWS)
    (folder / "popular.sql").write_text("SELECT event_name, count(*) AS n FROM events GROUP BY 1 ORDER BY n DESC, 1\n")
    return harness.catalog.root


@pytest.fixture
def source(tmp_path: Path) -> Source:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "told").touch()
    (tmp_path / "heard").touch()
    return Source(tmp_path / "told", tmp_path / "heard")


def streams_of(source: Source, **limits: Any) -> WidgetStreams:
    program = source.told.parent / "program.py"
    command = (sys.executable, "-S", str(program), str(source.told), str(source.heard))
    return WidgetStreams(command=command, limits=StreamLimits(**limits))


@contextmanager
def console(harness: ConsoleHarness, streams: WidgetStreams, **options: Any) -> Iterator[str]:
    app = console_harness(declare(harness), streams=streams).client.app
    try:
        with serving(app, **options) as address:
            yield address
    finally:
        eventually(lambda: streams.readers == 0, "no reader is left over")
        streams.close()


def test_many_readers_share_one_source_and_get_every_version_once(harness: ConsoleHarness, source: Source) -> None:
    streams = streams_of(source)
    source.send(1)
    with console(harness, streams) as address, ExitStack() as stack:
        readers = [stack.enter_context(streaming(address)) for _ in range(20)]
        assert {reader.next().number for reader in readers} == {1}
        source.send(2)
        assert {(event.number, event.id) for event in [reader.next() for reader in readers]} == {(2, "v2")}
        assert source.lines == ["+ games popular"], "one query for all readers"
        late = stack.enter_context(streaming(address))
        assert late.next().number == 2
        stack.close()
        eventually(lambda: source.lines == ["+ games popular", "- games popular"], "nobody reads, so nothing is read")


def test_the_stream_is_neither_stored_nor_open_to_scripts_of_others(harness: ConsoleHarness, source: Source) -> None:
    source.send(1)
    with console(harness, streams_of(source)) as address, streaming(address) as stream:
        headers = stream.response.headers
        assert stream.response.status_code == 200
        assert headers["content-type"].startswith("text/event-stream")
        assert headers["cache-control"] == "no-store"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert (headers["x-accel-buffering"], "content-length" in headers) == ("no", False)


def test_a_reader_that_returns_gets_nothing_twice_and_misses_nothing(harness: ConsoleHarness, source: Source) -> None:
    source.send(1)
    with console(harness, streams_of(source)) as address, streaming(address) as other:
        with streaming(address) as first:
            event = first.next()
        assert other.next().id == event.id
        with streaming(address, last=event.id) as second:
            source.send(2)
            assert second.next().number == 2, "the first version is not sent again"
        source.send(3)
        eventually(lambda: other.next().number == 3, "the other reader has it")
        with streaming(address, last="v2") as third:
            assert third.next().number == 3, "the change while nobody was there is not missed"


def test_rows_after_a_problem_are_sent_even_if_the_reader_had_them(harness: ConsoleHarness, source: Source) -> None:
    source.send(1)
    with console(harness, streams_of(source)) as address, streaming(address) as stream:
        assert stream.next().number == 1
        source.write({"pipeline": "games", "view": "popular", "problem": "no table"})
        assert stream.next().data == {"problem": "no table"}
        source.send(1)
        assert stream.next().number == 1


def test_heartbeats_are_comments(harness: ConsoleHarness, source: Source) -> None:
    with console(harness, streams_of(source, heartbeat_seconds=0.05)) as address, streaming(address) as stream:
        blocks = stream.blocks()
        assert [next(blocks) for _ in range(3)] == [["retry: 3000"], [":"], [":"]]


def test_open_streams_are_bounded_and_one_person_has_half_of_them(harness: ConsoleHarness, source: Source) -> None:
    source.send(1)
    streams = streams_of(source, max_readers=4)
    with console(harness, streams) as address, ExitStack() as stack:
        for by in ("ada", "ada", "vic", "vic"):
            assert stack.enter_context(streaming(address, by=by)).next().number == 1
            if by == "ada":
                continue
            refused = stack.enter_context(streaming(address, by="ada")).response
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "30")
        assert stack.enter_context(streaming(address, by="vic")).response.status_code == 503
        stack.close()
        eventually(lambda: streams.readers == 0, "places are free again")
        with streaming(address) as again:
            source.send(2)
            assert again.next().number == 2


def test_all_people_together_have_no_more_streams_than_the_bound(harness: ConsoleHarness, source: Source) -> None:
    source.send(1)
    with console(harness, streams_of(source, max_readers=1)) as address, streaming(address, by="ada") as stream:
        assert stream.next().number == 1
        with streaming(address, by="vic") as refused:
            assert refused.response.status_code == 503


def test_a_stream_ends_after_its_time_so_that_rights_are_checked_again(harness: ConsoleHarness, source: Source) -> None:
    source.send(1)
    with console(harness, streams_of(source, max_seconds=0.2)) as address, streaming(address) as stream:
        assert stream.next().number == 1
        with pytest.raises(EOFError):
            stream.next()


def test_a_slow_reader_is_disconnected_and_others_are_not(harness: ConsoleHarness, source: Source) -> None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    streams = streams_of(source, send_seconds=0.3)
    with console(harness, streams, sockets=[listener]) as address, streaming(address) as good:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(listener.getsockname())
        slow.sendall(f"GET {EVENTS} HTTP/1.1\r\nHost: t\r\nX-Person: ada\r\n\r\n".encode())
        eventually(lambda: streams.readers == 2, "both are there")
        number = 0
        while streams.readers == 2 and number < 200:
            number += 1
            source.send(number, text="x" * 60_000)
            assert good.next().number == number
        assert (streams.readers, number > 1) == (1, True)
        slow.close()


def test_a_crashed_process_is_restarted_for_its_readers(harness: ConsoleHarness, source: Source) -> None:
    streams = streams_of(source)
    source.send(1)
    with console(harness, streams) as address, streaming(address) as stream:
        assert stream.next().number == 1
        os.kill(streams.pid or 0, signal.SIGKILL)
        source.send(2)
        assert stream.next().number in (1, 2)
        assert source.lines == ["+ games popular", "+ games popular"]


def test_a_widget_that_ends_its_process_waits_and_others_are_read(harness: ConsoleHarness, source: Source) -> None:
    problem = {"problem": "The read of this widget ended its process (exit code 3). It is tried again in 5 minutes."}
    streams = streams_of(source)
    with console(harness, streams) as address, streaming(address, path="/widgets/games/other/events") as other:
        with streaming(address) as stream:
            source.send(1)
            assert stream.next().number == 1
            eventually(lambda: len(source.lines) == 2, "the process reads both")
            with source.told.open("a") as file:
                file.write("!\n")
            assert stream.next().data == problem
            source.told.write_text("")
            eventually(lambda: len(source.lines) == 4, "the next process reads both")
            waits = {line.split()[2]: float(line.split()[3]) for line in source.heard.read_text().splitlines()[2:]}
            assert (waits["popular"] > 200, waits["other"]) == (True, 0)
        eventually(lambda: source.lines[-1] == "- games popular", "nobody reads it")
        with streaming(address) as late:
            assert late.next().data == problem
        source.send(2, view="other")
        assert other.next().number == 2


def test_a_process_that_cannot_run_is_reported(harness: ConsoleHarness, source: Source) -> None:
    (source.told.parent / "program.py").write_text("raise SystemExit(7)")

    with console(harness, streams_of(source)) as address, streaming(address) as stream:
        assert "ended with exit code 7" in stream.next().data["problem"]


def test_who_may_read_a_stream(harness: ConsoleHarness, source: Source) -> None:
    # A stream that opens ends, so that the test does.
    app = console_harness(declare(harness), streams=streams_of(source, max_seconds=0.1)).client
    paths_refused = {"ada": ["internal", "none"], "eve": ["popular", "none"]}

    assert app.get(EVENTS).status_code == 401
    assert app.get(EVENTS, headers={"X-Person": "nobody"}).status_code == 403
    for by, names in paths_refused.items():
        for name in names:
            assert app.get(f"/widgets/games/{name}/events", headers={"X-Person": by}).status_code == 404
            assert app.get(f"/widgets/games/{name}", headers={"X-Person": by}).status_code == 404


def test_the_pages_list_and_show_widgets(harness: ConsoleHarness) -> None:
    shown = console_harness(declare(harness))

    assert [row["name"] for row in shown.view("/widgets")["widgets"]] == ["popular", "other"]
    assert shown.view("/widgets", by="eve")["widgets"] == []
    page = shown.get("/widgets/games/popular").text
    assert f'data-events="{EVENTS}"' in page
    script = re.search(r'src="(/assets/[0-9a-f]+/widget.js)"', page)
    assert script is not None
    assert "EventSource" in shown.get(script[1]).text


def test_a_change_of_the_lake_reaches_the_reader_and_the_server_stops_with_its_streams(
    harness: ConsoleHarness,
) -> None:
    root = declare(harness)
    uri = harness.catalog.environment.lake.uri(paths.table("games", "events"))
    write_deltalake(uri, pa.table({"event_name": ["a", "a", "b"]}))
    command = [sys.executable, "-m", "deltaworks.cli", "console", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        assert server.stdout is not None
        opened = re.search(r"(http://\S+)/open/(\S+)", server.stdout.readline())
        assert opened is not None, root
        with httpx2.Client(base_url=opened[1], timeout=STREAM_SECONDS) as client:
            eventually(lambda: _answers(client), "the server is up")
            client.get(f"/open/{opened[2]}")
            with client.stream("GET", EVENTS) as response:
                stream = Stream(response, response.iter_lines())
                first = stream.next()
                assert first.data["rows"] == [{"event_name": "a", "n": 2}, {"event_name": "b", "n": 1}]
                write_deltalake(uri, pa.table({"event_name": ["b", "b"]}), mode="append")
                second = stream.next()
                assert second.data["rows"] == [{"event_name": "b", "n": 3}, {"event_name": "a", "n": 2}]
                server.send_signal(signal.SIGTERM)
                with pytest.raises(EOFError):
                    stream.next()
        server.wait(PATIENCE_SECONDS)
    finally:
        server.kill()
        server.wait()


def _answers(client: httpx2.Client) -> bool:
    try:
        return client.get("/widgets").status_code == 401
    except httpx2.TransportError:
        time.sleep(0.2)
        return False
