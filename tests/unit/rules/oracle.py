"""The machine as a reader would do it by hand: the whole line of verdicts is looked at again for every minute."""

from __future__ import annotations

from collections.abc import Sequence

from deltaworks.rules.machine import Verdict

LETTERS = {Verdict.BEYOND: "B", Verdict.BETWEEN: "=", Verdict.CLEAR: "C", Verdict.LEARNING: "L"}


def slow_episodes(
    verdicts: Sequence[Verdict], *, for_steps: int, keep_steps: int, no_data: str = "unknown"
) -> list[tuple[int, int, int | None]]:
    """Every episode as (first minute beyond, minute it fired, minute it ended), found by looking for texts.

    Minutes that say nothing are struck out first; an absent one that counts as clear is clear.
    """
    said = [
        (minute, "C" if verdict is Verdict.ABSENT else LETTERS[verdict])
        for minute, verdict in enumerate(verdicts)
        if verdict is not Verdict.FEW and (verdict is not Verdict.ABSENT or no_data == "ok")
    ]
    text = "".join(letter for _, letter in said)
    episodes, start = [], 0
    while (at := text.find("B" * for_steps, start)) >= 0:
        fired = at + for_steps - 1
        # Learning, while it fires, says nothing of it: it neither clears nor breaks a line of clear minutes.
        rest = [(place, letter) for place, letter in enumerate(text) if place > fired and letter != "L"]
        clear = "".join(letter for _, letter in rest).find("C" * keep_steps)
        ended = rest[clear + keep_steps - 1][0] if clear >= 0 else None
        episodes.append((said[at][0], said[fired][0], None if ended is None else said[ended][0]))
        if ended is None:
            break
        start = ended + 1
    return episodes
