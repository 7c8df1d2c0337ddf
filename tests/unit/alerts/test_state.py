"""Notifications of alerts, compared with a plain simulation of the rules."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.alerts.notification import HOUR, AlertState, NotificationKind, update_state
from deltaworks.errors.conditions import AlertCause, Severity, severity_rank
from tests.unit.alerts.conftest import START

CAUSE = AlertCause(
    name="TEST",
    severity="warning",
    runbook="reference/alerts.md",
    meaning="",
    cooldown_seconds=600,
    repeat_seconds=7200,
    max_notifications_per_hour=4,
)
#: Seconds until the next look, and what is seen then.
Checks = list[tuple[int, Severity | None]]
checks = st.lists(
    st.tuples(st.integers(min_value=1, max_value=2_000), st.sampled_from([None, "info", "warning", "critical"])),
    max_size=120,
)


def simulate(seen: Checks, cause: AlertCause = CAUSE) -> list[tuple[float, NotificationKind, Severity | None]]:
    """Time in seconds, kind and severity of every notification."""
    state, now, told = AlertState(), START, []
    for seconds, severity in seen:
        now += timedelta(seconds=seconds)
        state, kind = update_state(state, cause, severity=severity, now=now)
        assert state.is_open == (severity is not None)
        if kind is not None:
            told.append(((now - START).total_seconds(), kind, severity))
    return told


def expected_notifications(
    seen: Checks, cause: AlertCause = CAUSE
) -> list[tuple[float, NotificationKind, Severity | None]]:
    """The expected notifications according to docs/reference/alerts.md."""
    told: list[tuple[float, NotificationKind, Severity | None]] = []
    people_know: Severity | None = None
    at = 0.0
    for seconds, severity in seen:
        at += seconds
        if len([when for when, _, _ in told if at - when < 3600]) >= cause.max_notifications_per_hour:
            continue
        raisings = [(when, s) for when, kind, s in told if kind in ("raised", "escalated") and s is not None]
        last_of_open = max((when for when, kind, _ in told if kind != "resolved"), default=None)
        kind: NotificationKind | None = None
        if severity is None:
            kind = "resolved" if people_know is not None else None
        elif people_know is None:
            cooled = last_of_open is None or at - last_of_open >= cause.cooldown_seconds
            worse = not raisings or severity_rank(severity) > severity_rank(raisings[-1][1])
            kind = "raised" if cooled or worse else None
        elif severity_rank(severity) > severity_rank(people_know):
            kind = "escalated"
        elif last_of_open is not None and at - last_of_open >= cause.repeat_seconds:
            kind = "reminder"
        if kind is not None:
            told.append((at, kind, severity))
            people_know = severity
    return told


@given(checks)
def test_notifications_follow_the_rules(seen: Checks) -> None:
    assert simulate(seen) == expected_notifications(seen)


@given(checks)
def test_no_hour_exceeds_the_notification_limit(seen: Checks) -> None:
    times = [when for when, _, _ in simulate(seen)]

    for first in times:
        assert len([when for when in times if first <= when < first + 3600]) <= CAUSE.max_notifications_per_hour


@given(checks, st.sampled_from([None, "warning", "critical"]))
def test_the_last_notification_is_true(seen: Checks, rests: Severity | None) -> None:
    told = simulate([*seen, *[(60, rests)] * 75])

    last = told[-1] if told else (0, "resolved", None)
    assert (last[1] == "resolved") == (rests is None)
    assert rests is None or last[2] is None or severity_rank(last[2]) >= severity_rank(rests)


@given(checks)
def test_raised_and_resolved_alternate(seen: Checks) -> None:
    turns = [kind for _, kind, _ in simulate(seen) if kind in ("raised", "resolved")]

    assert turns[::2] == ["raised"] * len(turns[::2])
    assert turns[1::2] == ["resolved"] * len(turns[1::2])


FLAPPING: Checks = [(10, "warning" if look % 2 else None) for look in range(720)]


def test_a_flapping_alert_sends_few_notifications_with_a_change_count() -> None:
    told = simulate(FLAPPING)

    first_hour = [each for each in told if each[0] < 3600]
    assert 2 <= len(first_hour) <= CAUSE.max_notifications_per_hour


@pytest.mark.parametrize(
    ("limit", "cooldown", "least"),
    [(10**9, 600, 5), (4, 0, 4), (10**9, 0, 300)],
    ids=["no limit", "no cooldown", "neither"],
)
def test_without_limits_a_flapping_alert_sends_many(limit: int, cooldown: float, least: int) -> None:
    off = dataclasses.replace(CAUSE, max_notifications_per_hour=limit, cooldown_seconds=cooldown)

    told = [each for each in simulate(FLAPPING, off) if each[0] < 3600]

    assert len(told) >= least
    assert (
        len(told) > len([each for each in simulate(FLAPPING) if each[0] < 3600])
        or limit == CAUSE.max_notifications_per_hour
    )


def test_a_delayed_notification_has_a_change_count() -> None:
    state, now = AlertState(), START
    for seconds, severity in FLAPPING[:100]:
        now += timedelta(seconds=seconds)
        state, _ = update_state(state, CAUSE, severity=severity, now=now)

    assert state.changes > 10
    assert len(state.notification_times) <= CAUSE.max_notifications_per_hour


def test_a_clock_set_back_suppresses_nothing_for_long() -> None:
    state, kind = update_state(AlertState(), CAUSE, severity="warning", now=START + 3 * HOUR)
    assert kind == "raised"
    state, kind = update_state(state, CAUSE, severity=None, now=START)
    assert kind == "resolved"

    _, kind = update_state(state, CAUSE, severity="warning", now=START + timedelta(minutes=1))

    assert kind == "raised"
