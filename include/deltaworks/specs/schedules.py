"""Validates cron expressions as Airflow reads them, suggests one for common phrases, and says when a table is built."""

from __future__ import annotations

import datetime as dt
import functools
import os
import re
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import AfterValidator

from deltaworks.specs.dag_ids import dag_id

if TYPE_CHECKING:
    from deltaworks.specs.pipeline import PipelineSpec

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


def how_a_table_is_created(spec: PipelineSpec, name: str, *, now: dt.datetime) -> str:
    """Returns what creates a declared table that does not exist yet: the stream, a scheduled run, or a command."""
    pipeline = spec.pipeline
    gold = next((table for table in spec.gold.tables if table.name == name), None)
    if gold is not None:
        command = f"`deltaworks gold build {pipeline} --tables {name}` builds it now"
        if gold.refresh_seconds is not None:
            return f"The stream builds it within {gold.refresh_seconds:g} s of its first rows; {command}."
        return f"{_scheduled(spec.gold.schedule, dag_id(pipeline, 'gold'), 'builds it', now)}{command}."
    model = next((model for model in spec.models if name in (model.name, model.warnings)), None)
    if model is not None:
        command = f"`deltaworks models train {pipeline} {model.name}` trains it now"
        return f"{_scheduled(spec.training.schedule, dag_id(pipeline, 'models'), 'trains it', now)}{command}."
    view = next((view for view in spec.views if view.name == name), None)
    if view is not None:
        return f"It is a view of {', '.join(view.reads)}, which must exist first."
    if any(reference.name == name for reference in spec.references):
        return f"`deltaworks gold build {pipeline}` reads it from its file."
    return f"Start the stream, or wait until it has started: `deltaworks status` shows the state of {pipeline}."


def _scheduled(schedule: str | None, dag: str, verb: str, now: dt.datetime) -> str:
    if schedule is None or not schedules_enabled():
        return ""
    return f"{dag} {verb} at {next_run(schedule, now):%Y-%m-%d %H:%M} UTC; "
