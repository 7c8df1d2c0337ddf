"""The storage performs Spark's requests but their replies are lost: Spark's appends and merges must land exactly once.

Two protections suffice individually: the log store reads back which writer's commit was put, and the table holds the
step's transaction. A lost reply does harm only with both disabled. Small merges of live tables do not use Spark; they
are tested without both protections in tests/unit/engine/test_live_merge.py.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StopFlag
from sandbox.servers import fault_proxy
from sandbox.servers.fault_proxy import Action, FaultProxy, running_fault_proxy
from tests.faults.harness.driver import Driver
from tests.faults.harness.fault_project import PIPELINE, FaultProject
from tests.faults.harness.live_counts import DECLARED, LIVE, judge_live, owed_counts, seen_counts
from tests.faults.harness.oracle import Verdict

Tell = Callable[..., Verdict]
MakeStage = Callable[..., FaultProject]
ROUND_SECONDS = 150.0
BOTH = ["put_read_back", "spark_transactions"]
OFF = pytest.mark.parametrize("off", [[], ["put_read_back"], BOTH], ids=["protected", "one of two", "without"])


def losing(table: str, *, every: int) -> fault_proxy.Fault:
    """Performs every n-th put of a commit to matching tables, but drops the reply.

    Not every second one: the client retries after each, so without a protection no commit would ever succeed.
    """
    path = rf"/{table}/_delta_log/\d{{20}}\.json(\?|$)"
    return fault_proxy.Fault(action=Action.LOSE_REPLY, method="PUT", path=path, every=every)


def unseen_puts(proxy: FaultProxy) -> int:
    return sum(incident.is_lost_reply for incident in proxy.incidents)


@OFF
def test_appends_by_spark_whose_reply_is_lost_land_once(make_stage: MakeStage, tell: Tell, off: list[str]) -> None:
    stage = make_stage(tables=4, storage="s3", spark_tables=("k01", "k02"))
    assert stage.server is not None
    stage.land(files=4)
    with running_fault_proxy(stage.server.endpoint, faults=[losing("k0[12]", every=3)], seed=stage.seed) as proxy:
        with Driver(stage, off=off, environment=stage.server.environment(endpoint=proxy.endpoint)) as driver:
            driver.run_to_end()
        unseen = unseen_puts(proxy)

    note = f"{unseen} appends by Spark landed whose reply was lost"
    verdict = tell("10 lost replies, appends by Spark", stage, off=", ".join(off), note=note)
    assert unseen >= 3
    assert not verdict.lost
    assert bool(verdict.doubled) == (off == BOTH)


def land_and_count(stage: FaultProject, *, off: Sequence[str], endpoint: dict[str, str], rounds: int) -> Counter[int]:
    """Runs drivers in sequence until each round's events are counted live; returns their exit codes."""
    codes: Counter[int] = Counter()
    driver: Driver | None = None
    try:
        for _ in range(rounds):
            stage.land()
            end = time.monotonic() + ROUND_SECONDS
            while seen_counts(stage) != owed_counts(stage):
                if driver is None or driver.process.poll() is not None:
                    codes.update([] if driver is None else [driver.wait()])
                    driver = Driver(stage, off=off, available_now=False, environment=endpoint)
                assert time.monotonic() < end, driver.tail()
                time.sleep(0.3)
        StopFlag(stage.objects, paths.pipeline_control(PIPELINE, "stop.json")).set(by="tests", reason="all is counted")
        assert driver is not None
        codes.update([driver.wait()])
    finally:
        if driver is not None:
            driver.__exit__()
    return codes


@pytest.mark.parametrize(
    ("off", "doubles"),
    [
        (["small_merges"], False),
        (["small_merges", "put_read_back"], False),
        (["small_merges", *BOTH], True),
        ([], False),
        (["replacement_steps"], False),
    ],
    ids=["spark", "spark, one of two", "spark, without", "ours", "ours, one of two"],
)
def test_merges_of_a_live_table_whose_reply_is_lost_count_once(
    make_stage: MakeStage, print_result: Callable[..., None], off: list[str], doubles: bool
) -> None:
    stage = make_stage(tables=4, storage="s3")
    stage.declare(live=DECLARED)
    assert stage.server is not None
    with running_fault_proxy(stage.server.endpoint, faults=[losing(LIVE, every=3)], seed=stage.seed) as proxy:
        endpoint = stage.server.environment(endpoint=proxy.endpoint)
        codes = land_and_count(stage, off=off, endpoint=endpoint, rounds=6)
        unseen = unseen_puts(proxy)

    verdict = judge_live(stage)
    print_result(
        "10 lost replies, merges of a live table",
        f"WITHOUT {', '.join(off)}" if off else "protected",
        f"seed {stage.seed}",
        "s3proxy",
        f"ids {stage.ids}",
        f"lost {verdict.lost}",
        f"doubled {verdict.doubled}",
        "recovery -",
        f"{verdict.merges} merges, {unseen} landed whose reply was lost; drivers ended with {dict(codes)}",
    )
    assert unseen >= 2
    assert verdict.lost == 0
    assert bool(verdict.doubled) == doubles
