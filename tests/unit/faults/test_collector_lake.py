"""The check of a collector's soak detects every violation of an acknowledgement."""

from __future__ import annotations

import pytest

from tests.faults.harness.collector_lake import check_collected

SENT = {"a", "b", "c"}


@pytest.mark.parametrize(
    ("there", "wrong"),
    [
        (["a", "b"], {}),
        (["b", "a", "c"], {}),
        (["a"], {"lost": {"b"}}),
        (["a", "b", "b"], {"doubled": {"b"}}),
        (["a", "b", "c", "c"], {"doubled": {"c"}}),
        (["a", "b", "x"], {"strange": {"x"}}),
    ],
)
def test_acknowledged_events_are_present_once_and_others_at_most_once(
    there: list[str], wrong: dict[str, set[str]]
) -> None:
    verdict = check_collected({"a", "b"}, SENT, there)

    assert verdict.is_exact == (not wrong)
    for name in ("lost", "doubled", "strange"):
        assert getattr(verdict, name) == wrong.get(name, set())
