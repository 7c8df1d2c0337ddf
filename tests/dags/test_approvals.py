"""The approval task: no default answer, no useless retry, and a recorded answer."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deltaworks.control.home import PipelineHome
from deltaworks.control.records.approval import Approval
from deltaworks.errors import ContractError
from deltaworks.operations.dag_forms import DagForm, form_of
from deltaworks.operations.registry import get_operation
from deltaworks.specs.environment import ApprovalsSpec
from tests.dags.test_mutation_dags import ENVIRONMENT
from tests.dags.test_operation_dags import SHOP

VACUUM = DagForm(kind="maintenance", operations=(get_operation("vacuum_tables"),))
RUN = "manual__2026-01-01T00:00:00+00:00"
PARAMS = {"retention_hours": 48, "allow_below_minimum": "the disk is full", "dry_run": False}


class ApprovalHarness:
    """A question of a run, asked and answered through the operator as Airflow calls it."""

    def __init__(self, lake: Path, requester: str | None, **declared: Any) -> None:
        from deltaworks.airflow.approvals import OperationApproval

        storage = ENVIRONMENT.lake.model_copy(update={"root": f"file://{lake}"})
        approvals = ApprovalsSpec.model_validate(declared)
        environment = ENVIRONMENT.model_copy(update={"lake": storage, "approvals": approvals})
        self.task = OperationApproval(
            task_id="approve",
            subject="vacuum shop?",
            body="| orders | 7 |",
            form=VACUUM,
            spec=SHOP,
            environment=environment,
            count_task_id="count",
        )
        self.approvals = PipelineHome.open(storage, "shop").approvals
        instance = SimpleNamespace(id=uuid.uuid4(), xcom_pull=lambda **_: [{"table": "orders", "files": 7}])
        run = SimpleNamespace(run_id=RUN, triggering_user_name=requester)
        self.context: Any = {
            "ti": instance, "task_instance": instance, "dag_run": run, "params": PARAMS, "task": self.task
        }  # fmt: skip

    def ask(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        """Asks, and returns the arguments that Airflow received."""
        from airflow.providers.standard.operators import hitl
        from airflow.sdk.exceptions import TaskAwaitingInput

        asked: list[dict[str, Any]] = []
        monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **detail: asked.append(detail))
        with pytest.raises(TaskAwaitingInput):
            self.task.execute(self.context)
        return asked[0]

    def answer(self, by: str, option: str = "Approve") -> Any:
        """Answers as Airflow's API resumes the task."""
        person = {"id": by, "name": by}
        event = {
            "chosen_options": [option], "params_input": {}, "responded_at": datetime.now(UTC),
            "responded_by_user": person, "timedout": False,
        }  # fmt: skip
        return self.task.execute_complete(self.context, event)

    def record(self) -> Approval:
        return self.approvals.valid_approval("vacuum_tables", RUN)


def test_an_approval_has_no_default_and_times_out_before_the_run(tmp_path: Path) -> None:
    task = ApprovalHarness(tmp_path, "ada").task

    assert task.defaults is None
    assert task.options == ["Approve", "Reject"]
    assert task.response_timeout == timedelta(hours=10)
    assert task.execution_timeout is None
    assert not task.fail_on_reject


@pytest.mark.parametrize("answer", ["Approve", "Reject"])
def test_a_default_answer_is_rejected(answer: str) -> None:
    from deltaworks.airflow.approvals import OperationApproval

    with pytest.raises(ValueError, match="no default answer"):
        OperationApproval(
            task_id="approve", subject="Delete?", body="", form=form_of(get_operation("restore")), spec=SHOP,
            environment=ENVIRONMENT, count_task_id="count", defaults=answer,
        )  # fmt: skip


def test_an_unanswered_question_is_not_retried_but_an_outage_is() -> None:
    from airflow.providers.standard.exceptions import HITLRejectException, HITLTimeoutError
    from airflow.sdk import RetryAction

    from deltaworks.airflow.approvals import ApprovalRetryPolicy

    policy = ApprovalRetryPolicy()

    for final in (HITLTimeoutError("late"), HITLRejectException("no"), ContractError("APPROVAL_REFUSED", "own")):
        assert policy.evaluate(final, 1, 3).action is RetryAction.FAIL
    assert policy.evaluate(ConnectionError("gone"), 1, 3).action is RetryAction.DEFAULT
    assert type(ApprovalRetryPolicy.deserialize(policy.serialize())) is ApprovalRetryPolicy


def test_an_approval_records_requester_approver_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question = ApprovalHarness(tmp_path, "ada")
    asked = question.ask(monkeypatch)
    with pytest.raises(ContractError, match="APPROVAL_MISSING"):
        question.record()

    question.answer("bo")

    record = question.record()
    assert not asked["assigned_users"], "without approvers whoever may answer in Airflow is asked"
    assert (record.requested_by, record.approved_by, record.approver_id) == ("ada", "bo", "bo")
    assert (record.question_text, record.bounds) == ("| orders | 7 |", {"max_files": 7})
    assert record.options["retention_hours"] == 48


def test_a_rejection_leaves_no_approval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question = ApprovalHarness(tmp_path, "ada")
    question.ask(monkeypatch)

    question.answer("bo", "Reject")

    with pytest.raises(ContractError, match="APPROVAL_MISSING"):
        question.record()


@pytest.mark.parametrize("requester", ["ada", None])
def test_an_approval_by_the_requester_fails_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requester: str | None
) -> None:
    question = ApprovalHarness(tmp_path, requester)
    question.ask(monkeypatch)

    with pytest.raises(ContractError, match="APPROVAL_REFUSED"):
        question.answer("ada")


def test_self_approval_may_be_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question = ApprovalHarness(tmp_path, "admin", self_approval=True)
    question.ask(monkeypatch)

    question.answer("admin")

    assert question.record().approved_by == "admin"


def test_the_assigned_users_are_the_approvers_without_the_requester(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = ["ada", "bo", {"id": "17", "name": "cy"}]

    asked = ApprovalHarness(tmp_path, "ada", approvers=people).ask(monkeypatch)

    assert asked["assigned_users"] == [{"id": "bo", "name": "bo"}, {"id": "17", "name": "cy"}]


def test_without_another_approver_the_task_fails(tmp_path: Path) -> None:
    question = ApprovalHarness(tmp_path, "ada", approvers=["ada"])

    with pytest.raises(ContractError, match="ada requested vacuum_tables and is the only declared approver"):
        question.task.execute(question.context)
