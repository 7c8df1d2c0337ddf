"""Cron expressions are validated as Airflow reads them; phrases are answered with their expression."""

from __future__ import annotations

import datetime as dt

import pytest
from croniter import croniter
from hypothesis import example, given
from hypothesis import strategies as st

from deltaworks.specs.schedules import PRESETS, next_run, schedule_problem


@pytest.mark.parametrize(
    "expression", ["*/15 * * * *", "0 3 * * 0", "15,45 0-6/2 1 JAN MON", "0 0 L * *", "5 4 * * sun", *PRESETS]
)
def test_expressions_of_airflow_are_valid(expression: str) -> None:
    assert schedule_problem(expression) is None


@pytest.mark.parametrize(
    ("phrase", "expression"),
    [
        ("every 15 minutes", "*/15 * * * *"),
        ("every minute", "* * * * *"),
        ("every 2 hours", "0 */2 * * *"),
        ("Every hour", "0 * * * *"),
        ("hourly", "0 * * * *"),
        ("every day at 4:30", "30 4 * * *"),
        ("daily", "0 3 * * *"),
        ("every week", "0 3 * * 0"),
        ("every month", "0 3 1 * *"),
        ("when it rains", "*/15 * * * *"),
        ("0 */15 * * * *", "*/15 * * * *"),
    ],
)
def test_a_phrase_is_answered_with_its_expression(phrase: str, expression: str) -> None:
    messages = "write a cron expression of five parts (minute, hour, day, month, weekday), such as "

    assert schedule_problem(phrase) == f'{messages}"{expression}", instead of {phrase!r}'
    assert schedule_problem(expression) is None


@pytest.mark.parametrize("expression", ["61 3 * * *", "* 24 * * *", "* * 32 * *", "a b c d e", "*/0 * * * *"])
def test_five_invalid_parts_are_rejected(expression: str) -> None:
    assert str(schedule_problem(expression)).startswith(f"{expression!r} is not a cron expression: minute 0")


NUMBERS = st.integers(0, 70).map(str)
ITEMS = st.one_of(
    st.just("*"),
    NUMBERS,
    st.builds("{}-{}".format, NUMBERS, NUMBERS),
    st.builds("*/{}".format, NUMBERS),
    st.builds("{}/{}".format, NUMBERS, NUMBERS),
    st.builds("{}-{}/{}".format, NUMBERS, NUMBERS, NUMBERS),
)
PARTS = st.lists(ITEMS, min_size=1, max_size=3).map(",".join)


@given(st.lists(PARTS, min_size=5, max_size=5).map(" ".join))
@example("*/5 0-6/2 1,15 * 1")
def test_accepted_expressions_are_valid_for_airflows_library(expression: str) -> None:
    if schedule_problem(expression) is None:
        assert croniter.is_valid(expression)


def test_every_schedule_of_a_declaration_is_checked() -> None:
    from pydantic import TypeAdapter, ValidationError

    from deltaworks.specs.gold import GoldSpec
    from deltaworks.specs.maintenance import MaintenanceSpec
    from deltaworks.specs.mutation import MutationsSpec
    from deltaworks.specs.relay import CleanSpec

    for model, rest in (
        (GoldSpec, {}),
        (MaintenanceSpec, {}),
        (MutationsSpec, {"requests": "requests"}),
        (CleanSpec, {"mode": "delete"}),
    ):
        with pytest.raises(ValidationError, match="cron expression"):
            TypeAdapter(model).validate_python({**rest, "schedule": "every 15 minutes"})


NOW = dt.datetime(2026, 3, 1, 12, 3, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("expression", "following"),
    [
        ("*/15 * * * *", "2026-03-01 12:15"),
        ("@daily", "2026-03-02 00:00"),
        ("@quarterly", "2026-04-01 00:00"),
        ("0 4 * * 0", "2026-03-08 04:00"),
    ],
)
def test_the_next_run_of_a_schedule(expression: str, following: str) -> None:
    assert f"{next_run(expression, NOW):%Y-%m-%d %H:%M}" == following
