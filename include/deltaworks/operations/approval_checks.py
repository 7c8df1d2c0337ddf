"""Checks that an operation run by Airflow stays within its approval: the approver, the options and the counts.

The job itself reads the record that the approval task wrote. Commands need no approval, since a user who runs one has
the keys of the lake. Nightly maintenance needs none either; it has its own limits
(`deltaworks.maintenance.deletion_limits`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import open_objects
from deltaworks.control.provenance import is_unattended_run
from deltaworks.control.records.approval import Approval, Approvals, NamespaceApprovals, is_same_person
from deltaworks.errors import ContractError
from deltaworks.operations.base import ENGINE_OPTION, Operation, Scope
from deltaworks.operations.options import Options

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog
    from deltaworks.specs.environment import Approvers


def is_unattended(operation: Operation, subject: str, options: Options) -> bool:
    """Returns whether nightly maintenance runs the operation with its declared options, which needs no approval.

    Options that would delete more, such as a shorter retention, need an approval in the maintenance DAG too.
    """
    return operation.unattended and is_unattended_run(subject) and has_declared_options(options)


def has_declared_options(options: Options) -> bool:
    """Returns whether the options are those of nightly maintenance, apart from tables, engine and a dry run."""
    selected_options = options.model_dump(exclude={"dry_run", "tables", ENGINE_OPTION})
    return selected_options == type(options)().model_dump(exclude={"dry_run", "tables", ENGINE_OPTION})


def requested_options(operation: Operation, options: Options) -> dict[str, Any]:
    """Returns the options that an approval records: all except `dry_run`, the engine and bounds."""
    return options.model_dump(mode="json", exclude={"dry_run", ENGINE_OPTION, *operation.bounds})


def counted_bounds(operation: Operation, options: Options, records: list[Mapping[str, Any]]) -> dict[str, int]:
    """Returns the approved upper bounds by option.

    A bound is the sum of the counted records, or the form's value if that is lower.
    """
    bounds = {}
    for option, field in operation.bounds.items():
        total, bound = sum(int(record.get(field) or 0) for record in records), getattr(options, option)
        bounds[option] = total if bound is None else min(total, bound)
    return bounds


def approved_options(
    operation: Operation, catalog: Catalog, subject: str, options: Options, *, run: str, person: str
) -> tuple[Options, Approval]:
    """Returns the options with the approved bounds set, and the approval.

    Args:
        run: the id of the Airflow run.
        person: the user who triggered that run.

    Raises:
        ContractError: APPROVAL_MISSING, APPROVAL_EXPIRED, APPROVAL_UNREADABLE; APPROVAL_REFUSED, its approver may not
            approve, or it is for another request.
    """
    record = find_approval(operation, catalog, subject, options, run=run)
    if record.requested_by and not is_same_person(record.requested_by, person):
        # Somebody deleted the approved run and triggered another one under its id.
        raise _approval_refused(record, f"{record.requested_by} requested it, and {person} triggered this run")
    bounds = {}
    for option, approved in record.bounds.items():
        bound = getattr(options, option)
        bounds[option] = approved if bound is None else min(approved, bound)
    return options.model_copy(update=bounds), record


def find_approval(operation: Operation, catalog: Catalog, subject: str, options: Options, *, run: str) -> Approval:
    """Returns the approval of an operation with these options, which was given in an Airflow run.

    Raises:
        ContractError: APPROVAL_MISSING, APPROVAL_EXPIRED, APPROVAL_REFUSED, APPROVAL_UNREADABLE.
    """
    record = open_approvals(operation, catalog, subject).valid_approval(operation.name, run)
    approvers = approvers_of(catalog, subject, scope=operation.scope)
    check_approver(record, approvers, self_approval=catalog.environment.approvals.self_approval)
    if record.options != requested_options(operation, options):
        raise _approval_refused(record, "it was given for other options than those of this job")
    return record


def open_approvals(operation: Operation, catalog: Catalog, subject: str) -> Approvals:
    """Opens the approvals of a pipeline, or of a namespace of personal data."""
    if operation.scope == "namespace":
        return NamespaceApprovals(open_objects(catalog.environment.lake), subject)
    return PipelineHome.open(catalog.environment.lake, subject).approvals


def approvers_of(catalog: Catalog, subject: str, *, scope: Scope = "pipeline") -> Approvers:
    """Returns the declared approvers of a pipeline or a namespace; empty without any."""
    declared_approvers = catalog.pipeline(subject).approvers if scope == "pipeline" else ()
    return declared_approvers or catalog.environment.approvals.approvers


def check_approver(approval: Approval, approvers: Approvers, *, self_approval: bool) -> None:
    """Rejects an approval by the requester or by a person who is not an approver.

    Raises:
        ContractError: APPROVAL_REFUSED.
    """
    if not approval.approved_by and not approval.approver_id:
        raise _approval_refused(approval, "no person gave it")
    if not self_approval and approval.is_self_approved:
        requester = f"{approval.requested_by} requested it" if approval.requested_by else "the requester is unknown"
        raise _approval_refused(approval, f"{requester}, and self-approval is not allowed")
    if approvers and not any(person.is_named(approval.approver_id, approval.approved_by) for person in approvers):
        names = ", ".join(person.name or person.id for person in approvers)
        raise _approval_refused(approval, f"{approval.approved_by} is not one of the approvers ({names})")


def _approval_refused(approval: Approval, reason: str) -> ContractError:
    return ContractError(
        "APPROVAL_REFUSED",
        f"The approval of {approval.operation} {approval.subject} is not valid: {reason}.",
        hint=(
            "Trigger it again and ask another person to approve it; `approvals` of the environment lists the approvers."
        ),
    )
