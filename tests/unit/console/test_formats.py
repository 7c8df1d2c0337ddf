"""Formats of values for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from deltaworks.console import rendering

NOW = datetime(2026, 11, 22, 12, 4, 31, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, rendering.NO_VALUE),
        (-3, "0 s"),
        (0.42, "0.4 s"),
        (41, "41 s"),
        (2_460, "41 min"),
        (7_200, "2 h"),
        (9_000, "2.5 h"),
        (518_400, "6 d"),
    ],
)
def test_a_length_of_time(seconds: float | None, text: str) -> None:
    assert rendering.seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, rendering.NO_VALUE),
        (0, "0 B"),
        (999, "999 B"),
        (1_500, "1.5 kB"),
        (12_345, "12 kB"),
        (3_100_000, "3.1 MB"),
        (5e18, "5000 PB"),
    ],
)
def test_bytes(number: float | None, text: str) -> None:
    assert rendering.bytes_text(number) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(None, rendering.NO_VALUE), (0, "0 %"), (0.00001, "< 0.1 %"), (0.054, "5.4 %"), (0.71, "71 %"), (1, "100 %")],
)
def test_a_small_share_is_never_shown_as_zero(share: float | None, text: str) -> None:
    assert rendering.share_text(share) == text


def test_an_age_counts_both_ways_and_an_instant_is_in_utc() -> None:
    assert rendering.age_text(NOW - timedelta(minutes=6), NOW) == "6 min"
    assert rendering.age_text(NOW + timedelta(hours=3), NOW) == "3 h"
    assert rendering.iso_instant(NOW) == "2026-11-22T12:04:31Z"
    assert rendering.count_text(12_400) == "12,400"
