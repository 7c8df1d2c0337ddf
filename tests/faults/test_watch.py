"""Health checks under Airflow's processes: a hanging stream is restarted, a dead scheduler reported from outside.

Notifications are read from a queue. Without the stack's setting Airflow kills the task of a stream while the API server
is stopped; no writer remains, and the stream restarts.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from deltaworks.airflow.restarts import parse_restarts
from deltaworks.alerts.raising import alerts
from deltaworks.control import paths
from deltaworks.control.objects import open_objects
from sandbox.airflow.settings import airflow_settings
from sandbox.stack import environment
from sandbox.stack.stack import up
from sandbox.stack.stack_programs import API_SERVER, DEADMAN, SCHEDULER
from sandbox.stack.supervisor import Supervisor
from tests.integration.airflow_harness import AirflowHarness, alive, ancestors, running_harness, wait

#: Stale after twenty seconds, start time of sixty, checked each minute, and a slow start of the task.
WATCH = "health: {{stale_seconds: 20, start_seconds: 60, restarts_per_hour: {per_hour}}}\n"
PAGE_SECONDS = 150.0
RESTART_SECONDS = 150.0
#: 90 s are declared, checked each half minute.
DEADMAN_SECONDS = 150.0


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowHarness]:
    with running_harness(tmp_path_factory.mktemp("project"), more=WATCH.format(per_hour=3)) as harness:
        assert harness.queue
        yield harness


def stop_all(family: dict[str, int]) -> None:
    """Freezes driver and JVM: no process fails or ends, and the recorded progress stays valid."""
    for name in ("jvm", "driver"):
        os.kill(family[name], signal.SIGSTOP)


def end_all(family: dict[str, int]) -> None:
    """Kills the processes of a frozen stream."""
    for name in ("jvm", "driver"):
        if alive(family[name]):
            os.kill(family[name], signal.SIGKILL)


def told(harness: AirflowHarness, cause: str, kind: str) -> bool:
    return any((cause, kind) == (found, what) for found, _, what in harness.told())


def is_open(harness: AirflowHarness, cause: str) -> bool:
    """Whether the alert is raised. A second notification within minutes is suppressed."""
    found = alerts(open_objects(harness.catalog.environment.lake))
    return any(alert.cause == cause and alert.state.is_open for alert in found)


def await_looks(harness: AirflowHarness, count: int) -> None:
    """Waits until the health check has run this many more times."""
    seen = {harness.health_beat()}

    def looked() -> bool:
        seen.add(harness.health_beat())
        return len(seen) > count

    wait(looked, "the health check does not run", 150.0 * count)


@pytest.mark.timeout(520)
def test_a_stream_that_hangs_is_told_and_started_anew_once(
    harness: AirflowHarness, print_result: Callable[..., None], seed: int
) -> None:
    before = harness.await_progress(50)
    family = ancestors(before.pid)
    stop_all(family)
    began = time.monotonic()
    try:
        wait(lambda: told(harness, "STREAM_HUNG", "raised"), "nobody was told that the stream hangs", PAGE_SECONDS)
        page = time.monotonic() - began
        after = harness.await_progress(len(harness.rows()))
        back = time.monotonic() - began
        wait(lambda: told(harness, "STREAM_HUNG", "resolved"), "its end was not told", RESTART_SECONDS)
    finally:
        end_all(family)
    kinds = [kind for cause, _, kind in harness.told() if cause == "STREAM_HUNG"]
    sent, lost, doubled = harness.settle()

    print_result(
        "58 SIGSTOP of driver and JVM",
        "protected",
        f"seed {seed}",
        "s3proxy",
        f"ids {sent}",
        f"lost {lost}",
        f"doubled {doubled}",
        f"told after {page:.0f} s",
        f"back after {back:.0f} s",
        f"{after.epoch - before.epoch} new owner",
    )
    assert (lost, doubled) == (0, 0)
    assert kinds == ["raised", "resolved"]
    assert after.epoch == before.epoch + 1
    assert len(restarts_of(harness)) == 1


def restarts_of(harness: AirflowHarness) -> list[datetime]:
    """Returns when the health check restarted the stream."""
    found = open_objects(harness.catalog.environment.lake).get(paths.pipeline_control("clicks", "restarts.json"))
    return parse_restarts(found.data) if found else []


@pytest.mark.timeout(520)
def test_without_restarts_a_stream_that_hangs_stays_so(
    harness: AirflowHarness, print_result: Callable[..., None], seed: int
) -> None:
    harness.declare(WATCH.format(per_hour=0))
    harness.send()
    before = harness.await_progress(max(50, len(harness.rows())))
    family = ancestors(before.pid)
    counted = len(restarts_of(harness))
    stop_all(family)
    began = time.monotonic()
    try:
        wait(
            lambda: is_open(harness, "STREAM_HUNG"), "the health check does not see that the stream hangs", PAGE_SECONDS
        )
        await_looks(harness, 2)
        hung = time.monotonic() - began
        beat = harness.beat()
        alive_still = {name: alive(family[name]) for name in ("driver", "jvm")}
    finally:
        end_all(family)
        harness.declare(WATCH.format(per_hour=3))

    print_result(
        "58 SIGSTOP of driver and JVM", "WITHOUT restarts", f"seed {seed}", f"hung for {hung:.0f} s, to the end"
    )
    assert beat is not None
    assert (beat.pid, beat.epoch) == (before.pid, before.epoch)
    assert alive_still == {"driver": True, "jvm": True}
    assert len(restarts_of(harness)) == counted


@pytest.mark.timeout(520)
def test_a_dead_scheduler_is_told_by_something_that_is_not_airflow(
    harness: AirflowHarness, print_result: Callable[..., None], seed: int
) -> None:
    wait(lambda: harness.health_beat() is not None, "the health check never ran", 150)
    began = time.monotonic()
    with without_programs(harness, SCHEDULER):
        assert not told(harness, "HEALTH_SILENT", "raised")
        wait(lambda: told(harness, "HEALTH_SILENT", "raised"), "nobody told that nobody watches", DEADMAN_SECONDS)
        page = time.monotonic() - began
    wait(lambda: told(harness, "HEALTH_SILENT", "resolved"), "its return was not told", 150)
    back = time.monotonic() - began - page

    print_result(
        "63 scheduler dead", "protected", f"seed {seed}", f"told after {page:.0f} s", f"resolved {back:.0f} s later"
    )
    assert [kind for cause, _, kind in harness.told() if cause == "HEALTH_SILENT"] == ["raised", "resolved"]


@pytest.mark.timeout(520)
def test_without_the_dead_man_check_nobody_tells_of_a_dead_scheduler(
    harness: AirflowHarness, print_result: Callable[..., None], seed: int
) -> None:
    wait(lambda: harness.health_beat() is not None, "the health check never ran", 150)
    began, known = time.monotonic(), len(harness.told())
    with without_programs(harness, SCHEDULER, DEADMAN):
        while (silent := time.monotonic() - began) < DEADMAN_SECONDS:
            assert not is_open(harness, "HEALTH_SILENT")
            time.sleep(5)
        assert not [notification for notification in harness.told()[known:] if notification[0] == "HEALTH_SILENT"]

    print_result(
        "63 scheduler dead", "WITHOUT dead-man check", f"seed {seed}", f"nothing told for {silent:.0f} s, to the end"
    )


@contextmanager
def without_programs(harness: AirflowHarness, *programs: str) -> Iterator[None]:
    """Stops programs of the stack inside the block."""
    Supervisor(harness.home).stop(programs, seconds=45)
    try:
        yield
    finally:
        for program in programs:
            Supervisor(harness.home).start(program)


#: With its default, Airflow fails a task about half a minute after the API server has stopped.
OUTAGE_SECONDS = 75.0
LOOK_SECONDS = 1.0
SETTING = "AIRFLOW__WORKERS__MAX_FAILED_HEARTBEATS"


def take_away_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores Airflow's default limit of failed task heartbeats."""

    def without(*positional: object, **named: object) -> dict[str, str]:
        settings = airflow_settings(*positional, **named)  # type: ignore[arg-type]
        del settings[SETTING]
        return settings

    monkeypatch.setattr(environment, "airflow_settings", without)


