"""Approvals of operations: the question with its numbers, and a person's answer.

Airflow's approval task writes both; the deleting job reads them. A task that someone only marks as successful leaves no
answer, so nothing is deleted. An approval belongs to one DAG run and is used once.
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

_KIND = RecordKind(
    noun="record of an approval",
    unreadable_condition="APPROVAL_UNREADABLE",
    hint="Trigger the operation again and have it approved.",
)
#: Validity of an approval; also the upper limit of an operation's run.
APPROVAL_VALIDITY = dt.timedelta(hours=24)


class Approval(Record):
    """A question and, once `approved_at` is set, its answer.

    The counts that the question showed are `bounds`, keyed by the option that limits them. The requested options are
    `options`. Requester and approver are Airflow user names; `approver_id` is the approver's user id.
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
        """Whether the requester approved the operation. True also if the requester is unknown."""
        return not self.requested_by or self.requested_by in (self.approved_by, self.approver_id)


class Approvals:
    """The approvals of one pipeline's operations, by Airflow run."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline
        self._records = RecordStore(objects, Approval)

    def record_question(self, question: Approval) -> None:
        """Stores a question, replacing an earlier one of the same run."""
        self._put(question)

    def record_answer(self, operation: str, run: str, *, approver_id: str, approved_by: str) -> Approval:
        """Stores the approval of a run's question.

        Raises:
            ContractError: APPROVAL_MISSING if there is no question; APPROVAL_UNREADABLE.
        """
        approval = self._read(operation, run).replace(
            approver_id=approver_id, approved_by=approved_by, approved_at=iso_now()
        )
        self._put(approval)
        return approval

    def valid_approval(self, operation: str, run: str) -> Approval:
        """Returns the approval of a run if it is given, unused and not expired.

        Raises:
            ContractError: APPROVAL_MISSING, APPROVAL_EXPIRED; APPROVAL_UNREADABLE.
        """
        record = self._read(operation, run)
        approved_at = parse_iso(record.approved_at)
        if approved_at is None:
            raise _missing_error(operation, run)
        if record.used_at or utc_now() - approved_at > APPROVAL_VALIDITY:
            why = f"was used at {record.used_at}" if record.used_at else f"is from {record.approved_at}"
            raise ContractError("APPROVAL_EXPIRED", f"The approval of {operation} in run {run} {why}.")
        return record

    def mark_used(self, approval: Approval) -> None:
        """Marks an approval as used."""
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
        return paths.namespace_approval(self._pipeline, _name(operation, run))


def _name(operation: str, run: str) -> str:
    # Run ids contain characters that object names should not have.
    return f"{operation}-{hashlib.sha256(run.encode()).hexdigest()[:16]}"


def _missing_error(operation: str, run: str) -> ContractError:
    return ContractError("APPROVAL_MISSING", f"{operation} in run {run} was not approved: there is no answer.")
