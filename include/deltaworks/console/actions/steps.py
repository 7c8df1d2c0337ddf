"""The steps of an action as pages: the form, the started run, and the confirmation of its count.

Actions with a dry run count first. The real run is started from a successful count with the same options, and the
confirmation page shows what it deletes.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fastapi import Request

from deltaworks.console.actions.available import Action
from deltaworks.console.actions.fields import Field, form_fields, parse_form, prefill, supports_dry_run
from deltaworks.console.host import Actions, RunStatus
from deltaworks.errors import ConfigError
from deltaworks.operations.base import COUNT_TASK
from deltaworks.operations.dag_forms import DRY_RUN, form_of

#: Pattern of the nonce in each form. The run id contains the nonce, so a form that is sent twice starts one run.
_NONCE_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{16,64}")
RUN_PREFIX: Final = "console__"
#: Names of form fields that belong to the form itself. No option has these names.
NONCE, COUNT_RUN, NOTE = "_nonce", "_count_run", "_note"
_MAX_ROWS = 100
_MAX_NOTE_CHARACTERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class FormView:
    """Content of a form page.

    With `is_dry_run` the submission only counts. The last submission failed with `error`.
    """

    action: Action
    fields: tuple[Field, ...]
    is_dry_run: bool
    nonce: str
    may_start: bool
    command: str
    error: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """Content of the page of a run that the console started.

    After a successful count `confirm_path` is the path of the confirmation page.
    """

    action: Action
    status: RunStatus
    is_dry_run: bool
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    rows_omitted: int
    options: tuple[tuple[str, str], ...]
    confirm_path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmView:
    """Content of the confirmation page: the counted results, and the button that runs the action."""

    action: Action
    run: RunView
    nonce: str
    count_run_id: str
    may_start: bool
    command: str
    totals: tuple[tuple[str, int], ...] = field(default=())


def new_nonce() -> str:
    """Returns the nonce of a form."""
    return secrets.token_urlsafe(18)


def run_id_of(nonce: str) -> str:
    """Returns the run id of a form, the same however often it is sent.

    Raises:
        ConfigError: ACTION_FORM_STALE, it has no nonce.
    """
    if not _NONCE_PATTERN.fullmatch(nonce):
        raise _stale_form_error("The form has no valid number.")
    return RUN_PREFIX + nonce


async def form_view(
    actions: Actions, request: Request, action: Action, *, values: Mapping[str, Any], may_start: bool, error: str = ""
) -> FormView:
    """Returns the form of an action, prefilled by field name.

    Raises:
        DeltaworksError: Airflow's error.
    """
    params = await actions.dag_params(request, dag_id=action.dag_id) if may_start else {}
    fields = prefill(form_fields(action.operation, params) if may_start else (), values)
    return FormView(
        action=action,
        fields=fields,
        is_dry_run=supports_dry_run(action.operation),
        nonce=new_nonce(),
        may_start=may_start,
        command=action.command({**values, **({DRY_RUN: True} if supports_dry_run(action.operation) else {})}),
        error=error,
        note=str(values.get(NOTE, "")),
    )


async def submit(
    actions: Actions, request: Request, action: Action, posted: Mapping[str, Sequence[str]]
) -> tuple[str, str]:
    """Starts the run that a form requests: a count, a counted action, or an action without dry run. Returns run id and
    address.

    Raises:
        FormError: an invalid field value.
        ConfigError: ACTION_FORM_STALE, ACTION_NOT_COUNTED; DeltaworksError: Airflow's error.
    """
    run_id = run_id_of(_last_value(posted, NONCE))
    note = _last_value(posted, NOTE)[:_MAX_NOTE_CHARACTERS]
    count_run_id = _last_value(posted, COUNT_RUN)
    params = await actions.dag_params(request, dag_id=action.dag_id)
    if count_run_id:
        conf = {**await _options_of_count(actions, request, action, count_run_id), DRY_RUN: False}
    else:
        options = parse_form(form_fields(action.operation, params), posted)
        if supports_dry_run(action.operation):
            options[DRY_RUN] = True
        conf = form_of(action.operation).select(action.operation, options)
    started = await actions.start(request, dag_id=action.dag_id, run_id=run_id, conf=conf, note=note)
    return started.run_id, started.address


async def run_view(actions: Actions, request: Request, action: Action, run_id: str) -> RunView:
    """Returns a run of an action.

    Raises:
        DeltaworksError: Airflow's error.
    """
    task_ids = [COUNT_TASK, action.operation.name]
    status = await actions.run_status(request, dag_id=action.dag_id, run_id=run_id, task_ids=task_ids)
    return _run_view(action, status)


async def confirm_view(
    actions: Actions, request: Request, action: Action, run_id: str, *, may_start: bool
) -> ConfirmView:
    """Returns the confirmation of a count.

    Raises:
        ConfigError: ACTION_NOT_COUNTED; DeltaworksError: Airflow's error.
    """
    conf = await _options_of_count(actions, request, action, run_id)
    run = await run_view(actions, request, action, run_id)
    return ConfirmView(
        action=action,
        run=run,
        nonce=new_nonce(),
        count_run_id=run_id,
        may_start=may_start,
        command=action.command({**form_of(action.operation).deselect(action.operation, conf), DRY_RUN: False}),
        totals=_sum_counts(run.status.results),
    )


async def _options_of_count(actions: Actions, request: Request, action: Action, run_id: str) -> dict[str, Any]:
    """Returns the options of a successful count of this action."""
    status = await actions.run_status(request, dag_id=action.dag_id, run_id=run_id, task_ids=[])
    if status.state != "success" or status.conf.get(DRY_RUN) is not True:
        raise ConfigError(
            "ACTION_NOT_COUNTED",
            f"The run {run_id} of {action.dag_id} is not a successful count: it is {status.state}.",
        )
    return dict(status.conf)


def _run_view(action: Action, status: RunStatus) -> RunView:
    columns = tuple(dict.fromkeys(name for record in status.results for name in record))
    rows = tuple(tuple(_format_value(record.get(name)) for name in columns) for record in status.results[:_MAX_ROWS])
    is_dry_run = status.conf.get(DRY_RUN) is True
    conf = form_of(action.operation).deselect(action.operation, status.conf)
    options = tuple(
        (name, _format_value(value)) for name, value in conf.items() if value is not None and name != DRY_RUN
    )
    can_confirm = is_dry_run and status.state == "success"
    return RunView(
        action=action,
        status=status,
        is_dry_run=is_dry_run,
        columns=columns,
        rows=rows,
        rows_omitted=max(0, len(status.results) - _MAX_ROWS),
        options=options,
        confirm_path=f"{action.route}/confirm/{status.run_id}" if can_confirm else "",
    )


def _sum_counts(results: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, int], ...]:
    """Returns the sums of counted fields that are not zero."""
    sums: dict[str, int] = {}
    for record in results:
        for name, value in record.items():
            if isinstance(value, int) and not isinstance(value, bool):
                sums[name] = sums.get(name, 0) + value
    return tuple((name.replace("_", " "), total) for name, total in sums.items() if total)


def _format_value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _last_value(posted: Mapping[str, Sequence[str]], name: str) -> str:
    texts = posted.get(name, ())
    return texts[-1].strip() if texts else ""


def _stale_form_error(problem: str) -> ConfigError:
    return ConfigError("ACTION_FORM_STALE", problem)
