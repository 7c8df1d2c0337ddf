"""A container is healthy and unhealthy by Docker's rules."""

from __future__ import annotations

from tests.integration.containers.health import Health, HealthState, Probe, judge, pause_seconds, watch
from tests.integration.containers.specs import HealthCheckSpec

CHECK = HealthCheckSpec(command=("check",), interval_seconds=30, retries=3, start_period_seconds=60)


def after(*probes: tuple[int, float], check: HealthCheckSpec = CHECK) -> HealthState:
    """The state after probes, each an exit status and the age of the container."""
    state = HealthState()
    for status, age in probes:
        state = judge(state, Probe(status, "", 0.1), check=check, age_seconds=age)
    return state


def test_a_container_starts_and_is_healthy_by_its_first_success() -> None:
    assert after().health is Health.STARTING
    assert after((1, 5), (0, 10)).health is Health.HEALTHY


def test_failures_of_the_start_period_do_not_count() -> None:
    assert after(*[(1, age) for age in range(0, 60, 5)]).health is Health.STARTING
    assert after(*[(1, age) for age in range(0, 60, 5)], (1, 60), (1, 90)).health is Health.STARTING
    assert after((1, 60), (1, 90), (1, 120)).health is Health.UNHEALTHY


def test_failures_count_once_something_has_succeeded_even_in_the_start_period() -> None:
    assert after((0, 5), (1, 10), (1, 15), (1, 20)).health is Health.UNHEALTHY


def test_only_failures_in_a_row_count_and_time_outs_are_failures() -> None:
    assert after((0, 90), (1, 120), (-1, 150), (0, 180), (1, 210), (1, 240)).health is Health.HEALTHY
    assert after((0, 90), (-1, 120), (-1, 150), (-1, 180)).health is Health.UNHEALTHY
    assert after((0, 90), (1, 120), (1, 150), (1, 180), (0, 210)).health is Health.HEALTHY


def test_a_starting_container_is_looked_at_more_often() -> None:
    assert pause_seconds(HealthState(), check=CHECK, age_seconds=10) == 5
    assert pause_seconds(HealthState(), check=CHECK, age_seconds=60) == 30
    assert pause_seconds(after((0, 5)), check=CHECK, age_seconds=10) == 30


def test_every_probe_is_reported_until_the_container_ends() -> None:
    now = 0.0
    reports: list[HealthState] = []

    def wait(seconds: float) -> bool:
        nonlocal now
        now += seconds
        return now > 100

    watch(CHECK, probe=lambda: Probe(int(now < 20), "", 0.0), report=reports.append, clock=lambda: now, wait=wait)

    assert [state.health for state in reports] == [Health.STARTING] * 3 + [Health.HEALTHY] * 3
