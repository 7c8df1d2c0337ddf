"""State machine of a group's members, as pure functions, with one state per member.

A member waits, runs, is ending, stopped, parked or removed, independently of others. The caller reads `Signals` from
shared storage; a run ends with an `Outcome`. These functions neither read a clock nor have side effects.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Phase(StrEnum):
    """Phase of a member."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDING = "ending"
    STOPPED = "stopped"
    PARKED = "parked"
    REMOVED = "left"


class Action(StrEnum):
    """Action to take for a member."""

    NOTHING = "nothing"
    START = "start"
    END = "end"
    PARK = "park"


class RunEnd(StrEnum):
    """How a run ended: normally, with no more data, because another owner has the pipeline, or by a failure."""

    NORMAL = "well"
    FINISHED = "finished"
    OTHER_OWNER = "elsewhere"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """Signals of a member.

    `is_member`: it is declared in this group. `stop_requested`: its stop flag is set. `is_parked`: it is recorded as
    parked. `wait_seconds`: remaining backoff after its last failure. `is_closing`: the group's run is ending.
    """

    is_member: bool = True
    stop_requested: bool = False
    is_parked: bool = False
    wait_seconds: float = 0.0
    is_closing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """End of a run. `quick_failures`: consecutive early failures including this one."""

    end: RunEnd
    non_outage_failures: int = 0


@dataclass(frozen=True, slots=True)
class MemberState:
    """State of a member."""

    phase: Phase = Phase.WAITING

    @property
    def is_active(self) -> bool:
        """Whether a run is in progress."""
        return self.phase in (Phase.RUNNING, Phase.ENDING)


def next_state(state: MemberState, signals: Signals) -> tuple[MemberState, Action]:
    """Returns the state and action for the current signals.

    A running member is ended for any signal but the backoff, and never started twice. A removed member returns once it
    is a member again.
    """
    idle_phase = _idle_phase(signals)
    if state.phase is Phase.RUNNING:
        if idle_phase in (Phase.REMOVED, Phase.STOPPED):
            return replace(state, phase=Phase.ENDING), Action.END
        return state, Action.NOTHING
    if state.phase is Phase.ENDING:
        return state, Action.NOTHING
    if idle_phase is Phase.RUNNING:
        return replace(state, phase=Phase.RUNNING), Action.START
    return replace(state, phase=idle_phase), Action.NOTHING


def _idle_phase(signals: Signals) -> Phase:
    """Returns the phase of a member without a run, or RUNNING if it is to be started."""
    if signals.is_closing or not signals.is_member:
        return Phase.REMOVED
    if signals.stop_requested:
        return Phase.STOPPED
    if signals.is_parked:
        return Phase.PARKED
    return Phase.WAITING if signals.wait_seconds > 0 else Phase.RUNNING


def state_after_run(state: MemberState, outcome: Outcome, *, max_quick_failures: int) -> tuple[MemberState, Action]:
    """Returns the state and action after a run has ended. Only a repeatedly failing member is parked."""
    if outcome.end is RunEnd.FINISHED:
        return replace(state, phase=Phase.REMOVED), Action.NOTHING
    if outcome.end is RunEnd.FAILED and outcome.non_outage_failures >= max_quick_failures:
        return replace(state, phase=Phase.PARKED), Action.PARK
    return replace(state, phase=Phase.WAITING), Action.NOTHING


def is_over(states: dict[str, MemberState], *, is_closing: bool, available_now: bool = False) -> bool:
    """Returns whether the group's run is over: nothing is running or will run.

    Args:
        once: each member runs once over available data; waiting members still have to run.
    """
    if any(state.is_active for state in states.values()):
        return False
    if is_closing:
        return True
    return available_now and all(state.phase is not Phase.WAITING for state in states.values())
