"""What Docker calls healthy: a command that is run again and again, and how often it failed in a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from tests.integration.containers.specs import HealthCheckSpec


class Health(StrEnum):
    """As Docker reports it."""

    STARTING = "starting"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True)
class Probe:
    """One run of a check: its exit status and what it wrote; `-1` where it took too long."""

    status: int
    output: str
    seconds: float


@dataclass(frozen=True, slots=True)
class HealthState:
    """How a container is, after the probes so far."""

    health: Health = Health.STARTING
    failures_in_a_row: int = 0
    probes: int = 0
    last: Probe | None = None


def judge(state: HealthState, probe: Probe, *, check: HealthCheckSpec, age_seconds: float) -> HealthState:
    """The state after one more probe, of a container that was started `age_seconds` before the probe began.

    What fails in the start period does not count, until something has succeeded.
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
    """How long Docker waits before it looks again: not so long while the container starts."""
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
    """Look, report and wait until `wait` says that the container has ended.

    Args:
        wait: waits for seconds at most; True where the container has ended.
    """
    state, start = HealthState(), clock()
    while not wait(pause_seconds(state, check=check, age_seconds=clock() - start)):
        age = clock() - start
        state = judge(state, probe(), check=check, age_seconds=age)
        report(state)
