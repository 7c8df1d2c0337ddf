"""State machine of a group's members, as pure functions; each member has its own state.

A member is in one of the phases waiting, running, ending, stopped, parked or removed. The caller passes the current
`Signals`, and an `Outcome` when a run has ended. These functions read no clock and have no side effects.
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
    """How a run ended: normally, with all available data processed, because another owner has the pipeline, or by a
    failure.
    """

    NORMAL = "well"
    FINISHED = "finished"
    OTHER_OWNER = "elsewhere"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """Inputs of a member's state machine.

    Attributes:
        is_member: the pipeline is declared in this group.
        stop_requested: its stop flag is set.
        is_parked: it is recorded as parked.
        wait_seconds: remaining backoff after its last failure.
        is_closing: the group's run is ending.
    """

    is_member: bool = True
    stop_requested: bool = False
    is_parked: bool = False
    wait_seconds: float = 0.0
    is_closing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended. `non_outage_failures` counts consecutive failures, this one included, that no outage caused."""

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
    """Returns the member's next state, and the action that leads to it, for the current signals.

    A running member is ended by any signal except `wait_seconds`. A removed member starts again once the pipeline is
    declared in the group again.
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
    """Returns the phase of a member without a run; RUNNING means that it is to be started."""
    if signals.is_closing or not signals.is_member:
        return Phase.REMOVED
    if signals.stop_requested:
        return Phase.STOPPED
    if signals.is_parked:
        return Phase.PARKED
    return Phase.WAITING if signals.wait_seconds > 0 else Phase.RUNNING


def state_after_run(state: MemberState, outcome: Outcome, *, max_quick_failures: int) -> tuple[MemberState, Action]:
    """Returns the member's next state and action after its run has ended; parks it after too many failures."""
    if outcome.end is RunEnd.FINISHED:
        return replace(state, phase=Phase.REMOVED), Action.NOTHING
    if outcome.end is RunEnd.FAILED and outcome.non_outage_failures >= max_quick_failures:
        return replace(state, phase=Phase.PARKED), Action.PARK
    return replace(state, phase=Phase.WAITING), Action.NOTHING


def is_over(states: dict[str, MemberState], *, is_closing: bool, available_now: bool = False) -> bool:
    """Returns whether the group's run is over: no member is running or will be started.

    Args:
        available_now: each member runs once over the available data; members that still wait have to run.
    """
    if any(state.is_active for state in states.values()):
        return False
    if is_closing:
        return True
    return available_now and all(state.phase is not Phase.WAITING for state in states.values())
