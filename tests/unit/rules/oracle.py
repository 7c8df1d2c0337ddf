"""The machine as a reader would do it by hand: the whole line of verdicts is looked at again for every minute."""

from __future__ import annotations

from collections.abc import Sequence

from deltaworks.rules.series_state import Verdict

LETTERS = {Verdict.BREACHED: "B", Verdict.BETWEEN: "=", Verdict.CLEAR: "C", Verdict.LEARNING: "L"}


def slow_episodes(
    verdicts: Sequence[Verdict], *, for_steps: int, keep_firing_steps: int, no_data: str = "unknown"
) -> list[tuple[int, int, int | None]]:
    """Every episode as (first minute beyond, minute it fired, minute it ended), found by looking for texts.

    Minutes that say nothing are struck out first; an absent one that counts as clear is clear.
    """
    said = [
        (minute, "C" if verdict is Verdict.NO_ROW else LETTERS[verdict])
        for minute, verdict in enumerate(verdicts)
        if verdict is not Verdict.TOO_FEW_SAMPLES and (verdict is not Verdict.NO_ROW or no_data == "ok")
    ]
    text = "".join(letter for _, letter in said)
    episodes, start = [], 0
    while (at := text.find("B" * for_steps, start)) >= 0:
        fired = at + for_steps - 1
        # Learning, while it fires, says nothing of it: it neither clears nor breaks a line of clear minutes.
        rest = [(place, letter) for place, letter in enumerate(text) if place > fired and letter != "L"]
        clear = "".join(letter for _, letter in rest).find("C" * keep_firing_steps)
        ended = rest[clear + keep_firing_steps - 1][0] if clear >= 0 else None
        episodes.append((said[at][0], said[fired][0], None if ended is None else said[ended][0]))
        if ended is None:
            break
        start = ended + 1
    return episodes