def outage(harness: AirflowHarness, family: dict[str, int]) -> tuple[float | None, int]:
    """Stops and restarts the API server; returns after how many seconds the stream ended, and the landed rows."""
    rows = len(harness.rows())
    began = time.monotonic()
    gone: float | None = None
    Supervisor(harness.home).stop([API_SERVER], seconds=30)
    while (passed := time.monotonic() - began) < OUTAGE_SECONDS:
        if gone is None and not any(alive(family[name]) for name in ("driver", "jvm")):
            gone = passed
        time.sleep(LOOK_SECONDS)
    landed = len(harness.rows()) - rows
    up(home=harness.home)
    return gone, landed


@pytest.mark.parametrize("off", [False, True], ids=["protected", "without"])
def test_a_stream_lives_through_an_outage_of_the_api_server(
    tmp_path: Path, print_result: Callable[..., None], monkeypatch: pytest.MonkeyPatch, seed: int, off: bool
) -> None:
    if off:
        take_away_the_setting(monkeypatch)
    with running_harness(tmp_path / "project") as harness:
        before = harness.await_progress(100)
        gone, landed = outage(harness, ancestors(before.pid))
        returned = time.monotonic()
        after = harness.await_progress(len(harness.rows()))
        recovery = time.monotonic() - returned
        sent, lost, doubled = harness.settle()
        turns = harness.turns()

    ended = "the task lived" if gone is None else f"the task was killed after {gone:.0f} s"
    print_result(
        f"65 API server away for {OUTAGE_SECONDS:.0f} s",
        "WITHOUT max_failed_heartbeats" if off else "protected",
        f"seed {seed}",
        "s3proxy",
        f"ids {sent}",
        f"lost {lost}",
        f"doubled {doubled}",
        f"recovery {recovery:.1f} s",
        f"{ended}, {landed} rows landed meanwhile, {len(turns)} runs wrote",
    )
    assert (lost, doubled) == (0, 0)
    assert len(turns) == len(set(turns)), "a run wrote again after its successor had begun"
    assert (gone is not None) == off
    assert (after.pid != before.pid and after.epoch > before.epoch) == off
    assert off or landed >= 100
