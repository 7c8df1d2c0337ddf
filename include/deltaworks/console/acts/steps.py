"""The steps of an act as pages: the form, the run that was started, and what was counted, before it is done.

What can count counts first: its form has no box for that. A run in earnest is started from a count that has ended well,
with the options of that count, and its page names what goes.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fastapi import Request

from deltaworks.console.acts.fields import DRY_RUN, Field, conf_of, counts_first, fields_of, prefilled
from deltaworks.console.acts.offers import Act
from deltaworks.console.seams import Acts, RunSeen
from deltaworks.errors import ConfigError
from deltaworks.operations.base import COUNT_TASK

#: What a form carries so that sending it twice is one run.
_NONCE: Final = re.compile(r"[A-Za-z0-9_-]{16,64}")
RUN_PREFIX: Final = "console__"
#: Names in a form of its own, which no option has.
NONCE, COUNTED, NOTE = "_nonce", "_counted", "_note"
_MOST_ROWS = 100
_NOTE_CHARACTERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class FormView:
    """A form to be filled in. `counts`: sending it only counts. `wrong` is what was wrong with the last one."""

    act: Act
    fields: tuple[Field, ...]
    counts: bool
    nonce: str
    may_start: bool
    command: str
    wrong: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run that was started here. `confirm` is the address of the next step, where it only counted."""

    act: Act
    seen: RunSeen
    only_counted: bool
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    rows_more: int
    options: tuple[tuple[str, str], ...]
    confirm: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmView:
    """What was counted, and the one button that does it."""

    act: Act
    run: RunView
    nonce: str
    counted: str
    may_start: bool
    command: str
    totals: tuple[tuple[str, int], ...] = field(default=())


def new_nonce() -> str:
    """A nonce of a form."""
    return secrets.token_urlsafe(18)


def run_id_of(nonce: str) -> str:
    """The run of a form, the same however often it is sent.

    Raises:
        ConfigError: ACT_FORM_STALE, it carries none.
    """
    if not _NONCE.fullmatch(nonce):
        raise _stale("The form carries no number of its own.")
    return RUN_PREFIX + nonce


async def form_view(
    acts: Acts, request: Request, act: Act, *, values: Mapping[str, Any], may_start: bool, wrong: str = ""
) -> FormView:
    """The form of an act, filled with values of its fields' names.

    Raises:
        DeltaworksError: what Airflow says.
    """
    params = await acts.form(request, dag_id=act.dag_id) if may_start else {}
    fields = prefilled(fields_of(params), values)
    return FormView(
        act=act,
        fields=fields,
        counts=counts_first(params),
        nonce=new_nonce(),
        may_start=may_start,
        command=act.command({**values, **({DRY_RUN: True} if counts_first(params) else {})}),
        wrong=wrong,
        note=str(values.get(NOTE, "")),
    )


async def submitted(acts: Acts, request: Request, act: Act, posted: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    """Start what a form asks for: a count, what was counted, or what cannot count. The run's id, and its address.

    Raises:
        FormError: a value that a field does not take.
        ConfigError: ACT_FORM_STALE, ACT_NOT_COUNTED; DeltaworksError: what Airflow says.
    """
    run_id = run_id_of(_last(posted, NONCE))
    note = _last(posted, NOTE)[:_NOTE_CHARACTERS]
    counted = _last(posted, COUNTED)
    params = await acts.form(request, dag_id=act.dag_id)
    if counted:
        conf = {**await _counted(acts, request, act, counted), DRY_RUN: False}
    else:
        conf = conf_of(fields_of(params), posted)
        if counts_first(params):
            conf[DRY_RUN] = True
    started = await acts.start(request, dag_id=act.dag_id, run_id=run_id, conf=conf, note=note)
    return started.run_id, started.address


async def run_view(acts: Acts, request: Request, act: Act, run_id: str) -> RunView:
    """A run of an act.

    Raises:
        DeltaworksError: what Airflow says.
    """
    task_ids = [COUNT_TASK, act.declared.name]
    seen = await acts.seen(request, dag_id=act.dag_id, run_id=run_id, task_ids=task_ids)
    return _run_view(act, seen)


async def confirm_view(acts: Acts, request: Request, act: Act, run_id: str, *, may_start: bool) -> ConfirmView:
    """The step from a count to the act.

    Raises:
        ConfigError: ACT_NOT_COUNTED; DeltaworksError: what Airflow says.
    """
    conf = await _counted(acts, request, act, run_id)
    run = await run_view(acts, request, act, run_id)
    return ConfirmView(
        act=act,
        run=run,
        nonce=new_nonce(),
        counted=run_id,
        may_start=may_start,
        command=act.command({**conf, DRY_RUN: False}),
        totals=_totals(run.seen.results),
    )


async def _counted(acts: Acts, request: Request, act: Act, run_id: str) -> dict[str, Any]:
    """The options of a count of this act that has ended well."""
    seen = await acts.seen(request, dag_id=act.dag_id, run_id=run_id, task_ids=[])
    if seen.state != "success" or seen.conf.get(DRY_RUN) is not True:
        raise ConfigError(
            "ACT_NOT_COUNTED",
            f"The run {run_id} of {act.dag_id} is no count that ended well: it is {seen.state}.",
            hint="Count first: open the form again. Nothing was started.",
        )
    return dict(seen.conf)


def _run_view(act: Act, seen: RunSeen) -> RunView:
    columns = tuple(dict.fromkeys(name for record in seen.results for name in record))
    rows = tuple(tuple(_text(record.get(name)) for name in columns) for record in seen.results[:_MOST_ROWS])
    counted = seen.conf.get(DRY_RUN) is True
    options = tuple((name, _text(value)) for name, value in seen.conf.items() if value is not None and name != DRY_RUN)
    done = counted and seen.state == "success"
    return RunView(
        act=act,
        seen=seen,
        only_counted=counted,
        columns=columns,
        rows=rows,
        rows_more=max(0, len(seen.results) - _MOST_ROWS),
        options=options,
        confirm=f"{act.route}/confirm/{seen.run_id}" if done else "",
    )


def _totals(results: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, int], ...]:
    """The sums of what was counted, those of nothing left out."""
    sums: dict[str, int] = {}
    for record in results:
        for name, value in record.items():
            if isinstance(value, int) and not isinstance(value, bool):
                sums[name] = sums.get(name, 0) + value
    return tuple((name.replace("_", " "), total) for name, total in sums.items() if total)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _last(posted: Mapping[str, Sequence[str]], name: str) -> str:
    texts = posted.get(name, ())
    return texts[-1].strip() if texts else ""


def _stale(problem: str) -> ConfigError:
    return ConfigError("ACT_FORM_STALE", problem, hint="Open the form again and send it from there.")
