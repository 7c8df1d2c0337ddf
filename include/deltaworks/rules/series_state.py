"""The state machine of one series over event minutes: `learning → ok ⇄ pending → firing ⇄ recovering → ok`.

Pure and deterministic. A minute with too few samples leaves the state unchanged. The effect of a minute without a row
depends on `no_data`: it leaves the state unchanged, or counts as clear or unknown. A value between the `fire` and
`clear` bounds neither fires nor clears: a pending series returns to ok, a firing one keeps firing.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Literal, NamedTuple

Phase = Literal["learning", "ok", "pending", "firing", "recovering"]
NoData = Literal["unknown", "hold", "ok"]


class Verdict(IntEnum):
    """The result of one minute for a series."""

    #: All `fire` bounds are crossed.
    BREACHED = 0
    #: The `fire` bounds are not crossed, but the `clear` bounds still are.
    BETWEEN = 1
    CLEAR = 2
    #: There is a row with too few samples.
    TOO_FEW_SAMPLES = 3
    #: There is no baseline yet.
    LEARNING = 4
    #: There is no row.
    NO_ROW = 5


class SeriesState(NamedTuple):
    """The state of a series. Minutes are counted since 1970.

    - `steps`: consecutive minutes towards the next phase: beyond the bounds while pending, clear while recovering.
    - `began`: the first minute beyond the bounds; `fired`: the minute that fired. Both are None unless the series is
      pending or fires.
    """

    phase: Phase = "learning"
    consecutive_minutes: int = 0
    began: int | None = None
    fired: int | None = None
    unknown: bool = False


START: Final = SeriesState()
OK: Final = SeriesState("ok")


def next_state(
    before: SeriesState,
    verdict: Verdict,
    minute: int,
    *,
    for_steps: int,
    keep_firing_steps: int,
    no_data: NoData = "unknown",
) -> SeriesState:
    """Returns the state after one more minute.

    Args:
        for_steps: consecutive minutes beyond the bounds that fire.
        keep_firing_steps: consecutive clear minutes that end an episode.
        no_data: the meaning of a minute without a row.
    """
    if verdict is Verdict.NO_ROW:
        if no_data == "ok":
            verdict = Verdict.CLEAR
        else:
            return before if no_data == "hold" or before.unknown else before._replace(unknown=True)
    if verdict is Verdict.TOO_FEW_SAMPLES:
        return before
    if before.fired is None:
        return _not_firing(before, verdict, minute, for_steps)
    if verdict is Verdict.CLEAR:
        steps = before.consecutive_minutes + 1
        return OK if steps >= keep_firing_steps else SeriesState("recovering", steps, before.began, before.fired)
    if verdict is Verdict.LEARNING:
        return before._replace(unknown=False)
    return SeriesState("firing", 0, before.began, before.fired)


def _not_firing(before: SeriesState, verdict: Verdict, minute: int, for_steps: int) -> SeriesState:
    if verdict is Verdict.BREACHED:
        steps = before.consecutive_minutes + 1
        began = minute if before.began is None else before.began
        return SeriesState("firing", 0, began, minute) if steps >= for_steps else SeriesState("pending", steps, began)
    return START if verdict is Verdict.LEARNING else OK
