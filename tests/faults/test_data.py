"""Producers that change their events (a new field, another type, a missing field, a null), and a hostile one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.harness.driver import Driver
from tests.faults.harness.fault_project import FaultProject
from tests.faults.harness.hostile_objects import KINDS
from tests.faults.harness.hostile_run import DEADLY, HOSTILE, USUAL, HostileRun, Outcome, is_one_owner, landing_side
from tests.faults.harness.landing_times import percentile
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


Say = Callable[..., None]


def beside_each_other(make_stage: MakeStage, print_result: Say, *, minutes: float, off: str = "") -> Outcome:
    """Runs all phases, shortened, with every kind of object."""
    stage = make_stage(tables=3, storage="s3")
    with landing_side(stage) as landing:
        options = {"hostile_every_seconds": 1.2, "deadly_every_seconds": 10.0}
        run = HostileRun(stage, landing, off=[off] if off else [], tell=lambda _: None, **options)
        outcome = run.run(minutes)
    medians = (f"{phase} {percentile(outcome.waits[phase], 0.5):.1f} s" for phase in (USUAL, HOSTILE, DEADLY))
    fates = outcome.fates
    print_result(
        "hostile producer",
        f"WITHOUT {off}" if off else "protected",
        f"good objects {outcome.good_objects}",
        f"lost {fates.lost.total()}, doubled {fates.doubled.total()}, quarantined {fates.good_in_quarantine.total()}",
        f"hostile objects {fates.objects.total()}, unaccounted {len(fates.wrong)}",
        f"landing to bronze, median: {', '.join(medians)}",
        *(failure.splitlines()[0] for failure in outcome.failures),
    )
    return outcome


def test_a_producer_of_the_worst_objects_costs_its_neighbour_no_event(make_stage: MakeStage, print_result: Say) -> None:
    outcome = beside_each_other(make_stage, print_result, minutes=1.5)

    assert outcome.failures == []
    assert outcome.fates.wrong == {}
    assert outcome.fates.is_exact
    assert is_one_owner(outcome.owners)
    assert outcome.fates.objects.keys() >= set(KINDS)
    assert outcome.fates.messages.total() == outcome.messages


@pytest.mark.parametrize("without", ["object_errors", "deaths"])
def test_without_what_holds_an_object_against_itself_the_stream_ends(
    make_stage: MakeStage, print_result: Say, without: str
) -> None:
    outcome = beside_each_other(make_stage, print_result, minutes=1.0, off=without)

    assert any(failure.startswith("the driver has ended") for failure in outcome.failures)
    assert outcome.fates.wrong
