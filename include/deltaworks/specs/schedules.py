"""Validates cron expressions as Airflow reads them, suggests one for common phrases, and returns next runs."""

from __future__ import annotations

import datetime as dt
import functools
import os
import re
from typing import Annotated, Final

from pydantic import AfterValidator

#: `off` disables all schedules: gold, maintenance, mutations and cleaning run only manually, and gold by backfills.
SCHEDULES_VARIABLE: Final = "DELTAWORKS_SCHEDULES"
#: Airflow's presets.
PRESETS: Final = ("@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")
_PARTS = 5
_INTERVAL_PHRASE = re.compile(
    r"(?:once )?(?:every|each|all) (?:(\d+) ?)?(minute|min|m|hour|h|day|d|week|month)s?(?: at (\d{1,2})(?::(\d\d))?)?"
)
_PHRASES: Final = {
    "minutely": "* * * * *",
    "hourly": "0 * * * *",
    "daily": "0 3 * * *",
    "nightly": "0 3 * * *",
    "weekly": "0 3 * * 0",
    "monthly": "0 3 1 * *",
}
_BOUNDS: Final = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_ITEM = re.compile(r"(?:\*|(\d+)(?:-(\d+))?)(?:/(\d+))?")
_EXAMPLE = "*/15 * * * *"
_RANGES = "minute 0 to 59, hour 0 to 23, day 1 to 31, month 1 to 12, weekday 0 to 7"


def schedules_enabled() -> bool:
    """Returns whether jobs run on their schedules, by the environment variable of this process."""
    return os.environ.get(SCHEDULES_VARIABLE, "") != "off"


def cron_within(interval: dt.timedelta) -> str:
    """Returns the cron expression of the most regular schedule whose runs are at most `interval` apart, of at least a
    minute; daily for a day or longer.
    """
    minutes = max(1, int(interval.total_seconds()) // 60)
    if minutes < 60:
        return f"*/{max(step for step in range(1, minutes + 1) if 60 % step == 0)} * * * *"
    hours = minutes // 60
    if hours < 24:
        return f"0 */{max(step for step in range(1, hours + 1) if 24 % step == 0)} * * *"
    return _PHRASES["daily"]


@functools.lru_cache(maxsize=256)
def schedule_problem(expression: str) -> str | None:
    """Returns the error of a cron expression and what to write instead; None if it is valid."""
    if expression in PRESETS:
        return None
    parts = expression.split()
    if len(parts) != _PARTS:
        return (
            "write a cron expression of five parts (minute, hour, day, month, weekday), such as "
            f'"{_suggest_expression(expression)}", instead of {expression!r}'
        )
    if _is_plain(parts):
        return None
    from croniter import CroniterError, croniter

    try:
        croniter.expand(expression)
    except CroniterError:
        return f'{expression!r} is not a cron expression: {_RANGES}; write one such as "{_EXAMPLE}"'
    return None


def _is_plain(parts: list[str]) -> bool:
    """Returns whether the parts are valid numbers, ranges and steps.

    Most expressions are, and croniter is only imported for others: its import takes a tenth of each command's startup.
    """
    for part, (low, high) in zip(parts, _BOUNDS, strict=True):
        for item in part.split(","):
            match = _ITEM.fullmatch(item)
            if match is None:
                return False
            first, last, step = (int(number) if number else None for number in match.groups())
            first = low if first is None else first
            if not low <= first <= (first if last is None else last) <= high or step == 0:
                return False
    return True


def _suggest_expression(phrase: str) -> str:
    """Returns the cron expression for a phrase such as `every 15 minutes`, or an example."""
    words = " ".join(phrase.lower().replace("@", "").split())
    if words in _PHRASES:
        return _PHRASES[words]
    match = _INTERVAL_PHRASE.fullmatch(words)
    if match is None:
        return _EXAMPLE
    number, unit, hour, minute = match[1], match[2][0], match[3] or "3", match[4] or "0"
    if match[2] == "month":
        return f"{int(minute)} {int(hour)} 1 * *"
    if unit == "m":
        return f"*/{number} * * * *" if number and int(number) > 1 else "* * * * *"
    if unit == "h":
        return f"0 */{number} * * *" if number and int(number) > 1 else "0 * * * *"
    day = f"*/{number}" if unit == "d" and number and int(number) > 1 else "*"
    return f"{int(minute)} {int(hour)} {day} * {'0' if unit == 'w' else '*'}"


def _check_schedule(expression: str) -> str:
    problem = schedule_problem(expression)
    if problem is not None:
        raise ValueError(problem)
    return expression


#: The type of a schedule in a spec: a cron expression of five parts, or an Airflow preset.
Schedule = Annotated[str, AfterValidator(_check_schedule)]


def next_run(expression: str, after: dt.datetime) -> dt.datetime:
    """Returns the first run of a schedule after an instant, in UTC."""
    from croniter import croniter

    # croniter has no @quarterly.
    following: dt.datetime = croniter({"@quarterly": "0 0 1 */3 *"}.get(expression, expression), after).get_next(
        dt.datetime
    )
    return following
