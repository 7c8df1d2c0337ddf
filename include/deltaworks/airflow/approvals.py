"""The task that asks a person to approve a deletion, and stores question and answer where the job reads them.

There is no default answer: a question that is not answered in time fails its task, and downstream tasks do not run. A
waiting question occupies no slot and no process. The job trusts the record in the lake. It does not trust the state of
this task, which any user who may edit task instances can set.

A run asks once. The requester is the user who triggered it; Airflow does not say who cleared it. In a cleared run one
person could request and approve, so it asks no question.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.exceptions import HITLRejectException, HITLTimeoutError
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import RetryDecision
from airflow.sdk.bases.notifier import BaseNotifier

from deltaworks.airflow.aws_connections import set_keys
from deltaworks.airflow.job_settings import JobRetryPolicy, pool_settings
from deltaworks.control.clock import utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.listing import LOG_WIDTH, Listing, format_bytes, plain_text
from deltaworks.control.objects import open_objects
from deltaworks.control.records.approval import Approval, Approvals, NamespaceApprovals, repeated_error
from deltaworks.errors import ContractError, escape_invisible
from deltaworks.operations.approval_checks import check_approver, counted_bounds, requested_options
from deltaworks.operations.base import RESULTS_KEY
from deltaworks.operations.dag_forms import DRY_RUN, DagForm
from deltaworks.operations.options import option_fields, read_options
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec

if TYPE_CHECKING:
    from airflow.sdk import Context

#: How long a question waits for its answer.
ANSWER_TIMEOUT = timedelta(hours=10)
#: Beginnings of the names of counts that say how much would change.
_AMOUNTS = ("rows", "files", "bytes", "objects", "messages", "changes")


class ApprovalRetryPolicy(JobRetryPolicy):
    """Retries the task after an outage, but not after a rejection or if the question was not answered in time."""

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        if isinstance(exception, HITLTimeoutError | HITLRejectException):
            return RetryDecision.fail(reason="not approved")
        return super().evaluate(exception, try_number, max_tries, context)


class OperationApproval(ApprovalOperator):
    """Asks for approval of an operation. If approved, downstream tasks run; if rejected, they are skipped.

    Where approvers are declared, Airflow rejects answers of other users and of the requester. Where none are, Airflow
    accepts the requester's approval, and this task then fails.

    An operation that needs no approval passes without a question.

    Args:
        form: the form of the DAG, which selects the operation.
        spec: the pipeline whose rows are affected; None for a namespace of personal data.
        count_task_id: the task whose results the question shows.
        namespace: that namespace.
        after_approval: what happens once it is approved, at the end of the question. A template, in Markdown.
        answer_timeout: must be shorter than the DAG's timeout, so that the question fails and not the run.
        notifiers: called when the question is asked.

    Raises:
        ValueError: a default answer is given.
        ContractError: APPROVAL_REFUSED, APPROVAL_REPEATED.
    """

    template_fields = (*ApprovalOperator.template_fields, "after_approval")

    def __init__(
        self,
        *,
        form: DagForm,
        spec: PipelineSpec | None,
        environment: EnvironmentSpec,
        count_task_id: str,
        namespace: str = "",
        after_approval: str = "",
        answer_timeout: timedelta = ANSWER_TIMEOUT,
        notifiers: Sequence[BaseNotifier] = (),
        **settings: Any,
    ) -> None:
        if settings.pop("defaults", None) is not None:
            raise ValueError(f"{settings.get('task_id')}: an approval has no default answer")
        share = environment.shares.of(form.operations[0].job_class)
        super().__init__(
            response_timeout=answer_timeout,
            notifiers=list(notifiers),
            **pool_settings(environment.shares.process_pool, priority=share.priority),
            retries=2,
            retry_delay=timedelta(seconds=30),
            retry_exponential_backoff=2.0,
            retry_policy=ApprovalRetryPolicy(),
            **settings,
        )
        self.form = form
        self.after_approval = after_approval
        self.approvers = (spec.approvers if spec is not None else ()) or environment.approvals.approvers
        self.self_approval = environment.approvals.self_approval
        self._pipeline = spec.pipeline if spec is not None else ""
        self._namespace = namespace
        self._lake = environment.lake
        self._count_task_id = count_task_id
        self._answer_timeout = answer_timeout

    def question(self, params: Mapping[str, Any]) -> str:
        """Returns the command of the operation that the form selects, for the subject of the question."""
        return self.form.chosen(params).command

    def shown_options(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the options of the selected operation that differ from their defaults, without `dry_run`."""
        operation = self.form.chosen(params)
        defaults = {field.name: field.default for field in option_fields(operation.options_model())}
        values = self.form.option_values(operation, params)
        return {
            name: value for name, value in values.items() if value and name != DRY_RUN and value != defaults.get(name)
        }

    def execute(self, context: Context) -> None:
        """Stores the question with its counts, and asks."""
        operation = self.form.chosen(context["params"])
        if not operation.approval and operation.scope == "pipeline":
            self.log.info("%s needs no approval.", operation.command)
            return
        self._refuse_cleared_run(context)
        question = self._question_of(context)
        earlier = self._approvals().earlier_answer(question)
        if earlier is not None:
            self._resume(context, earlier)
            return
        self._approvals().record_question(question)
        self.body = (
            f"{question.question_text}\n\nIf it is rejected or not answered, nothing is done.{self.after_approval}"
        )
        self.assigned_users = self._assignees(question)
        super().execute(context)

    def _resume(self, context: Context, answered: Approval) -> None:
        """Ends a retry of the task as its earlier try did, without another question."""
        self.log.info("An earlier try of this task was answered.")
        if answered.approved_at:
            check_approver(answered, self.approvers, self_approval=self.self_approval)
        event = {
            "chosen_options": [self.APPROVE if answered.approved_at else self.REJECT],
            "params_input": {},
            "responded_at": utc_now(),
            "responded_by_user": None,
        }
        super().execute_complete(context, event)

    def _refuse_cleared_run(self, context: Context) -> None:
        # A clear without resetting the run is visible only in the task's number of tries.
        cleared = context["dag_run"].clear_number or context["ti"].max_tries > (self.retries or 0)
        if cleared:
            operation = self.form.chosen(context["params"]).name
            raise repeated_error(operation, context["dag_run"].run_id, "belongs to the run before it was cleared")

    def _question_of(self, context: Context) -> Approval:
        run, params, ti, now = context["dag_run"], context["params"], context["ti"], utc_now()
        operation = self.form.chosen(params)
        options = read_options(operation.options_model(), self.form.option_values(operation, params))
        # The question shows the same reading of the counts that limits the job.
        count_results = ti.xcom_pull(task_ids=self._count_task_id, key=RESULTS_KEY) or []
        return Approval(
            operation=operation.name,
            subject=self._pipeline or self._namespace,
            run=run.run_id,
            requested_by=run.triggering_user_name or "",
            requested_at=now.isoformat(timespec="milliseconds"),
            run_started_at=run.start_date.isoformat() if run.start_date else "",
            try_number=ti.try_number,
            answer_by=(now + self._answer_timeout).isoformat(timespec="milliseconds"),
            question_text=question_text(count_results, self.shown_options(params)),
            options=requested_options(operation, options),
            bounds=counted_bounds(operation, options, count_results),
        )

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Stores the answer. Fails if the person may not approve the operation."""
        answer = super().execute_complete(context, event)
        operation, run = self.form.chosen(context["params"]).name, context["dag_run"].run_id
        approvals, at = self._approvals(), answer["responded_at"]
        if answer["chosen_options"] != [self.APPROVE]:
            approvals.record_rejection(operation, run, at=at)
            return answer
        person = answer["responded_by_user"] or {"id": "", "name": ""}
        approval = approvals.record_answer(operation, run, approver_id=person["id"], approved_by=person["name"], at=at)
        check_approver(approval, self.approvers, self_approval=self.self_approval)
        return answer

    def _assignees(self, question: Approval) -> Any:
        """Returns the users whose answer Airflow accepts; None if no approver is declared."""
        if not self.approvers:
            return None
        assignees = [
            person for person in self.approvers if self.self_approval or not person.is_named(question.requested_by)
        ]
        if not assignees:
            raise ContractError(
                "APPROVAL_REFUSED",
                f"{question.requested_by} requested {question.operation} and is the only declared approver.",
                hint="Declare another approver, or have another person trigger it.",
            )
        return [{"id": person.id, "name": person.name or person.id} for person in assignees]

    def _approvals(self) -> Approvals:
        set_keys([self._lake])
        if not self._pipeline:
            return NamespaceApprovals(open_objects(self._lake), self._namespace)
        return PipelineHome.open(self._lake, self._pipeline).approvals


def _is_at_stake(record: Mapping[str, Any]) -> bool:
    """Returns whether a count has an amount above zero, or no amounts."""
    amounts = [value for name, value in record.items() if name.startswith(_AMOUNTS)]
    return not amounts or any(amounts)


def question_text(counts: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
    """Returns what is at stake as one block of text that Airflow shows as it is: totals, counts and options.

    Counts without anything to do are left out. Requesters choose the values of options, and producers the names in
    counts: none may be read as Markdown or HTML.
    """
    at_stake = [record for record in counts if _is_at_stake(record)]
    columns = [name for name in (at_stake[0] if at_stake else ()) if name != DRY_RUN]
    listing = Listing(tuple(map(escape_invisible, columns)))
    for record in at_stake:
        listing.add(*(record.get(column) for column in columns))
    totals = ", ".join(
        f"{name.replace('_', ' ')} {format_bytes(total) if name.startswith('bytes') else f'{total:,}'}"
        for name in columns
        if name.startswith(_AMOUNTS)
        for total in [sum(record.get(name) or 0 for record in at_stake)]
    )
    summary = [f"In all: {totals or f'{len(at_stake)} to change'}"] if at_stake else ["Nothing would change."]
    if idle := len(counts) - len(at_stake):
        summary.append(f"{idle} more with nothing to do")
    shown = "".join(f"\n{name}: {escape_invisible(str(value))}" for name, value in options.items())
    text = "\n".join([*(summary if counts else []), "", plain_text(listing, width=LOG_WIDTH)]).strip() + "\n" + shown
    # A fence ends at a line with at least as many backticks.
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"
