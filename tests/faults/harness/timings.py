"""How soon a stream lands a batch again after a fault, from the timelines of its drivers."""

from __future__ import annotations

from tests.faults.harness.driver import Driver


def recovery_seconds(broken: Driver, *successors: Driver) -> float:
    """From the fault to the first batch completed after it, by whichever driver."""
    since = broken.first_fault_at()
    completed = [
        at
        for driver in (broken, *successors)
        for at, _, point in driver.points()
        if point == "completed" and at > since
    ]
    assert completed, "no batch was completed after the fault"
    return min(completed) - since


def engine_seconds(successor: Driver) -> float | None:
    """The part of a recovery that is ours: from the Spark session to the batch completed."""
    began, completed = successor.first_reached_at("session"), successor.first_reached_at("completed")
    return completed - began if began is not None and completed is not None else None
