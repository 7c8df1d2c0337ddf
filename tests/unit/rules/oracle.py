"""A slow oracle of the state machine: rescans all verdicts for every minute."""

from __future__ import annotations

from collections.abc import Sequence

from deltaworks.rules.verdicts import Verdict

LETTERS = {Verdict.BREACHED: "B", Verdict.BETWEEN: "=", Verdict.CLEAR: "C", Verdict.LEARNING: "L"}


def slow_episodes(
    verdicts: Sequence[Verdict], *, for_steps: int, keep_firing_steps: int, no_data: str = "unknown"
) -> list[tuple[int, int, int | None]]:
    """Returns episodes as (first minute beyond, fired, ended), found by text search.

    Minutes without effect are removed first; a missing row that counts as clear is clear.
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
        # While firing, LEARNING neither clears nor interrupts clear minutes.
        rest = [(place, letter) for place, letter in enumerate(text) if place > fired and letter != "L"]
        clear = "".join(letter for _, letter in rest).find("C" * keep_firing_steps)
        ended = rest[clear + keep_firing_steps - 1][0] if clear >= 0 else None
        episodes.append((said[at][0], said[fired][0], None if ended is None else said[ended][0]))
        if ended is None:
            break
        start = ended + 1
    return episodes
