"""Measures recovery times of a stream from the timelines of its drivers."""

from __future__ import annotations

from tests.faults.harness.driver import Driver


def recovery_seconds(broken: Driver, *successors: Driver) -> float:
    """Returns seconds from the fault to the first batch that any driver completed after it."""
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
    """Returns the product's part of a recovery: seconds from the Spark session's start to the completed batch."""
    began, completed = successor.first_reached_at("session"), successor.first_reached_at("completed")
    return completed - began if began is not None and completed is not None else None
