"""A hostile producer next to a good one: the good one's events land once, and the stream keeps running."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.harness.fault_project import FaultProject
from tests.faults.harness.hostile_objects import KINDS
from tests.faults.harness.hostile_run import DEADLY, HOSTILE, USUAL, HostileRun, Outcome, is_one_owner, landing_side
from tests.faults.harness.landing_times import percentile

MakeStage = Callable[..., FaultProject]
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
