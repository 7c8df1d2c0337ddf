"""Producers change their events: a new field, another type, a missing field, a null in a required field."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.harness.driver import Driver
from tests.faults.harness.fault_project import FaultProject
from tests.faults.harness.oracle import Verdict
from tests.faults.harness.timings import engine_seconds

Tell = Callable[..., Verdict]
MakeStage = Callable[..., FaultProject]


def land_changed_events(stage: FaultProject) -> int:
    """Lands valid events with a new field, and events whose required fields are missing or changed."""
    fits, misfits = [], []
    for kind in stage.kinds:
        fits.append(stage.event(kind, brand_new="a field nobody declared", nested={"deep": [1, None]}))
        misfits.append(stage.event(kind, n={"another": "type"}))
        misfits.append(stage.event(kind, n=None))
        dropped = stage.event(kind)
        del dropped["n"]
        misfits.append(dropped)
    for event in fits:
        stage.owed[event["name"], event["id"]] += 1
        stage.owed["events", event["id"]] += 1
    for event in misfits:
        stage.owed["quarantine", event["id"]] += 1
    stage.announce(fits + misfits, copies=2)
    return len(misfits)


@pytest.mark.parametrize("off", [[], ["quarantine"]], ids=["protected", "without"])
def test_events_that_no_longer_fit_are_in_quarantine_and_nothing_else_is(
    make_stage: MakeStage, tell: Tell, off: list[str]
) -> None:
    stage = make_stage(tables=4)
    stage.land()
    misfits = land_changed_events(stage)
    stage.land()
    with Driver(stage, off=off) as driver:
        driver.run_to_end()

    note = f"{misfits} misfits, each announced twice"
    recovery = engine_seconds(driver)
    verdict = tell("14 schema changes", stage, off=", ".join(off), recovery=recovery, note=note)
    assert verdict.is_exact == (not off)
    assert bool(verdict.lost) == bool(off)
