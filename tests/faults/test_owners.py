"""Two drivers of one stream: the second is refused; a paused first driver finds itself fenced when it resumes; a stop
takes effect between batches; wrong clocks change nothing.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StopFlag
from deltaworks.control.locks.lease import LeaseRecord
from deltaworks.errors import ConcurrencyError, FencedError
from tests.faults.harness.driver import Driver
from tests.faults.harness.fault_project import PIPELINE, FaultProject
from tests.faults.harness.injection import Fault
from tests.faults.harness.oracle import Verdict, commits_after_takeover
from tests.faults.harness.timings import recovery_seconds

TABLES = 30
Tell = Callable[..., Verdict]
MakeStage = Callable[..., FaultProject]


def late_commits(stage: FaultProject) -> int:
    return commits_after_takeover(stage.lake, PIPELINE, ["events", *stage.kinds])


def stop_flag(stage: FaultProject) -> StopFlag:
    return StopFlag(stage.objects, paths.pipeline_control(PIPELINE, "stop.json"))


def lease_record(stage: FaultProject) -> LeaseRecord:
    found = stage.objects.get(paths.pipeline_control(PIPELINE, "lease.json"))
    record = LeaseRecord.decode_or_none(found.data) if found else None
    assert record is not None
    return record


@pytest.mark.parametrize(
    ("off", "codes"),
    [([], {ConcurrencyError.exit_code}), (["lease"], {0})],
    ids=["protected", "without"],
)
def test_a_second_driver_of_a_stream_is_refused(
    make_stage: MakeStage, tell: Tell, off: list[str], codes: set[int]
) -> None:
    stage = make_stage(tables=4)
    stage.land()
    held = Fault(point="prepared", action="sleep", seconds=40)
    with Driver(stage, faults=[held], off=["lease_watch"]) as first:
        first.await_point("prepared")
        with Driver(stage, off=off) as second:
            code = second.wait()
            condition, _ = second.final_error()
        first.wait()

    verdict = tell("6 two drivers", stage, off=", ".join(off), note=f"the second ended with {code} {condition}")
    assert verdict.is_exact
    assert code in codes
    assert (condition == "LEASE_HELD") == (not off)


def wake_a_paused_owner(stage: FaultProject, *, when: str, off: list[str]) -> tuple[Driver, Driver, int]:
    """Freezes the first owner in the middle of its commits and resumes it once its successor has reached `when`.

    The lease watch is disabled throughout: only the epoch in the tables may stop the former owner.
    """
    stage.land()
    paused = Fault(point="committed:.*", nth=9, action="stop")
    with Driver(stage, faults=[paused], off=["lease_watch", *off]) as first:
        first.await_point("injected stop")
        with Driver(stage, faults=[Fault(point=when, action="sleep", seconds=12)]) as second:
            second.await_point(f"injected sleep at {when}")
            first.signal(signal.SIGCONT)
            code = first.wait()
            second.run_to_end()
    return first, second, code


@pytest.mark.parametrize(("storage", "when"), [("local", "fenced"), ("s3", "ended")])
def test_a_paused_owner_that_wakes_after_a_takeover_commits_nothing(
    make_stage: MakeStage, tell: Tell, storage: str, when: str
) -> None:
    stage = make_stage(tables=TABLES, storage=storage)
    first, second, code = wake_a_paused_owner(stage, when=when, off=[])

    note = f"it woke when its successor had {when}, and ended with {code}"
    verdict = tell("6 paused owner wakes", stage, recovery=recovery_seconds(first, second), note=note)
    # If everything has landed, it finds the checkpoint: Spark's file of the batch is its successor's.
    assert code == FencedError.exit_code if when == "fenced" else code != 0
    assert late_commits(stage) == 0
    assert verdict.is_exact


def test_without_the_owner_epoch_a_paused_owner_goes_on_writing(make_stage: MakeStage, tell: Tell) -> None:
    stage = make_stage(tables=TABLES)
    *_, code = wake_a_paused_owner(stage, when="fenced", off=["owner_epoch"])

    late = late_commits(stage)
    note = f"{late} commits after its successor had fenced it; it ended with {code}"
    tell("6 paused owner wakes", stage, off="owner_epoch", note=note)
    assert late > 0


def pause_between_check_and_commit(stage: FaultProject, *, off: list[str]) -> tuple[Driver, Driver, int]:
    """Freezes the first owner between its transaction look-up and the put of the commit; a second owner takes over."""
    stage.land()
    paused = Fault(point="checked:k0[3-9]", action="stop", after="prepared")
    with Driver(stage, faults=[paused], off=["lease_watch", *off]) as first:
        first.await_point("injected stop")
        with Driver(stage) as second:
            second.run_to_end()
        first.signal(signal.SIGCONT)
        code = first.wait()
    return first, second, code


def test_a_takeover_between_check_and_commit_lets_the_commit_fail(make_stage: MakeStage, tell: Tell) -> None:
    stage = make_stage(tables=TABLES)
    first, second, code = pause_between_check_and_commit(stage, off=[])

    recovery = recovery_seconds(first, second)
    verdict = tell("takeover between check and commit", stage, recovery=recovery, note=f"the first ended with {code}")
    assert code != 0
    assert verdict.is_exact
    assert late_commits(stage) == 0


def test_without_one_snapshot_for_check_and_commit_a_takeover_doubles(make_stage: MakeStage, tell: Tell) -> None:
    stage = make_stage(tables=TABLES)
    pause_between_check_and_commit(stage, off=["same_snapshot"])

    verdict = tell("takeover between check and commit", stage, off="same_snapshot")
    assert verdict.doubled


@pytest.mark.parametrize("off", [[], ["monotonic_lease"]], ids=["protected", "without"])
def test_clocks_an_hour_apart_do_not_move_a_lease_and_lose_nothing(
    make_stage: MakeStage, tell: Tell, off: list[str]
) -> None:
    stage = make_stage(tables=4)
    stage.land(files=2)
    held = [Fault(point="prepared", action="sleep", seconds=30), Fault(point="committed:.*", nth=3)]
    with Driver(stage, faults=held, clock_seconds=-3600) as behind:
        behind.await_point("prepared")
        with Driver(stage, clock_seconds=3600, off=off) as ahead:
            code = ahead.wait()
        behind.wait()
    with Driver(stage, clock_seconds=-7200) as third:
        third.run_to_end()

    verdict = tell(
        "7 clocks jump",
        stage,
        off=", ".join(off),
        recovery=recovery_seconds(behind, ahead, third),
        note=f"-1 h, +1 h, -2 h; a lease that lives was {'refused' if code == 20 else 'taken'}",
    )
    assert (code == ConcurrencyError.exit_code) == (not off)
    assert verdict.is_exact


@pytest.mark.parametrize("off", [[], ["stop_flag"]], ids=["protected", "without"])
def test_a_stop_ends_the_stream_between_batches_and_gives_up_the_lease(
    make_stage: MakeStage, tell: Tell, off: list[str]
) -> None:
    stage = make_stage(tables=TABLES)
    stage.land(files=6)
    with Driver(stage, off=off, available_now=False) as driver:
        driver.await_point("committed:")
        stop_flag(stage).set(by="tests", reason="a test stops it")
        asked = time.monotonic()
        try:
            code = driver.wait(40)
            took = driver.await_group_exit() - asked
        except AssertionError:
            code, took = None, None
        points = [point for _, _, point in driver.points()]
        released = lease_record(stage).released
    stop_flag(stage).clear()
    torn = points.count("prepared") - points.count("completed")
    ended = "never ended" if took is None else f"ended with {code} after {took:.1f} s"
    with Driver(stage) as successor:
        successor.run_to_end()

    verdict = tell("5 stop", stage, off=", ".join(off), recovery=took, note=f"{ended}, {torn} batches torn")
    assert verdict.is_exact
    assert (code == 0 and released and torn == 0) == (not off)


@pytest.mark.parametrize("off", [[], ["transactions"]], ids=["protected", "without"])
def test_a_sigterm_tears_nothing_that_is_not_mended(make_stage: MakeStage, tell: Tell, off: list[str]) -> None:
    stage = make_stage(tables=TABLES)
    stage.land(files=3)
    with Driver(stage, available_now=False, faults=[Fault(point="committed:.*", nth=12, action="sleep")]) as driver:
        driver.await_point("injected sleep")
        driver.signal(signal.SIGTERM)
        driver.wait(60)
        with Driver(stage, off=off) as successor:
            successor.run_to_end()

    verdict = tell("5 SIGTERM", stage, off=", ".join(off), recovery=recovery_seconds(driver, successor))
    assert verdict.is_exact == (not off)
    assert bool(verdict.doubled) == bool(off)
