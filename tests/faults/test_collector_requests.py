"""The collector's HTTP server and spool as processes: killed, stopped, on a full disk, with stalled clients."""

from __future__ import annotations

import json
import random
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.collector_process import CollectorProcess, declaration

CLIENTS = 8


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Callable[..., CollectorProcess]]:
    """Makes collectors and ends them after the test."""
    with ExitStack() as stack:

        def make(declared: dict[str, Any] | None = None, **more: Any) -> CollectorProcess:
            process = CollectorProcess(tmp_path, declared, **more)
            stack.callback(process.kill)
            return process

        yield make


class Burst:
    """Clients that send one event per request as fast as they can, and record those answered with 200."""

    def __init__(self, collector: CollectorProcess, *, name: str = "") -> None:
        self._name = name
        self.taken: set[str] = set()
        self.refused: list[tuple[float, int]] = []
        self.failures: list[tuple[float, str]] = []
        self._collector = collector
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _send(self, client_number: int) -> None:
        number = 0
        client = self._collector.client()
        while not self._stop.is_set():
            name, number = f"{self._name}{client_number}-{number}", number + 1
            try:
                answer = client.post("/v1/track", json={"messageId": name})
            except httpx2.TransportError as error:
                self.failures.append((time.monotonic(), repr(error)))
                time.sleep(0.02)
                continue
            if answer.status_code == 200:
                self.taken.add(name)
            else:
                self.refused.append((time.monotonic(), answer.status_code))

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def ids(events: list[Any]) -> list[str]:
    return [event["_collector"]["id"] for event in events]


def numbers(events: list[Any]) -> list[int]:
    return [event["_collector"]["seq"] for event in events]


def test_every_acknowledged_event_survives_kill_9(collector: Callable[..., CollectorProcess], seed: int) -> None:
    chance, taken = random.Random(seed), set()
    process = collector(declaration(spool={"segment_bytes": 20_000}))
    for life in range(5):
        process.start()
        burst = Burst(process, name=f"{life}-")
        until(lambda taken_now=burst.taken: len(taken_now) > 10)
        time.sleep(chance.uniform(0, 0.5))
        process.kill()
        burst.end()
        taken |= burst.taken

    events = process.spooled_events()

    assert len(taken) > 50
    assert taken <= {*ids(events)}
    assert numbers(events) == list(range(1, len(events) + 1)), "numbers have no gap over all lives"


def test_sigterm_in_a_burst_loses_no_request_while_load_balancers_switch(
    collector: Callable[..., CollectorProcess],
) -> None:
    process = collector(declaration(limits={"drain_seconds": 15})).start()
    burst = Burst(process)
    until(lambda: len(burst.taken) > 10)
    assert httpx2.get(f"{process.url}/ready").status_code == 200

    assert process.process is not None
    process.process.terminate()
    until(lambda: httpx2.get(f"{process.url}/ready").status_code == 503)
    answer = process.client().post("/v1/track", json={"messageId": "late"})
    before = len(burst.taken)
    until(lambda: len(burst.taken) > before + 10)
    looked = time.monotonic()
    code = process.process.wait(timeout=90)
    burst.end()

    assert (answer.status_code, answer.headers["connection"]) == (200, "close")
    assert [failure for failure in burst.failures if failure[0] < looked] == []
    assert code == 0
    assert burst.taken | {"late"} <= {*ids(process.spooled_events())}


