"""Entry point that tests submit for streams and groups: the product's run with injected faults and disabled
protections.

The product contains no test hooks: this module removes protections and adds points before the run is built.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    from tests.faults.harness import injection, protections

    protections.switch_off(os.environ.get(protections.OFF, "").split())
    protections.shift_clock(float(os.environ.get(protections.CLOCK, "0")))
    fault = injection.Injector.from_environment()
    fault("started")
    injection.install(fault)

    from deltaworks.engine.group_run import GroupRun
    from deltaworks.engine.runner import IngestRun
    from deltaworks.operations.stream_parts import STREAM_PARTS
    from deltaworks.sources import base
    from deltaworks.specs.project import load_catalog
    from deltaworks.tables.spark_session import build_session
    from tests.batch_points import call_at_points_of

    # The few events of a test are read by several tasks, like those of a large batch, so that tables get several files.
    base.MIN_BYTES_PER_TASK = 1  # type: ignore[misc]
    catalog = load_catalog()
    group, available_now = os.environ.get("DELTAWORKS_TEST_GROUP"), "--available-now" in sys.argv
    pipeline = group or os.environ["DELTAWORKS_TEST_PIPELINE"]
    if os.environ.get("DELTAWORKS_TEST_KILL_WORKER"):
        from deltaworks.engine import fan_out

        fan_out.write_payloads = injection.write_and_die_once  # type: ignore[assignment]
    if armed := os.environ.get("DELTAWORKS_TEST_LOSE_WORKER"):
        from functools import partial
        from pathlib import Path

        from deltaworks.engine import fan_out

        fan_out.write_payloads = partial(injection.write_and_lose_the_worker, Path(armed))  # type: ignore[assignment]
    spark = build_session(catalog.environment, app_name=f"faults.{pipeline}")
    fault("session")
    # The faults stay active after the run, because some tests look for threads that outlive it.
    call_at_points_of(None, fault)
    if os.environ.get("DELTAWORKS_TEST_GOLD"):
        from deltaworks.gold.build import rebuild_gold

        print(f"gold: {rebuild_gold(spark, catalog, pipeline, full=True)}")
        return 0
    run: IngestRun | GroupRun = (
        IngestRun(spark, catalog, pipeline, parts=STREAM_PARTS, available_now=available_now)
        if group is None
        else GroupRun(spark, group, catalog, load=load_catalog, parts=STREAM_PARTS, available_now=available_now)
    )
    result = run.run()
    fault("ended")
    print(f"ended by {result.ended_by}: {result.batches} batches, {result.rows} rows, {result.seconds:.0f} s")
    return 0


if __name__ == "__main__":
    from tests.faults.harness import protections

    protections.before_job(os.environ.get(protections.OFF, "").split())
    from deltaworks.control.job import run_job

    sys.exit(run_job(main))
