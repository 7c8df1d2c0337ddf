"""The state of one figure, stepped over event minutes: `learning → ok ⇄ pending → firing ⇄ recovering → ok`.

Pure: the same verdicts in the same order give the same states, whoever steps and however often it is started anew. A
minute without a verdict (too few samples, no row) leaves a figure as it is; whether silence counts as clear, or makes
it unknown, is the rule's. A value between both bounds neither fires nor clears: a figure that is only pending goes
back to ok, one that fires stays.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Literal, NamedTuple

Phase = Literal["learning", "ok", "pending", "firing", "recovering"]
NoData = Literal["unknown", "hold", "ok"]


class Verdict(IntEnum):
    """What one minute says of a figure."""

    #: All bounds of `fire` are crossed.
    BREACHED = 0
    #: Those of `fire` are not, those of `clear` are.
    BETWEEN = 1
    CLEAR = 2
    #: There are rows, of too few samples.
    TOO_FEW_SAMPLES = 3
    #: There is nothing yet to compare with.
    LEARNING = 4
    #: There is no row.
    NO_ROW = 5


class SeriesState(NamedTuple):
    """Where a figure is. Minutes are counted since 1970.

    `steps` is how many judged minutes have led on from its phase: beyond the bounds while pending, clear while
    recovering. `began` is the first of those beyond the bounds, `fired` the minute that fired; both are None where it
    does not fire and is not about to.
    """

    phase: Phase = "learning"
    steps: int = 0
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
    """The state after one more minute.

    Args:
        for_steps: so many minutes beyond the bounds, one after the other, fire.
        keep_firing_steps: so many clear ones, one after the other, end it.
        no_data: what a minute without a row means.
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
        steps = before.steps + 1
        return OK if steps >= keep_firing_steps else SeriesState("recovering", steps, before.began, before.fired)
    if verdict is Verdict.LEARNING:
        return before._replace(unknown=False)
    return SeriesState("firing", 0, before.began, before.fired)


def _not_firing(before: SeriesState, verdict: Verdict, minute: int, for_steps: int) -> SeriesState:
    if verdict is Verdict.BREACHED:
        steps = before.steps + 1
        began = minute if before.began is None else before.began
        return SeriesState("firing", 0, began, minute) if steps >= for_steps else SeriesState("pending", steps, began)
    return START if verdict is Verdict.LEARNING else OK
