"""The watch under Airflow's own processes: a stream that hangs is told and started anew although its last progress is
green, and a scheduler that is dead is told by something that is not Airflow. What was told is read from a queue."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deltaworks.local.programs import SCHEDULER
from deltaworks.local.supervision import Supervisor
from tests.integration.airflow_stage import Stage, alive, ancestors, running_stage, wait

#: Stale after two minutes, looked at each minute, and an Airflow that is slow to start a task.
PAGE_SECONDS = 270.0
RESTART_SECONDS = 240.0
#: Declared 90 s, looked at each half minute.
DEADMAN_SECONDS = 200.0


def stop_all(family: dict[str, int]) -> None:
    """Freeze driver and JVM: nothing fails, nothing ends, no progress is wrong."""
    for name in ("jvm", "driver"):
        os.kill(family[name], signal.SIGSTOP)


def end_all(family: dict[str, int]) -> None:
    """What is left of a frozen stream."""
    for name in ("jvm", "driver"):
        if alive(family[name]):
            os.kill(family[name], signal.SIGKILL)


def told(stage: Stage, cause: str, kind: str) -> bool:
    return any((cause, kind) == (found, what) for found, _, what in stage.told())


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("off", [False, True], ids=["protected", "without"])
def test_a_stream_that_hangs_is_told_and_started_anew(
    tmp_path: Path, tell_line: Callable[..., None], seed: int, off: bool
) -> None:
    more = "watch: {restarts_per_hour: 0}\n" if off else ""
    with running_stage(tmp_path / "project", more=more) as stage:
        assert stage.queue
        before = stage.await_progress(50)
        family = ancestors(before.pid)
        stop_all(family)
        began = time.monotonic()
        try:
            wait(lambda: told(stage, "STREAM_HUNG", "raised"), "nobody was told that the stream hangs", PAGE_SECONDS)
            page = time.monotonic() - began
            if off:
                time.sleep(90)
                assert stage.beat().pid == before.pid  # type: ignore[union-attr]
                back = "stayed hung"
            else:
                after = stage.await_progress(len(stage.rows()))
                back = f"back after {time.monotonic() - began:.0f} s"
                assert after.epoch > before.epoch
                wait(lambda: told(stage, "STREAM_HUNG", "resolved"), "its end was not told", RESTART_SECONDS)
        finally:
            end_all(family)
        raised = [notice for notice in stage.told() if notice[0] == "STREAM_HUNG" and notice[2] == "raised"]
        sent, lost, doubled = (0, 0, 0) if off else stage.settle()

    tell_line(
        "58 SIGSTOP of driver and JVM",
        "WITHOUT restarts" if off else "protected",
        f"seed {seed}",
        "s3proxy",
        f"ids {sent}",
        f"lost {lost}",
        f"doubled {doubled}",
        f"told after {page:.0f} s",
        back,
    )
    assert (lost, doubled) == (0, 0)
    assert len(raised) == 1


@pytest.mark.timeout(900)
def test_a_dead_scheduler_is_told_by_something_that_is_not_airflow(
    tmp_path: Path, tell_line: Callable[..., None], seed: int
) -> None:
    with running_stage(tmp_path / "project") as stage:
        assert stage.queue
        stage.await_progress(20)
        wait(lambda: stage.health_beat() is not None, "the health check never ran", 240)
        Supervisor(stage.home).stop([SCHEDULER], seconds=45)
        began = time.monotonic()

        wait(lambda: told(stage, "HEALTH_SILENT", "raised"), "nobody told that nobody watches", DEADMAN_SECONDS)

        page = time.monotonic() - began
        Supervisor(stage.home).start(SCHEDULER)
        wait(lambda: told(stage, "HEALTH_SILENT", "resolved"), "its return was not told", 240)

    tell_line("63 scheduler dead", "protected", f"seed {seed}", "s3proxy", f"told after {page:.0f} s")
