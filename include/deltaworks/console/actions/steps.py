"""Selects the actions that a person may start, and shows their steps: the form, the run, and the confirmation.

Actions with a dry run count first. The real run is started from a successful count with the same options, and the
confirmation page shows what it deletes.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from deltaworks.airflow_client.api import FINISHED_STATES, AirflowApi, DagRun
from deltaworks.console.actions.fields import Field, form_fields, parse_form, prefill, supports_dry_run
from deltaworks.console.page_context import PageContext, PageMissingError
from deltaworks.errors import ConfigError
from deltaworks.operations.base import COUNT_TASK, RESULTS_KEY, Operation
from deltaworks.operations.dag_forms import DRY_RUN, form_of, unavailable_reason
from deltaworks.operations.registry import OPERATIONS
from deltaworks.specs.dag_ids import dag_id


@dataclass(frozen=True, slots=True)
class Action:
    """An operation and its subject, both of which exist and are visible to the person.

    With `self_approval` people may approve their own requests.
    """

    operation: Operation
    subject: str
    self_approval: bool = False

    @property
    def dag_id(self) -> str:
        """The DAG whose run executes the action."""
        return self.operation.dag_id(self.subject)

    @property
    def route(self) -> str:
        """The path of the action's form below the console."""
        return f"/actions/{self.operation.name}/{self.subject}"

    def command(self, conf: Mapping[str, Any] | None = None) -> str:
        """Returns the equivalent command, without options that have no value."""
        words = ["deltaworks", *self.operation.command.split(), self.subject]
        for name, value in (conf or {}).items():
            flag = "--" + name.replace("_", "-")
            if name == self.operation.actions_from:
                words.insert(2 + len(self.operation.command.split()), str(value))
            elif isinstance(value, bool):
                words += [flag if value else f"--no-{flag[2:]}"] if value or name == DRY_RUN else []
            elif isinstance(value, list | tuple):
                words += [f"{flag}={one}" for one in value]
            elif value is not None:
                words.append(f"{flag}={value}")
        return shlex.join(words)


def find_action(context: PageContext, name: str, subject: str) -> Action:
    """Returns the action of an address.

    Raises:
        PageMissingError: the operation or subject does not exist, or the person may not see it.
    """
    operation = OPERATIONS.get(name)
    if operation is None or not _is_available(context, operation, subject):
        raise PageMissingError(f"There is no action {name!r} for {subject!r} that you may see.")
    return Action(operation, subject, context.catalog.environment.approvals.self_approval)


def _is_available(context: PageContext, operation: Operation, subject: str) -> bool:
    if operation.scope == "namespace":
        return False  # access to a pipeline does not imply access to a namespace
    if operation.scope == "relay":
        return subject in context.catalog.relays and context.person.may_read(dag_id(subject, "relay"))
    spec = context.catalog.pipelines.get(subject)
    return spec is not None and context.may_read(subject) and unavailable_reason(operation, spec) is None


#: Pattern of the nonce in each form. The run id contains the nonce, so a form that is sent twice starts one run.
_NONCE_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{16,64}")
RUN_PREFIX: Final = "console__"
#: Names of form fields that belong to the form itself. No option has these names.
NONCE, COUNT_RUN, NOTE = "_nonce", "_count_run", "_note"
_MAX_ROWS = 100
_MAX_NOTE_CHARACTERS = 500
#: The options of an operation that starts or stops a process.
_VERB, _REASON = "verb", "reason"
_AWAITING_INPUT: Final = "awaiting_input"
#: Opens a client of Airflow's API.
Connect = Callable[[], AirflowApi]


@dataclass(frozen=True, slots=True, kw_only=True)
class FormView:
    """Content of a form page.

    With `is_dry_run` the submission only counts. The last submission failed with `error`. Fields that are not `shown`
    are folded. A link that starts or stops a process sets the `verb`, so the form is one confirmation.
    """

    action: Action
    fields: tuple[Field, ...]
    shown: tuple[str, ...]
    verb: str
    is_dry_run: bool
    nonce: str
    may_start: bool
    command: str
    error: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The current status of a run.

    The records of its job are `results`. If an approval is pending, `approval_address` is the page for the answer. If a
    task waits for a slot, `waits` says what uses it.
    """

    dag_id: str
    run_id: str
    state: str
    conf: Mapping[str, Any]
    address: str
    triggered_by: str = ""
    tasks: tuple[tuple[str, str], ...] = ()
    results: tuple[Mapping[str, Any], ...] = ()
    approval_address: str = ""
    waits: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether the run has succeeded or failed."""
        return self.state in FINISHED_STATES


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


