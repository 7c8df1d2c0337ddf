"""The approval task: no default answer, no useless retry, and a recorded answer."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deltaworks.control.home import PipelineHome
from deltaworks.control.listing import escape_invisible
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

    def __init__(
        self, lake: Path, requester: str | None, *, params: dict[str, Any] | None = None, **declared: Any
    ) -> None:
        from deltaworks.airflow.approvals import OperationApproval

        storage = ENVIRONMENT.lake.model_copy(update={"root": f"file://{lake}"})
        approvals = ApprovalsSpec.model_validate(declared)
        environment = ENVIRONMENT.model_copy(update={"lake": storage, "approvals": approvals})
        self.task = OperationApproval(
            task_id="approve",
            subject="vacuum shop?",
            form=VACUUM,
            spec=SHOP,
            environment=environment,
            count_task_id="count",
        )
        self.approvals = PipelineHome.open(storage, "shop").approvals
        self.counts: list[dict[str, Any]] = [{"table": "orders", "files": 7}]
        self.instance = SimpleNamespace(
            id=uuid.uuid4(), xcom_pull=lambda **_: self.counts, try_number=1, max_tries=self.task.retries
        )
        self.run = SimpleNamespace(
            run_id=RUN, triggering_user_name=requester, clear_number=0, start_date=datetime.now(UTC)
        )
        self.context: Any = {
            "ti": self.instance, "task_instance": self.instance, "dag_run": self.run,
            "params": PARAMS | (params or {}), "task": self.task,
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

    def retry(self) -> None:
        """Prepares the next try of the task."""
        self.instance.try_number += 1

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
            task_id="approve", subject="Delete?", form=form_of(get_operation("restore")), spec=SHOP,
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
    assert record.bounds == {"max_files": 7}
    assert "orders  7" in record.question_text
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


def test_a_retried_task_asks_again_until_it_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question = ApprovalHarness(tmp_path, "ada")
    question.ask(monkeypatch)
    question.retry()
    question.ask(monkeypatch)

    question.answer("bo")

    assert question.record().approved_by == "bo"


def test_a_retry_after_the_answer_asks_no_second_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow retries a task whose answer arrived before its scheduler knew that the task waits."""
    question = ApprovalHarness(tmp_path, "ada")
    question.ask(monkeypatch)
    question.answer("bo")
    with pytest.raises(ContractError, match=r"APPROVAL_REPEATED.*was answered at"):
        question.task.execute(question.context)
    question.retry()

    question.task.execute(question.context)

    approval = question.record()
    assert approval.approved_by == "bo"
    question.approvals.mark_used(approval)
    question.retry()
    with pytest.raises(ContractError, match=r"APPROVAL_REPEATED.*was used at"):
        question.task.execute(question.context)


def test_a_retry_after_an_invalid_answer_fails_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question = ApprovalHarness(tmp_path, "ada")
    question.ask(monkeypatch)
    with pytest.raises(ContractError, match="APPROVAL_REFUSED"):
        question.answer("ada")
    question.retry()

    with pytest.raises(ContractError, match="APPROVAL_REFUSED"):
        question.task.execute(question.context)


@pytest.mark.parametrize("before", ["nothing", "asked", "approved", "rejected", "used", "timed out"])
@pytest.mark.parametrize("cleared", ["run", "task only"])
def test_a_cleared_run_asks_no_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, cleared: str
) -> None:
    question = ApprovalHarness(tmp_path, "ada")
    if before != "nothing":
        question.ask(monkeypatch)
    if before in ("approved", "used"):
        question.answer("bo")
    if before == "rejected":
        question.answer("bo", "Reject")
    if before == "used":
        question.approvals.mark_used(question.record())
    question.retry()
    if cleared == "run":
        question.run.clear_number = 1
    else:
        question.instance.max_tries += 1

    with pytest.raises(ContractError, match="APPROVAL_REPEATED") as refused:
        question.task.execute(question.context)

    assert not refused.value.retryable


def test_a_rejection_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question = ApprovalHarness(tmp_path, "ada")
    question.ask(monkeypatch)
    question.answer("bo", "Reject")
    with pytest.raises(ContractError, match=r"APPROVAL_REPEATED.*was rejected at"):
        question.task.execute(question.context)
    question.retry()

    # A retry of the same task ends as the first one, and skips what follows.
    question.task.execute(question.context)

    with pytest.raises(ContractError, match="APPROVAL_REPEATED"):
        question.answer("ada")
    with pytest.raises(ContractError, match="APPROVAL_MISSING"):
        question.record()


def test_a_deleted_run_that_is_triggered_again_under_its_id_does_not_get_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ApprovalHarness(tmp_path, "ada").ask(monkeypatch)
    for thief, number in (("bo", 1), ("bo", 2), ("ada", 1), ("ada", 2)):
        stolen = ApprovalHarness(tmp_path, thief)
        stolen.instance.try_number = number

        with pytest.raises(ContractError, match=r"APPROVAL_REPEATED.*was asked at"):
            stolen.task.execute(stolen.context)


def test_a_question_that_was_not_answered_in_time_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.providers.standard.exceptions import HITLTimeoutError

    question = ApprovalHarness(tmp_path, "ada")
    question.task._answer_timeout = timedelta(seconds=-1)
    question.ask(monkeypatch)
    with pytest.raises(HITLTimeoutError):
        question.task.execute_complete(question.context, {"error": "late", "error_type": "timeout"})
    question.retry()

    with pytest.raises(ContractError, match=r"APPROVAL_REPEATED.*was not answered by"):
        question.task.execute(question.context)


REASONS = (
    "**urgent** [approved by legal](https://evil.example)",
    "<img src=x onerror=alert(1)> <b>bold</b> &amp;",
    "# Approved\n\n| orders | 0 |\r\n---\u2028> quote",
    "``` \n```\n**out of the block** ````` `",
    "~~~\nhttps://evil.example www.evil.example a@evil.example ~~~",
    "\u202edesrever\u202c \x1b[2J \u200b",
)


@pytest.mark.parametrize("reason", REASONS)
def test_a_reason_is_plain_text_in_the_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    question = ApprovalHarness(tmp_path, "ada", params={"allow_below_minimum": reason})
    question.counts = [{"table": f"orders {reason}", "files": 7}]

    body = question.ask(monkeypatch)["body"]

    lines = body.split("\n")
    fence = lines[0].removesuffix("text")
    assert set(fence) == {"`"}
    assert [at for at, line in enumerate(lines) if fence in line] == [0, lines.index(fence)]
    block, after = lines[1 : lines.index(fence)], lines[lines.index(fence) + 1 :]
    assert after == ["", "If it is rejected or not answered, nothing is done."]
    assert all(line.isprintable() for line in block)
    assert sum(escape_invisible(reason) in line for line in block) == 2
