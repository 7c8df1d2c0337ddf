"""Stops Airflow's API server for more than half a minute while a stream runs.

With the stack's setting the stream is unaffected; without it Airflow kills the task, no writer remains, and the stream
restarts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.airflow.settings import airflow_settings
from sandbox.stack import environment
from sandbox.stack.stack import up
from sandbox.stack.stack_programs import API_SERVER
from sandbox.stack.supervisor import Supervisor
from tests.integration.airflow_harness import AirflowHarness, alive, ancestors, running_harness

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
