"""Holds an operation that Airflow runs to what a person approved: by whom, for what, and how much at most.

The job looks itself, at the record that the task which asked has written. On the command line nobody is asked: whoever
runs a command has the keys of the lake. Nor is anybody for the nightly upkeep, which is held to bounds of its own
(`deltaworks.maintenance.deletion_limits`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import open_objects
from deltaworks.control.provenance import is_maintenance_run
from deltaworks.control.records.approval import Approval, Approvals, NamespaceApprovals
from deltaworks.errors import ContractError
from deltaworks.operations.base import Operation, Scope
from deltaworks.operations.options import Options

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog
    from deltaworks.specs.environment import Approvers


def is_unattended(declared: Operation, subject: str, options: Options) -> bool:
    """Whether the nightly upkeep runs it as it is declared, which no person approves.

    An option that would widen what it deletes, such as another retention, needs an approval in that DAG too.
    """
    if not (declared.unattended and is_maintenance_run(subject)):
        return False
    chosen = options.model_dump(exclude={"dry_run", "tables"})
    return chosen == type(options)().model_dump(exclude={"dry_run", "tables"})


def requested_options(declared: Operation, options: Options) -> dict[str, Any]:
    """What is asked for, as an approval keeps it: the options but for those that bound or only count."""
    return options.model_dump(mode="json", exclude={"dry_run", *declared.bounds})


def counted_bounds(declared: Operation, options: Options, records: list[Mapping[str, Any]]) -> dict[str, int]:
    """The bounds that were counted, by option: the sum over the records of a count, or less where the form says so."""
    bounds = {}
    for option, field in declared.bounds.items():
        total, bound = sum(int(record.get(field) or 0) for record in records), getattr(options, option)
        bounds[option] = total if bound is None else min(total, bound)
    return bounds


def approved_options(
    declared: Operation, catalog: Catalog, subject: str, options: Options, *, run: str
) -> tuple[Options, Approval]:
    """The options within the bounds that were approved, and the approval.

    Args:
        run: the id of the Airflow run.

    Raises:
        ContractError: APPROVAL_MISSING, APPROVAL_EXPIRED, APPROVAL_UNREADABLE; APPROVAL_REFUSED, it is of somebody who
            must not give it, or of something else.
    """
    record = find_approval(declared, catalog, subject, options, run=run)
    bounds = {}
    for option, approved in record.bounds.items():
        bound = getattr(options, option)
        bounds[option] = approved if bound is None else min(approved, bound)
    return options.model_copy(update=bounds), record


def find_approval(declared: Operation, catalog: Catalog, subject: str, options: Options, *, run: str) -> Approval:
    """The approval, given in a run of Airflow, of an operation with these options.

    Raises:
        ContractError: APPROVAL_MISSING, APPROVAL_EXPIRED, APPROVAL_REFUSED, APPROVAL_UNREADABLE.
    """
    record = open_approvals(declared, catalog, subject).valid_approval(declared.name, run)
    approvers = approvers_of(catalog, subject, scope=declared.scope)
    check_approver(record, approvers, self_approval=catalog.environment.approvals.self_approval)
    if record.options != requested_options(declared, options):
        raise _approval_refused(record, "it is of other options than those of this job")
    return record


def open_approvals(declared: Operation, catalog: Catalog, subject: str) -> Approvals:
    """The approvals of operations on a pipeline, or on a namespace of personal data."""
    if declared.scope == "namespace":
        return NamespaceApprovals(open_objects(catalog.environment.lake), subject)
    return PipelineHome.open(catalog.environment.lake, subject).approvals


def approvers_of(catalog: Catalog, subject: str, *, scope: Scope = "pipeline") -> Approvers:
    """Who may approve operations on a pipeline, or on a namespace; empty where nobody is declared."""
    own = catalog.pipeline(subject).approvers if scope == "pipeline" else ()
    return own or catalog.environment.approvals.approvers


def check_approver(approval: Approval, approvers: Approvers, *, self_approval: bool) -> None:
    """Refuse an approval of the requester, or of somebody who is not among the approvers.

    Raises:
        ContractError: APPROVAL_REFUSED.
    """
    if not approval.approved_by and not approval.approver_id:
        raise _approval_refused(approval, "no person gave it")
    if not self_approval and approval.is_self_approved:
        requester = (
            f"{approval.requested_by} asked for it" if approval.requested_by else "it is not on record who asked"
        )
        raise _approval_refused(approval, f"{requester}, and nobody approves what they asked for")
    if approvers and not any(person.is_named(approval.approver_id, approval.approved_by) for person in approvers):
        names = ", ".join(person.name or person.id for person in approvers)
        raise _approval_refused(approval, f"{approval.approved_by} is none of the approvers ({names})")


def _approval_refused(approval: Approval, reason: str) -> ContractError:
    return ContractError(
        "APPROVAL_REFUSED",
        f"The approval of {approval.operation} {approval.subject} does not count: {reason}.",
        hint="Trigger it anew and have another person approve it; `approvals` of the environment says who may.",
    )