def form_view(
    connect: Connect, action: Action, *, values: Mapping[str, Any], may_start: bool, error: str = ""
) -> FormView:
    """Returns the form of an action, prefilled by field name.

    Raises:
        DeltaworksError: Airflow's error.
    """
    params: Mapping[str, Any] = {}
    if may_start:
        with connect() as api:
            params = api.dag_params(action.dag_id)
    fields = prefill(form_fields(action.operation, params), values)
    verb = str(values.get(_VERB) or "")
    verb = verb if not error and any(field.name == _VERB and verb in field.choices for field in fields) else ""
    return FormView(
        action=action,
        fields=fields,
        shown=(_REASON,)
        if verb
        else tuple(field.name for field in fields if not field.section or field.name in values),
        verb=verb,
        is_dry_run=supports_dry_run(action.operation),
        nonce=new_nonce(),
        may_start=may_start,
        command=action.command({**values, **({DRY_RUN: True} if supports_dry_run(action.operation) else {})}),
        error=error,
        note=str(values.get(NOTE, "")),
    )


def check_dag(connect: Connect, action: Action) -> None:
    """Raises Airflow's error if it does not have the DAG of an action.

    Raises:
        ConfigError: AIRFLOW_DAG_UNKNOWN.
    """
    with connect() as api:
        try:
            api.dag_params(action.dag_id)
        except ConfigError as error:
            if error.condition != "AIRFLOW_FORBIDDEN":
                raise


def submit(connect: Connect, action: Action, posted: Mapping[str, Sequence[str]]) -> str:
    """Starts the run that a form requests: a count, a counted action, or an action without dry run.

    Returns:
        The id of the run, the same however often the form is sent.

    Raises:
        FormError: an invalid field value.
        ConfigError: ACTION_FORM_STALE, ACTION_NOT_COUNTED; DeltaworksError: Airflow's error.
    """
    run_id = run_id_of(_last_value(posted, NONCE))
    note = _last_value(posted, NOTE)[:_MAX_NOTE_CHARACTERS]
    count_run_id = _last_value(posted, COUNT_RUN)
    with connect() as api:
        if count_run_id:
            conf = {**_counted_run(api, action, count_run_id).conf, DRY_RUN: False}
        else:
            options = parse_form(form_fields(action.operation, api.dag_params(action.dag_id)), posted)
            if supports_dry_run(action.operation):
                options[DRY_RUN] = True
            conf = form_of(action.operation).select(action.operation, options)
        api.trigger(action.dag_id, run_id=run_id, conf=conf, note=note)
    return run_id


def run_view(connect: Connect, action: Action, run_id: str) -> RunView:
    """Returns a run of an action.

    Raises:
        PageMissingError: there is no such run; DeltaworksError: Airflow's error.
    """
    with connect() as api:
        return _run_view(action, _run_status(api, action, _find_run(api, action, run_id)))


def confirm_view(connect: Connect, action: Action, run_id: str, *, may_start: bool) -> ConfirmView:
    """Returns the confirmation of a count.

    Raises:
        PageMissingError: there is no such run; ConfigError: ACTION_NOT_COUNTED; DeltaworksError: Airflow's error.
    """
    with connect() as api:
        counted = _counted_run(api, action, run_id)
        run = _run_view(action, _run_status(api, action, counted))
    return ConfirmView(
        action=action,
        run=run,
        nonce=new_nonce(),
        count_run_id=run_id,
        may_start=may_start,
        command=action.command({**form_of(action.operation).deselect(action.operation, counted.conf), DRY_RUN: False}),
        totals=_sum_counts(run.status.results),
    )


def _counted_run(api: AirflowApi, action: Action, run_id: str) -> DagRun:
    """Returns a successful count of this action."""
    run = _find_run(api, action, run_id)
    if run.state != "success" or run.conf.get(DRY_RUN) is not True:
        raise ConfigError(
            "ACTION_NOT_COUNTED",
            f"The run {run_id} of {action.dag_id} is not a successful count: it is {run.state}.",
        )
    return run


def _find_run(api: AirflowApi, action: Action, run_id: str) -> DagRun:
    run = api.find_run(action.dag_id, run_id)
    if run is None:
        raise PageMissingError(f"Airflow has no run {run_id!r} of {action.dag_id}.")
    return run


def _run_status(api: AirflowApi, action: Action, run: DagRun) -> RunStatus:
    """Returns the status of a run, with the results of its job, or else those of its count."""
    tasks = api.task_instances(run.dag_id, run.run_id)
    states = {task.task_id: task.state or "" for task in tasks}
    waiting_task = next((name for name, state in states.items() if state == _AWAITING_INPUT), "")
    return RunStatus(
        dag_id=run.dag_id,
        run_id=run.run_id,
        state=run.state,
        conf=run.conf,
        triggered_by=run.triggered_by,
        tasks=tuple(states.items()),
        results=_results(api, run, [name for name in (action.operation.name, COUNT_TASK) if name in states]),
        address=api.run_link(run.dag_id, run.run_id),
        approval_address=api.approval_link(run.dag_id, run.run_id, waiting_task) if waiting_task else "",
        waits="" if run.state in FINISHED_STATES else api.describe_wait(tasks),
    )


def _results(api: AirflowApi, run: DagRun, task_ids: Sequence[str]) -> tuple[Mapping[str, Any], ...]:
    """Returns the records of the first of these tasks that has results."""
    for task_id in task_ids:
        value = api.xcom(run.dag_id, run.run_id, task_id, RESULTS_KEY)
        if isinstance(value, list):
            return tuple(record for record in value if isinstance(record, dict))
    return ()


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
