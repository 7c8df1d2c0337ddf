"""Implements Docker's health status from the results of a repeated command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from tests.integration.containers.specs import HealthCheckSpec


class Health(StrEnum):
    """Docker's health status."""

    STARTING = "starting"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True)
class Probe:
    """One run of a health check: exit status and output; `-1` after a time-out."""

    status: int
    output: str
    seconds: float


@dataclass(frozen=True, slots=True)
class HealthState:
    """A container's health after the probes so far."""

    health: Health = Health.STARTING
    failures_in_a_row: int = 0
    probes: int = 0
    last: Probe | None = None


def judge(state: HealthState, probe: Probe, *, check: HealthCheckSpec, age_seconds: float) -> HealthState:
    """Returns the state after one more probe, which began `age_seconds` after the container's start.

    Failures within the start period do not count until a probe has succeeded.
    """
    state = replace(state, probes=state.probes + 1, last=probe)
    if probe.status == 0:
        return replace(state, health=Health.HEALTHY, failures_in_a_row=0)
    if state.health is Health.STARTING and age_seconds < check.start_period_seconds:
        return state
    failures = state.failures_in_a_row + 1
    health = Health.UNHEALTHY if failures >= check.retries else state.health
    return replace(state, failures_in_a_row=failures, health=health)


def pause_seconds(state: HealthState, *, check: HealthCheckSpec, age_seconds: float) -> float:
    """Returns Docker's pause before the next probe, which is shorter in the start period."""
    if state.health is Health.STARTING and age_seconds < check.start_period_seconds:
        return min(check.start_interval_seconds, check.interval_seconds)
    return check.interval_seconds


def watch(
    check: HealthCheckSpec,
    *,
    probe: Callable[[], Probe],
    report: Callable[[HealthState], None],
    clock: Callable[[], float],
    wait: Callable[[float], bool],
) -> None:
    """Probes and reports repeatedly until `wait` reports the container's end.

    Args:
        wait: waits up to this many seconds; returns True if the container has ended.
    """
    state, start = HealthState(), clock()
    while not wait(pause_seconds(state, check=check, age_seconds=clock() - start)):
        age = clock() - start
        state = judge(state, probe(), check=check, age_seconds=age)
        report(state)
