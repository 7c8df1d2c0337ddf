"""State machine of a group's member, compared with a slow oracle that reads the complete event history each time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.engine.group_run import (
    Action,
    MemberState,
    Outcome,
    Phase,
    RunEnd,
    Signals,
    is_over,
    next_state,
    state_after_run,
)

MAX_FAILURES = 3
NO_SIGNALS = Signals()


@dataclass(frozen=True)
class Check:
    """A check with the current signals."""

    signals: Signals


@dataclass(frozen=True)
class End:
    """A run ends; ignored if none is running."""

    outcome: Outcome


Event = Check | End
signals = st.builds(
    Signals,
    is_member=st.sampled_from([True, True, True, False]),
    stop_requested=st.sampled_from([False, False, False, True]),
    is_parked=st.sampled_from([False, False, False, True]),
    wait_seconds=st.sampled_from([0.0, 0.0, 5.0]),
    is_closing=st.sampled_from([False, False, False, False, True]),
)
outcomes = st.builds(Outcome, end=st.sampled_from(RunEnd), non_outage_failures=st.integers(0, MAX_FAILURES + 1))
stories = st.lists(st.builds(Check, signals) | st.builds(End, outcomes), max_size=40)


def run(story: Sequence[Event]) -> list[tuple[Phase, Action]]:
    state, steps = MemberState(), []
    for event in story:
        action = Action.NOTHING
        if isinstance(event, Check):
            state, action = next_state(state, event.signals)
        elif state.is_active:
            state, action = state_after_run(state, event.outcome, max_quick_failures=MAX_FAILURES)
        steps.append((state.phase, action))
    return steps


def is_free(asked: Signals) -> bool:
    """Returns whether a member with these signals may run."""
    return asked == NO_SIGNALS


def runs_after(story: Sequence[Event]) -> bool:
    """Returns whether a run is in progress after these events."""
    under_way = False
    for event in story:
        if isinstance(event, End):
            under_way = False
        elif not under_way:
            under_way = is_free(event.signals)
    return under_way


def was_ending(before: Sequence[Event]) -> bool:
    """Returns whether the current run was asked to end."""
    begun = max(n for n in range(len(before)) if runs_after(before[: n + 1]) and not runs_after(before[:n]))
    since = [event.signals for event in before[begun + 1 :] if isinstance(event, Check)]
    return any(must_end(asked) for asked in since)


def must_end(asked: Signals) -> bool:
    return asked.is_closing or asked.stop_requested or not asked.is_member


def expected(story: Sequence[Event]) -> tuple[Phase, Action]:
    """Returns phase and action after these events, from all of them."""
    *before, last = story
    if isinstance(last, Check):
        return expected_of_run(before, last.signals) if runs_after(before) else expected_when_idle(last.signals)
    if not runs_after(before):
        return (expected(before)[0] if before else Phase.WAITING), Action.NOTHING
    if last.outcome.end is RunEnd.FINISHED:
        return Phase.REMOVED, Action.NOTHING
    fails = last.outcome.end is RunEnd.FAILED and last.outcome.non_outage_failures >= MAX_FAILURES
    return (Phase.PARKED, Action.PARK) if fails else (Phase.WAITING, Action.NOTHING)


def expected_of_run(before: Sequence[Event], asked: Signals) -> tuple[Phase, Action]:
    if was_ending(before):
        return Phase.ENDING, Action.NOTHING
    return (Phase.ENDING, Action.END) if must_end(asked) else (Phase.RUNNING, Action.NOTHING)


def expected_when_idle(asked: Signals) -> tuple[Phase, Action]:
    if asked.is_closing or not asked.is_member:
        return Phase.REMOVED, Action.NOTHING
    if asked.stop_requested:
        return Phase.STOPPED, Action.NOTHING
    if asked.is_parked:
        return Phase.PARKED, Action.NOTHING
    return (Phase.WAITING, Action.NOTHING) if asked.wait_seconds else (Phase.RUNNING, Action.START)


@given(stories)
def test_every_step_equals_the_oracle_over_the_full_event_history(story: list[Event]) -> None:
    assert run(story) == [expected(story[: n + 1]) for n in range(len(story))]


@given(stories)
def test_a_member_never_runs_twice_and_is_ended_once(story: list[Event]) -> None:
    under_way = ending = 0
    for event, (_, action) in zip(story, run(story), strict=True):
        if isinstance(event, End):
            under_way = ending = 0
        under_way += action is Action.START
        ending += action is Action.END
        assert under_way <= 1
        assert ending <= under_way


@given(stories, stories)
def test_members_are_independent(first: list[Event], second: list[Event]) -> None:
    # Each has a state of its own: looked at in turns, both do what they do alone.
    states, steps = {"a": MemberState(), "b": MemberState()}, {"a": [], "b": []}
    for position in range(max(len(first), len(second))):
        for name, story in (("a", first), ("b", second)):
            if position >= len(story):
                continue
            event, action = story[position], Action.NOTHING
            if isinstance(event, Check):
                states[name], action = next_state(states[name], event.signals)
            elif states[name].is_active:
                states[name], action = state_after_run(states[name], event.outcome, max_quick_failures=MAX_FAILURES)
            steps[name].append((states[name].phase, action))
    assert steps == {"a": run(first), "b": run(second)}


def test_a_failing_member_is_restarted_until_it_is_parked_and_again_after_a_start() -> None:
    failing = [
        Check(NO_SIGNALS),
        End(Outcome(end=RunEnd.FAILED, non_outage_failures=1)),
        Check(Signals(wait_seconds=5.0)),
    ]
    story = [
        *failing,
        Check(NO_SIGNALS),
        End(Outcome(end=RunEnd.FAILED, non_outage_failures=MAX_FAILURES)),
        Check(Signals(is_parked=True)),
        Check(NO_SIGNALS),
    ]

    assert [action for _, action in run(story)] == [
        Action.START,
        Action.NOTHING,
        Action.NOTHING,
        Action.START,
        Action.PARK,
        Action.NOTHING,
        Action.START,
    ]


@pytest.mark.parametrize("non_outage_failures", [0, MAX_FAILURES, MAX_FAILURES + 5])
def test_a_member_with_another_owner_is_never_parked(non_outage_failures: int) -> None:
    elsewhere = Outcome(end=RunEnd.OTHER_OWNER, non_outage_failures=non_outage_failures)

    assert run([Check(NO_SIGNALS), End(elsewhere), Check(NO_SIGNALS)]) == [
        (Phase.RUNNING, Action.START),
        (Phase.WAITING, Action.NOTHING),
        (Phase.RUNNING, Action.START),
    ]


def test_a_groups_run_is_over_when_no_member_runs_or_will_run() -> None:
    parked, running, waiting = MemberState(Phase.PARKED), MemberState(Phase.RUNNING), MemberState(Phase.WAITING)

    assert not is_over({"a": parked}, is_closing=False), "it can be started any time"
    assert is_over({"a": parked, "b": waiting}, is_closing=True)
    assert not is_over({"a": parked, "b": running}, is_closing=True)
    assert not is_over({"a": parked, "b": waiting}, is_closing=False, available_now=True)
    assert is_over({"a": parked, "b": MemberState(Phase.REMOVED)}, is_closing=False, available_now=True)
