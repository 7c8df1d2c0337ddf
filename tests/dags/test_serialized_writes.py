"""An Airflow with SQLite serializes writing requests, and a scheduler with a continuous task ends."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from collections.abc import Coroutine
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from deltaworks.airflow.executor import SerializedWrites, middlewares_for_database

WRITES = ("PATCH", "/api/v2/dags/games__stream"), ("PUT", "/execution/task-instances/1/heartbeat"), ("POST", "/ui/x")
PASSING = ("GET", "/api/v2/dags"), ("POST", "/deltaworks/console/actions"), ("POST", "/auth/token")


class FakeAirflow:
    """An application that records active requests and sent bodies; it blocks while `held` is set."""

    def __init__(self) -> None:
        self.under_way = self.most_under_way = 0
        self.held = asyncio.Event()
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        self.bodies.append((await receive())["body"])
        await self.held.wait()
        self.under_way -= 1


def request(
    application: SerializedWrites, method: str, path: str, *parts: bytes, root_path: str = ""
) -> Coroutine[Any, Any, None]:
    """Sends a request with a chunked body; without a body it never completes."""
    messages = [
        {"type": "http.request", "body": part, "more_body": number < len(parts)}
        for number, part in enumerate(parts, start=1)
    ]

    async def receive() -> Message:
        if messages:
            return messages.pop(0)
        return await asyncio.Future()

    async def send(message: Message) -> None:
        pass

    return application({"type": "http", "method": method, "path": path, "root_path": root_path}, receive, send)


async def concurrent_requests(airflow: FakeAirflow, requests: list[Coroutine[Any, Any, None]]) -> int:
    """Returns how many of the requests reach Airflow at the same time."""
    tasks = [asyncio.create_task(one) for one in requests]
    for _ in range(20):
        await asyncio.sleep(0)
    most = airflow.under_way
    airflow.held.set()
    await asyncio.gather(*tasks)
    return most


@pytest.mark.parametrize(("requests", "at_once"), [(WRITES, 1), (PASSING, 3), ((*WRITES, *PASSING), 4)])
def test_one_writing_request_is_active_at_a_time(requests: tuple[tuple[str, str], ...], at_once: int) -> None:
    async def run() -> tuple[int, int]:
        airflow = FakeAirflow()
        application = SerializedWrites(airflow)
        most = await concurrent_requests(airflow, [request(application, *one, b"{}") for one in requests])
        return most, len(airflow.bodies)

    assert asyncio.run(run()) == (at_once, len(requests))


def test_paths_are_matched_with_or_without_the_prefix() -> None:
    async def run() -> int:
        airflow = FakeAirflow()
        application = SerializedWrites(airflow)
        (method, path), (other, bare) = ("PATCH", "/air/api/v2/dags"), ("POST", "/execution/x")
        asked = [
            request(application, method, path, b"{}", root_path="/air"),
            request(application, other, bare, b"{}", root_path="/air"),
        ]
        return await concurrent_requests(airflow, asked)

    assert asyncio.run(run()) == 1


def test_a_request_without_a_body_blocks_no_other() -> None:
    async def run() -> list[bytes]:
        airflow = FakeAirflow()
        application = SerializedWrites(airflow)
        slow = asyncio.create_task(request(application, *WRITES[0]))
        await asyncio.sleep(0)
        await concurrent_requests(airflow, [request(application, *WRITES[1], b"{}")])
        slow.cancel()
        return airflow.bodies

    assert asyncio.run(run()) == [b"{}"]


def test_a_chunked_body_is_passed_unchanged() -> None:
    async def run() -> list[bytes]:
        got: list[bytes] = []

        async def airflow(scope: Scope, receive: Receive, send: Send) -> None:
            while (message := await receive()).get("more_body"):
                got.append(message["body"])
            got.append(message["body"])

        await request(SerializedWrites(airflow), *WRITES[0], b"a", b"b", b"c")
        return got

    assert asyncio.run(run()) == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("database", "registered"), [("sqlite:////home/airflow.db?timeout=60", 1), ("postgresql+psycopg2://a:b@db/c", 0)]
)
def test_only_sqlite_gets_the_middleware(database: str, registered: int) -> None:
    assert len(middlewares_for_database(database)) == registered


@pytest.mark.parametrize("off", [False, True], ids=["protected", "without"])
def test_an_executor_ends_with_a_continuous_task(off: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.executors.local_executor import LocalExecutor as AirflowsExecutor

    from deltaworks.airflow.executor import GRACE_VARIABLE, LocalExecutor

    monkeypatch.setenv(GRACE_VARIABLE, "3")
    executor = AirflowsExecutor(parallelism=2) if off else LocalExecutor(parallelism=2)
    executor.start()
    endless = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    endless.start()
    assert endless.pid is not None
    executor.workers[endless.pid] = endless
    ending = threading.Thread(target=executor.end, daemon=True)
    ending.start()

    ending.join(6 if off else 120)

    assert ending.is_alive() == off
    if off:
        endless.kill()
        ending.join(120)
    assert not ending.is_alive()


def test_an_executor_starts_workers_only_for_tasks_that_keep_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    from deltaworks.airflow.executor import LocalExecutor

    executor = LocalExecutor(parallelism=3)
    started: list[int] = []
    monkeypatch.setattr(executor, "_spawn_worker", lambda: started.append(1))
    executor.start()
    assert started == [], "nothing waits"

    def check(waiting: int) -> int:
        before = len(started)
        with executor._unread_messages:
            executor._unread_messages.value = waiting
        executor._check_workers()
        return len(started) - before

    executor.activity_queue.put(None)
    assert [check(2), check(2)] == [0, 2], "they have waited since the last check"
    assert [check(0), check(1), check(0)] == [0, 0, 0], "an idle worker has taken it"
    assert [check(9), check(9)] == [0, 3], "at most as many as may run"
    executor.activity_queue.close()
    executor.result_queue.close()
