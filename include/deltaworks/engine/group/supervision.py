"""What becomes of a member of a group: a state machine of pure functions, one state a member.

A member waits, runs, is asked to end, is stopped by its flag, is parked after failures, or has left. Every other member
is of no concern to it. What is asked of a member is read from shared storage by whoever calls this (`Signals`); how a
run of it ended is an `Outcome`. Nothing here reads a clock or does anything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Phase(StrEnum):
    """Where a member is."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDING = "ending"
    STOPPED = "stopped"
    PARKED = "parked"
    REMOVED = "left"


class Action(StrEnum):
    """What is to be done about a member."""

    NOTHING = "nothing"
    START = "start"
    END = "end"
    PARK = "park"


class RunEnd(StrEnum):
    """How a run of a member ended: of its own accord, for good, because another owner has the pipeline, or failing."""

    NORMAL = "well"
    FINISHED = "finished"
    OTHER_OWNER = "elsewhere"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """What is asked of a member now.

    `belongs`: it is declared, and as one of this group. `stop`: its stop flag is set. `parked`: it is on record as
    parked. `wait_seconds`: what is left of the wait after its last failure. `closing`: the group's run is ending.
    """

    is_member: bool = True
    stop_requested: bool = False
    is_parked: bool = False
    wait_seconds: float = 0.0
    is_closing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a run. `non_outage_failures`: early failures of its own in a row by now, with this one."""

    end: RunEnd
    non_outage_failures: int = 0


@dataclass(frozen=True, slots=True)
class MemberState:
    """The state of a member. `non_outage_failures` counts up to the number at which it is parked."""

    phase: Phase = Phase.WAITING

    @property
    def has_run(self) -> bool:
        """Whether a run of it is under way."""
        return self.phase in (Phase.RUNNING, Phase.ENDING)


def next_state(state: MemberState, signals: Signals) -> tuple[MemberState, Action]:
    """The state after a look at what is asked, and what to do.

    A run that is under way is ended for whatever is asked but the wait; it is never started twice. A member that has
    left comes back once it belongs again.
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
    """Where a member is that does not run, or RUNNING where it is to be started."""
    if signals.is_closing or not signals.is_member:
        return Phase.REMOVED
    if signals.stop_requested:
        return Phase.STOPPED
    if signals.is_parked:
        return Phase.PARKED
    return Phase.WAITING if signals.wait_seconds > 0 else Phase.RUNNING


def state_after_run(state: MemberState, outcome: Outcome, *, max_quick_failures: int) -> tuple[MemberState, Action]:
    """The state after a run has ended, and what to do: only a member that keeps failing is parked."""
    if outcome.end is RunEnd.FINISHED:
        return replace(state, phase=Phase.REMOVED), Action.NOTHING
    if outcome.end is RunEnd.FAILED and outcome.non_outage_failures >= max_quick_failures:
        return replace(state, phase=Phase.PARKED), Action.PARK
    return replace(state, phase=Phase.WAITING), Action.NOTHING


def is_over(states: dict[str, MemberState], *, is_closing: bool, once: bool = False) -> bool:
    """Whether the group's run is over: nothing runs, and nothing will.

    Args:
        once: each member runs once, over what is there: one that waits has yet to.
    """
    if any(state.has_run for state in states.values()):
        return False
    if is_closing:
        return True
    return once and all(state.phase is not Phase.WAITING for state in states.values())
