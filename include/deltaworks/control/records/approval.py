"""Approvals of operations: the question with its numbers, and a person's answer.

Airflow's approval task writes both; the deleting job reads them. A task that someone only marks as successful leaves no
answer, so nothing is deleted. An approval belongs to one DAG run and is used once.

A run asks one question. Only a retry of the task may ask it again, until it is answered: a person who clears another
person's run would otherwise approve what they have themselves requested. A deleted run that is triggered again under
its id is another run.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from typing import Any, ClassVar

from deltaworks.control import paths
from deltaworks.control.clock import iso_now, parse_iso, utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind
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
    `options`. Requester and approver are Airflow user names; `approver_id` is the approver's user id. The question was
    asked by try `try_number` of the task in the run that started at `run_started_at`; it may be answered until
    `answer_by`.
    """

    kind: ClassVar[RecordKind] = _KIND
    indent: ClassVar[int | None] = 1

    operation: str
    subject: str
    run: str
    requested_by: str
    requested_at: str
    run_started_at: str
    try_number: int
    answer_by: str
    question_text: str
    options: dict[str, Any]
    bounds: dict[str, int]
    approved_by: str = ""
    approver_id: str = ""
    approved_at: str = ""
    rejected_at: str = ""
    used_at: str = ""

    @property
    def is_self_approved(self) -> bool:
        """Whether the requester approved the operation. True also if the requester is unknown."""
        return not self.requested_by or is_same_person(self.requested_by, self.approved_by, self.approver_id)

    def closed_reason(self, at: dt.datetime) -> str:
        """Why the question takes no answer given at this time, after "its question"; empty while it does."""
        ends = {"was used": self.used_at, "was rejected": self.rejected_at, "was answered": self.approved_at}
        for reason, ended_at in ends.items():
            if ended_at:
                return f"{reason} at {ended_at}"
        answer_by = parse_iso(self.answer_by)
        return "" if answer_by and at <= answer_by else f"was not answered by {self.answer_by}"

    def is_retry_of(self, earlier: Approval) -> bool:
        """Whether this is the question of an earlier try of the same task in the same start of the same run."""
        same = ("operation", "subject", "run", "requested_by", "run_started_at", "options")
        return earlier.try_number < self.try_number and all(getattr(self, n) == getattr(earlier, n) for n in same)


def is_same_person(name: str, *others: str) -> bool:
    """Whether a user name is one of others. Airflow may ignore their case at login."""
    return name.strip().casefold() in {other.strip().casefold() for other in others}


class Approvals:
    """The approvals of one pipeline's operations, by Airflow run."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline

    def record_question(self, question: Approval) -> None:
        """Stores the question of a run. A retry of the task may replace it until it is answered.

        Raises:
            ContractError: APPROVAL_REPEATED if the run has asked before; APPROVAL_UNREADABLE.
        """
        operation, run, key = question.operation, question.run, self._key(question.operation, question.run)
        if self._objects.put_if_absent(key, question.encode()):
            return
        earlier, etag = self._read(operation, run)
        reason = earlier.closed_reason(utc_now())
        if reason or not question.is_retry_of(earlier):
            raise repeated_error(operation, run, reason or f"was asked at {earlier.requested_at}")
        self._replace(question, etag)

    def earlier_answer(self, question: Approval) -> Approval | None:
        """Returns the record of an earlier try of the same task that was answered, and is not used; None otherwise.

        Airflow retries a task whose answer arrives before its scheduler knows that the task waits.
        """
        key = self._key(question.operation, question.run)
        stored = self._objects.get(key)
        earlier = None if stored is None else Approval.decode(stored.data, key=key)
        if earlier is None or earlier.used_at or not (earlier.approved_at or earlier.rejected_at):
            return None
        return earlier if question.is_retry_of(earlier) else None

    def record_answer(
        self, operation: str, run: str, *, approver_id: str, approved_by: str, at: dt.datetime
    ) -> Approval:
        """Stores the approval of a run's question.

        Raises:
            ContractError: APPROVAL_MISSING if there is no question; APPROVAL_REPEATED if it was answered before, or not
                in time; APPROVAL_UNREADABLE.
        """
        return self._close(operation, run, at, approver_id=approver_id, approved_by=approved_by, approved_at=_iso(at))

    def record_rejection(self, operation: str, run: str, *, at: dt.datetime) -> None:
        """Stores the rejection of a run's question. Raises the errors of `record_answer`."""
        self._close(operation, run, at, rejected_at=_iso(at))

    def _close(self, operation: str, run: str, at: dt.datetime, **answer: str) -> Approval:
        record, etag = self._read(operation, run)
        if reason := record.closed_reason(at):
            raise repeated_error(operation, run, reason)
        closed = record.replace(**answer)
        self._replace(closed, etag)
        return closed

    def valid_approval(self, operation: str, run: str) -> Approval:
        """Returns the approval of a run if it is given, unused and not expired.

        Raises:
            ContractError: APPROVAL_MISSING, APPROVAL_EXPIRED; APPROVAL_UNREADABLE.
        """
        record, _ = self._read(operation, run)
        approved_at = parse_iso(record.approved_at)
        if approved_at is None or record.rejected_at:
            raise _missing_error(operation, run)
        if record.used_at or utc_now() - approved_at > APPROVAL_VALIDITY:
            why = f"was used at {record.used_at}" if record.used_at else f"is from {record.approved_at}"
            raise ContractError("APPROVAL_EXPIRED", f"The approval of {operation} in run {run} {why}.")
        return record

    def mark_used(self, approval: Approval) -> None:
        """Marks an approval as used."""
        used = approval.replace(used_at=iso_now())
        self._objects.put(self._key(used.operation, used.run), used.encode())

    def _read(self, operation: str, run: str) -> tuple[Approval, str]:
        key = self._key(operation, run)
        stored = self._objects.get(key)
        record = None if stored is None else Approval.decode(stored.data, key=key)
        if stored is None or record is None or (record.operation, record.run) != (operation, run):
            raise _missing_error(operation, run)
        return record, stored.etag

    def _replace(self, record: Approval, etag: str) -> None:
        if self._objects.put_if_match(self._key(record.operation, record.run), record.encode(), etag) is None:
            raise repeated_error(record.operation, record.run, "was changed meanwhile")

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


def _iso(at: dt.datetime) -> str:
    return at.isoformat(timespec="milliseconds")


def repeated_error(operation: str, run: str, reason: str) -> ContractError:
    """Returns the error for a run that asks a second question, or whose question is answered a second time.

    Args:
        reason: what happened to its question, after "its question".
    """
    return ContractError(
        "APPROVAL_REPEATED", f"Run {run} asks for one approval of {operation}, and its question {reason}."
    )