def until(holds: Callable[[], bool]) -> None:
    """Waits until a condition holds."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_without_the_drain_time_requests_would_meet_a_closed_port(
    collector: Callable[..., CollectorProcess],
) -> None:
    process = collector(declaration(limits={"drain_seconds": 0})).start()
    burst = Burst(process)
    until(lambda: len(burst.taken) > 10)
    assert process.terminate() == 0
    until(lambda: burst.failures != [])
    burst.end()

    assert burst.taken <= {*ids(process.spooled_events())}, "what was answered is there all the same"


def test_a_full_disk_rejects_requests_and_keeps_acknowledged_events(collector: Callable[..., CollectorProcess]) -> None:
    process = collector().start()
    assert process.process is not None
    resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, (30_000, 30_000))
    client, taken, answers = process.client(), [], []
    for number in range(120):
        answer = client.post("/v1/track", json={"messageId": str(number), "padding": "x" * 300})
        answers.append((answer.status_code, answer.json().get("code")))
        if answer.status_code == 200:
            taken.append(str(number))
    small = client.post("/v1/track", json={"messageId": "small"})
    metrics = httpx2.get(process.metrics_url).text
    process.terminate()

    assert answers[0] == (200, None)
    assert answers[-1] == (503, "disk")
    assert ids(process.spooled_events()) == [*taken, *(["small"] if small.status_code == 200 else [])]
    assert 'deltaworks_collector_requests_total{code="disk",status="503"}' in metrics


def test_a_full_quota_rejects_requests_and_readiness_reports_it(collector: Callable[..., CollectorProcess]) -> None:
    process = collector(declaration(spool={"max_bytes": 20_000})).start()
    client = process.client()
    statuses = [client.post("/v1/track", json={"padding": "x" * 500}).status_code for _ in range(60)]
    ready = client.get("/ready")
    health = client.get("/health")
    process.terminate()

    assert statuses[0] == 200
    assert statuses[-1] == 503
    assert (ready.status_code, ready.json()["code"], health.status_code) == (503, "spool_full", 200)
    assert len(process.spooled_events()) == statuses.count(200)


def test_slow_bodies_and_idle_sockets_are_closed_and_block_no_other_request(
    collector: Callable[..., CollectorProcess],
) -> None:
    process = collector(declaration(limits={"body_seconds": 2, "connections": 400})).start()
    address = ("127.0.0.1", int(process.url.rpartition(":")[2]))
    silent = [socket.create_connection(address) for _ in range(300)]
    slow = [socket.create_connection(address) for _ in range(50)]
    head = b"POST /v1/track?writeKey=key+of+a+test HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
    for connection in slow:
        connection.sendall(head)
    client = process.client()
    others = [client.post("/v1/track", json={"n": number}).status_code for number in range(50)]
    answers = [answer_of(connection) for connection in slow]
    closed = [answer_of(connection) for connection in silent]
    idle = [socket.create_connection(address) for _ in range(450)]
    ended = [answer_of(connection) for connection in idle[:20]]
    busy = []
    for _ in range(400):
        busy.append(socket.create_connection(address))
        busy[-1].sendall(head)
    time.sleep(0.3)
    more = [socket.create_connection(address) for _ in range(20)]
    turned_away = [answer for answer in map(answer_of, more) if answer]

    assert others == [200] * 50
    assert all(answer.startswith(b"HTTP/1.1 408") and b"slow_body" in answer for answer in answers)
    assert closed == [b""] * 300
    assert ended == [b""] * 20, "the longest idle ones make room"
    assert turned_away
    assert all(answer.startswith(b"HTTP/1.1 503") and b"retry-after" in answer for answer in turned_away)


def test_without_the_time_limit_a_slow_body_would_stay_open(collector: Callable[..., CollectorProcess]) -> None:
    process = collector(declaration(limits={"body_seconds": 600})).start()
    connection = socket.create_connection(("127.0.0.1", int(process.url.rpartition(":")[2])))
    connection.sendall(b"POST /v1/track?writeKey=key+of+a+test HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    connection.settimeout(5)

    with pytest.raises(TimeoutError):
        connection.recv(100)


def answer_of(connection: socket.socket) -> bytes:
    """Reads from a connection until the other end closes it."""
    connection.settimeout(30)
    pieces = []
    try:
        while piece := connection.recv(1000):
            pieces.append(piece)
    except ConnectionError:
        pass
    connection.close()
    return b"".join(pieces)


def test_two_consecutive_disk_failures_end_the_process_with_21(
    collector: Callable[..., CollectorProcess], tmp_path: Path
) -> None:
    entry = tmp_path / "failing.py"
    entry.write_text(
        "import errno, os, sys\n"
        "from collector import disk\n"
        "from collector.__main__ import main\n"
        "calls = []\n"
        "def fails(self):\n"
        "    calls.append(1)\n"
        "    if len(calls) > 6:\n"
        "        raise OSError(errno.EIO, 'input/output error')\n"
        "    os.fdatasync(self._descriptor)\n"
        "disk.LocalFile.sync = fails\n"
        "sys.exit(main())\n"
    )
    process = collector(entry=(str(entry),)).start()
    client, taken, problems = process.client(), [], []
    for number in range(50):
        try:
            answer = client.post("/v1/track", json={"messageId": str(number)})
        except httpx2.TransportError:
            break
        if answer.status_code == 200:
            taken.append(str(number))
        else:
            problems.append(answer.json()["code"])
    assert process.process is not None
    code = process.process.wait(timeout=60)
    assert process.process.stdout is not None
    line = process.process.stdout.read().splitlines()[-1]

    assert code == 21
    assert json.loads(line.removeprefix("DELTAWORKS_ERROR "))["condition"] == "SPOOL_FAILED"
    assert problems[:2] == ["disk", "disk"]
    assert ids(process.spooled_events()) == taken


def test_a_second_process_cannot_lock_the_spool(collector: Callable[..., CollectorProcess]) -> None:
    process = collector().start()

    second = process.launch()
    output, _ = second.communicate(timeout=60)

    assert second.returncode == 20
    assert json.loads(output.removeprefix("DELTAWORKS_ERROR "))["condition"] == "SPOOL_LOCKED"
    assert process.client().get("/health").status_code == 200


def test_an_invalid_declaration_is_rejected_with_file_line_and_key(
    collector: Callable[..., CollectorProcess], tmp_path: Path
) -> None:
    process = collector(declaration(spol={"ack": "spool"}))
    ended = process.launch()
    output, _ = ended.communicate(timeout=60)

    error = json.loads(output.removeprefix("DELTAWORKS_ERROR "))
    assert (ended.returncode, error["condition"]) == (10, "SPEC_INVALID")
    assert "edge.yaml:1: spol: unknown key 'spol'; did you mean 'spool'?" in error["message"]
