"""A task that waits for a person's yes before something that cannot be taken back.

Nobody answers for the person: there is no default answer, and a question that nobody answers in time fails its task,
after which nothing behind it runs. While it waits it holds no slot and no process.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.exceptions import HITLRejectException, HITLTimeoutError
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import RetryDecision
from airflow.sdk.bases.notifier import BaseNotifier

from deltaworks.airflow import names
from deltaworks.airflow.retry_policy import JobRetryPolicy

if TYPE_CHECKING:
    from airflow.sdk import Context

#: How long a question waits for its answer.
ANSWER_WITHIN = timedelta(hours=10)


class ApprovalRetryPolicy(JobRetryPolicy):
    """Asks again after an outage; a question that was turned down, or that nobody answered, is not asked twice."""

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        if isinstance(exception, HITLTimeoutError | HITLRejectException):
            return RetryDecision.fail(reason="it was not approved")
        return super().evaluate(exception, try_number, max_tries, context)


def approval(
    *,
    task_id: str,
    subject: str,
    body: str,
    answer_within: timedelta = ANSWER_WITHIN,
    notifiers: Sequence[BaseNotifier] = (),
    **settings: Any,
) -> ApprovalOperator:
    """The task that asks. Approved, what follows runs; rejected, what follows is skipped and the run ends without it.

    Put a task before it that counts what would be done, and let the body say what it counted.

    Args:
        subject: what is asked, in one line; may be a template.
        body: what a person needs to know to decide, in Markdown; may be a template.
        answer_within: less than the DAG's own time-out, so that the question fails and not the whole run.
        notifiers: called when the question is asked.
        settings: further ones of the operator, `assigned_users` among them.

    Raises:
        ValueError: a default answer is given.
    """
    if settings.pop("defaults", None) is not None:
        raise ValueError(f"{task_id}: an approval has no default answer")
    return ApprovalOperator(
        task_id=task_id,
        subject=subject,
        body=body,
        response_timeout=answer_within,
        notifiers=list(notifiers),
        pool=names.POOL_SPARK_JOBS,
        retries=2,
        retry_delay=timedelta(seconds=30),
        retry_exponential_backoff=2.0,
        retry_policy=ApprovalRetryPolicy(),
        **settings,
    )
