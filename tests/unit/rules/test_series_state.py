"""The state machine of a series: phases, hysteresis, missing rows; compared with a full rescan."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.rules.verdicts import START, NoData, SeriesState, Verdict, next_state
from tests.unit.rules.oracle import slow_episodes

B, E, C, F, L, A = (
    Verdict.BREACHED,
    Verdict.BETWEEN,
    Verdict.CLEAR,
    Verdict.TOO_FEW_SAMPLES,
    Verdict.LEARNING,
    Verdict.NO_ROW,
)


def states(
    verdicts: Sequence[Verdict], *, for_steps: int = 3, keep_firing_steps: int = 2, no_data: NoData = "unknown"
) -> list[SeriesState]:
    state, passed = START, []
    for minute, verdict in enumerate(verdicts):
        state = next_state(
            state, verdict, minute, for_steps=for_steps, keep_firing_steps=keep_firing_steps, no_data=no_data
        )
        passed.append(state)
    return passed


def phases(verdicts: Sequence[Verdict], **settings: object) -> str:
    short = {"learning": "l", "ok": "o", "pending": "p", "firing": "F", "recovering": "r"}
    return "".join(short[state.phase] for state in states(verdicts, **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ([B, C, B, B, B, B], "poppFF"),
        ([L, L, C, B], "llop"),
        ([B, B, E, B, B, B], "ppoppF"),
        ([B, B, B, E, E, C, E, C, C], "ppFFFrFro"),
        ([B, B, B, C, F, F, C], "ppFrrro"),
        ([B, B, F, A, B], "ppppF"),
        ([B, B, B, C, B, C, C, B], "ppFrFrop"),
    ],
)
def test_a_series_goes_through_its_phases(verdicts: Sequence[Verdict], said: str) -> None:
    assert phases(verdicts) == said


def test_a_series_without_rows_is_unknown() -> None:
    passed = states([C, A, A, C])

    assert [state.unknown for state in passed] == [False, True, True, False]
    assert [state.unknown for state in states([C, A, C], no_data="hold")] == [False, False, False]


def test_missing_rows_are_ok_only_if_declared() -> None:
    assert phases([B, B, B, A, A, A]) == "ppFFFF"
    assert phases([B, B, B, A, A, A], no_data="ok") == "ppFroo"


def test_an_episode_keeps_the_minutes_it_began_and_fired() -> None:
    firing = states([C, B, B, B, C, B])[-1]

    assert (firing.began, firing.fired) == (1, 3)


@given(
    st.lists(st.sampled_from([B, B, B, E, C, C, F, L, A]), max_size=60),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from(["unknown", "hold", "ok"]),
)
def test_episodes_match_a_full_scan(
    verdicts: list[Verdict], for_steps: int, keep_firing_steps: int, no_data: NoData
) -> None:
    seen: list[tuple[int, int, int | None]] = []
    before = START
    for minute, state in enumerate(
        states(verdicts, for_steps=for_steps, keep_firing_steps=keep_firing_steps, no_data=no_data)
    ):
        if state.fired is not None and before.fired is None:
            assert state.began is not None
            seen.append((state.began, state.fired, None))
        if state.fired is None and before.fired is not None:
            seen[-1] = (*seen[-1][:2], minute)
        before = state

    assert seen == slow_episodes(verdicts, for_steps=for_steps, keep_firing_steps=keep_firing_steps, no_data=no_data)
