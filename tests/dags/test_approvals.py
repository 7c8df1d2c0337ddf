"""The task that waits for a person: it has no answer of its own, and is not asked twice in vain."""

from __future__ import annotations

from datetime import timedelta

import pytest


def test_nobody_answers_for_the_person_and_waiting_ends_before_the_run_does() -> None:
    from deltaworks.airflow.operation_dags import approval

    task = approval(task_id="approve", subject="Delete 3 files?", body="all of them")

    assert task.defaults is None
    assert task.options == ["Approve", "Reject"]
    assert task.response_timeout == timedelta(hours=10)
    assert task.execution_timeout is None
    assert not task.fail_on_reject


@pytest.mark.parametrize("answer", ["Approve", "Reject"])
def test_a_default_answer_is_refused(answer: str) -> None:
    from deltaworks.airflow.operation_dags import approval

    with pytest.raises(ValueError, match="no default answer"):
        approval(task_id="approve", subject="Delete?", body="", defaults=answer)


def test_a_question_without_an_answer_is_not_asked_again_but_an_outage_is_got_over() -> None:
    from airflow.providers.standard.exceptions import HITLRejectException, HITLTimeoutError
    from airflow.sdk import RetryAction

    from deltaworks.airflow.operation_dags import ApprovalRetryPolicy

    policy = ApprovalRetryPolicy()

    for final in (HITLTimeoutError("late"), HITLRejectException("no")):
        assert policy.evaluate(final, 1, 3).action is RetryAction.FAIL
    assert policy.evaluate(ConnectionError("gone"), 1, 3).action is RetryAction.DEFAULT
    assert type(ApprovalRetryPolicy.deserialize(policy.serialize())) is ApprovalRetryPolicy
