"""Runs an operation in Airflow: triggers its DAG with the options as params and follows the run.

DAG id, tasks and params come from the operation's declaration, from which the DAG itself is built. All options are
passed, so that a run does not depend on the form's defaults; a shared form is told which operation it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from deltaworks.airflow_client.api import AirflowApi, DagRun, TaskInstance, airflow_client
from deltaworks.control.listing import listing_of_records
from deltaworks.errors import ConfigError, ContractError, DeltaworksError, TransientError
from deltaworks.operations.approval_checks import approvers_of
from deltaworks.operations.base import APPROVE_TASK, COUNT_TASK, ERROR_RECORD_KEY, RESULTS_KEY, Operation, Report
from deltaworks.operations.dag_forms import form_of, unavailable_reason
from deltaworks.operations.options import Options, read_options

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog

#: The state of a task that waits for a person.
_AWAITING_INPUT = "awaiting_input"
#: Key of the reported wait; no task has this name.
_WAIT = "/wait"
#: Task states that are printed when a task reaches them.
_REPORTED_STATES = frozenset({"running", "success", "failed", "skipped", "up_for_retry", "upstream_failed"})
_POLL_SECONDS = 2.0


def run_in_airflow(
    operation: Operation,
    catalog: Catalog,
    subject: str,
    values: Mapping[str, Any],
    *,
    wait_minutes: float,
    echo: Callable[[str], None] = print,
    connect: Callable[[], AirflowApi] | None = None,
) -> Report:
    """Triggers the operation's DAG and follows the run.

    Each call triggers a new run. The lake need not be reachable.

    Args:
        values: options; None for the default.
        wait_minutes: how long the run is followed; 0 returns after the trigger.

    Returns:
        The results of the job, listed as in its own report.

    Raises:
        ConfigError: OPTION_INVALID; OPERATION_UNAVAILABLE; AIRFLOW_DAG_PAUSED; errors of requests to Airflow.
        ContractError: APPROVAL_REJECTED.
        TransientError: DAG_RUN_FAILED, DAG_RUN_TIMEOUT, APPROVAL_PENDING.
    """
    options = read_options(
        operation.options_model(), {name: value for name, value in values.items() if value is not None}
    )
    _check_available(operation, catalog, subject)
    dag_id = operation.dag_id(subject)
    with connect() if connect is not None else airflow_client(catalog.environment) as airflow:
        dag = airflow.dag(dag_id)
        if dag is not None and dag.is_paused:
            raise ConfigError(
                "AIRFLOW_DAG_PAUSED",
                f"{dag_id} is paused, so a run would not start. None was triggered.",
                hint=f"Unpause it in Airflow ({airflow.dag_link(dag_id)}), or run the command without --in-airflow.",
            )
        run = airflow.trigger(dag_id, conf=form_of(operation).run_values(operation, options))
        link = airflow.run_link(dag_id, run.run_id)
        echo(f"Triggered {dag_id}: run {run.run_id}, {link}")
        approvers = (
            ", ".join(person.name or person.id for person in approvers_of(catalog, subject, scope=operation.scope))
            if operation.waits_for_approval
            else ""
        )
        if wait_minutes <= 0:
            later = "It waits there for approval of its count. " if _needs_approval(operation, options) else ""
            return Report(
                parts=[
                    (f"The run is not followed. {later}Its results will be in the XCom `{RESULTS_KEY}` of its task.")
                ]
            )
        follower = _RunFollower(airflow, operation, options, run, approvers=approvers, echo=echo)
        return follower.follow(time.monotonic() + 60 * wait_minutes)


def _check_available(operation: Operation, catalog: Catalog, subject: str) -> None:
    if operation.scope == "namespace":
        catalog.namespace(subject)
        reason = None
    elif operation.scope == "relay":
        relay = catalog.relay(subject)
        reason = "It declares no `clean`." if operation.name == "clean_source" and relay.clean is None else None
    else:
        reason = unavailable_reason(operation, catalog.pipeline(subject))
    if reason is not None:
        raise ConfigError("OPERATION_UNAVAILABLE", f"{subject} has no DAG {operation.dag_id(subject)}. {reason}")


def _needs_approval(operation: Operation, options: Options) -> bool:
    return operation.waits_for_approval and not getattr(options, "dry_run", False)


@dataclass(slots=True)
class _RunFollower:
    """Polls a run and prints each state change of a task once."""

    airflow: AirflowApi
    operation: Operation
    options: Options
    run: DagRun
    approvers: str
    echo: Callable[[str], None]
    _reported: dict[str, str] = field(default_factory=dict)

    def follow(self, deadline: float) -> Report:
        """Polls until the run has ended or the deadline has passed. Outages of Airflow are retried."""
        while True:
            try:
                self.run = self.airflow.dag_run(self.run.dag_id, self.run.run_id)
                tasks = self.airflow.task_instances(self.run.dag_id, self.run.run_id)
            except TransientError as error:
                if time.monotonic() > deadline:
                    raise
                self.echo(f"Airflow does not answer ({error.condition}). The run continues; retrying.")
            else:
                self._report_changes(tasks)
                self._report_wait(tasks)
                if self.run.is_finished:
                    return self._report_outcome(tasks)
                if time.monotonic() > deadline:
                    raise self._not_finished(tasks)
            time.sleep(_POLL_SECONDS)

    @property
    def _link(self) -> str:
        return self.airflow.run_link(self.run.dag_id, self.run.run_id)

    @property
    def _approval_link(self) -> str:
        return self.airflow.approval_link(self.run.dag_id, self.run.run_id, APPROVE_TASK)

    def _report_changes(self, tasks: Sequence[TaskInstance]) -> None:
        if self.run.state == "queued" and "" not in self._reported:
            self._reported[""] = "queued"
            self.echo("It is queued: one run of a DAG is active at a time.")
        for task in tasks:
            state = task.state or ""
            if self._reported.get(task.task_id, "") == state:
                continue
            self._reported[task.task_id] = state
            if state == _AWAITING_INPUT:
                approver_text = f" by {self.approvers}" if self.approvers else ""
                self.echo(f"{task.task_id} waits for approval{approver_text}: {self._approval_link}")
            elif state in _REPORTED_STATES:
                took = f" after {task.duration_seconds:.0f} s" if task.duration_seconds and state != "running" else ""
                self.echo(f"{task.task_id}: {state}{took}")

    def _report_wait(self, tasks: Sequence[TaskInstance]) -> None:
        """Prints once what uses the pool that a task waits for."""
        if _WAIT not in self._reported and (text := self.airflow.describe_wait(tasks)):
            self._reported[_WAIT] = text
            self.echo(text)

    def _report_outcome(self, tasks: Sequence[TaskInstance]) -> Report:
        states = {task.task_id: task.state for task in tasks}
        if self.run.state != "success":
            raise self._run_failed(tasks)
        needs_approval = _needs_approval(self.operation, self.options)
        if needs_approval and states.get(self.operation.name) == "skipped":
            raise ContractError(
                "APPROVAL_REJECTED",
                f"{self.operation.command} was not approved; nothing was done.",
                hint=f"The count and the answer are in {self._link}.",
            )
        # A dry run ends with the count, if there is an approval; otherwise the operation itself only counts.
        task_id = COUNT_TASK if states.get(self.operation.name) == "skipped" else self.operation.name
        records = self.airflow.xcom(self.run.dag_id, self.run.run_id, task_id, RESULTS_KEY) or []
        listing = listing_of_records([record for record in records if isinstance(record, dict)])
        result_note = "" if records else " Its job returned no records; see its log."
        return Report(parts=[f"{self.run.dag_id} has succeeded.{result_note}", listing])

    def _run_failed(self, tasks: Sequence[TaskInstance]) -> DeltaworksError:
        failed_task = next((task for task in tasks if task.state == "failed"), None)
        error = self._read_task_error(failed_task) if failed_task is not None else None
        task_text = f" in {failed_task.task_id}" if failed_task is not None else ""
        summary, items = (error.summary, error.items) if error is not None else ("", ())
        cause = f": [{error.condition}] {summary}" if error is not None else "."
        next_step = f"{error.hint} " if error is not None and error.hint else ""
        return TransientError(
            "DAG_RUN_FAILED",
            f"{self.run.dag_id} run {self.run.run_id} failed{task_text}{cause}",
            items=items,
            hint=f"{next_step}Its log: {self._link}.",
            retryable=error is None or error.retryable,
        )

    def _read_task_error(self, task: TaskInstance) -> DeltaworksError | None:
        """Returns the error that a failed task has stored, if it can be read."""
        # The task's log also contains data, in which anything may look like an error.
        try:
            record = self.airflow.xcom(self.run.dag_id, self.run.run_id, task.task_id, ERROR_RECORD_KEY)
        except DeltaworksError:
            return None
        return DeltaworksError.from_record(record) if isinstance(record, dict) else None

    def _not_finished(self, tasks: Sequence[TaskInstance]) -> TransientError:
        if any(task.state == _AWAITING_INPUT for task in tasks):
            return TransientError(
                "APPROVAL_PENDING",
                f"Run {self.run.run_id} of {self.run.dag_id} still waits for approval and keeps waiting.",
                hint=f"Ask another person to approve it: {self._approval_link}.",
            )
        return TransientError(
            "DAG_RUN_TIMEOUT",
            f"Run {self.run.run_id} of {self.run.dag_id} is still {self.run.state} and continues.",
            hint=f"Check it: {self._link}; --wait-minutes follows it for longer.",
        )
