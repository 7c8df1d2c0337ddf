"""What a person approved: the question with the figures it showed, and the answer.

Airflow's task that asks writes both; the job that deletes reads them. A task that somebody marks as successful leaves
no answer here, so nothing is deleted for it. Written for one run of a DAG and used once.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from typing import Any, ClassVar

from deltaworks.control import paths
from deltaworks.control.clock import iso_now, parse_iso, utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordStore
from deltaworks.errors import ContractError
from deltaworks.privacy.paths import privacy_control

_KIND = RecordKind(
    noun="record of an approval",
    unreadable_condition="APPROVAL_UNREADABLE",
    hint="Trigger the operation anew, and have it approved.",
)
#: How long an answer counts. A run of an operation takes no longer either.
VALID_FOR = dt.timedelta(hours=24)


class Approval(Record):
    """A question, and from `approved_at` on its answer.

    `bounds` are the figures that were shown, by the option they bound; `options` what was asked for. Requester and
    approver are names of Airflow; an approver also has an id.
    """

    kind: ClassVar[RecordKind] = _KIND
    indent: ClassVar[int | None] = 1

    operation: str
    subject: str
    run: str
    requested_by: str
    requested_at: str
    question_text: str
    options: dict[str, Any]
    bounds: dict[str, int]
    approved_by: str = ""
    approver_id: str = ""
    approved_at: str = ""
    used_at: str = ""

    @property
    def is_self_approved(self) -> bool:
        """Whether somebody approved what they had asked for; also where nobody is on record who asked."""
        return not self.requested_by or self.requested_by in (self.approved_by, self.approver_id)


class Approvals:
    """The approvals of one pipeline's operations, by the run of Airflow they were given in."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline
        self._records = RecordStore(objects, Approval)

    def record_question(self, question: Approval) -> None:
        """Keep a question, in place of one that was asked in the run before, answered or not."""
        self._put(question)

    def record_answer(self, operation: str, run: str, *, approver_id: str, approved_by: str) -> Approval:
        """Keep that the question of a run was approved.

        Raises:
            ContractError: APPROVAL_MISSING, nothing was asked; APPROVAL_UNREADABLE.
        """
        answered = self._read(operation, run).replace(
            approver_id=approver_id, approved_by=approved_by, approved_at=iso_now()
        )
        self._put(answered)
        return answered

    def valid_approval(self, operation: str, run: str) -> Approval:
        """The approval of a run that counts: given, not used, not too old.

        Raises:
            ContractError: APPROVAL_MISSING, APPROVAL_EXPIRED; APPROVAL_UNREADABLE.
        """
        record = self._read(operation, run)
        approved_at = parse_iso(record.approved_at)
        if approved_at is None:
            raise _missing_error(operation, run)
        if record.used_at or utc_now() - approved_at > VALID_FOR:
            why = f"was used at {record.used_at}" if record.used_at else f"is of {record.approved_at}"
            raise ContractError(
                "APPROVAL_EXPIRED",
                f"The approval of {operation} in run {run} {why}.",
                hint="Trigger the operation anew: what was approved once is done once, within a day.",
            )
        return record

    def mark_used(self, approval: Approval) -> None:
        """Note that what was approved is done."""
        self._put(approval.replace(used_at=iso_now()))

    def _read(self, operation: str, run: str) -> Approval:
        record = self._records.read(self._key(operation, run))
        if record is None or (record.operation, record.run) != (operation, run):
            raise _missing_error(operation, run)
        return record

    def _put(self, record: Approval) -> None:
        self._objects.put(self._key(record.operation, record.run), record.encode())

    def _key(self, operation: str, run: str) -> str:
        return paths.approval(self._pipeline, _name(operation, run))


class NamespaceApprovals(Approvals):
    """The approvals of operations on a namespace of personal data."""

    def _key(self, operation: str, run: str) -> str:
        return privacy_control(self._pipeline, f"approvals/{_name(operation, run)}.json")


def _name(operation: str, run: str) -> str:
    # Run ids have characters that names of objects had better not have.
    return f"{operation}-{hashlib.sha256(run.encode()).hexdigest()[:16]}"


def _missing_error(operation: str, run: str) -> ContractError:
    return ContractError(
        "APPROVAL_MISSING",
        f"Nobody approved {operation} in run {run}: no answer is on record.",
        hint="Trigger the operation anew and answer its question; a task marked as successful is no answer.",
    )
