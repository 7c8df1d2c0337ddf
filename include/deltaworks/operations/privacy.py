"""Operations on personal data: ingest and maintenance of the vault, reveals, and progress of erasure requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from deltaworks.control.listing import Listing
from deltaworks.control.provenance import current_person, system_user
from deltaworks.errors import ConfigError
from deltaworks.operations.base import Look, OperationContext, Report
from deltaworks.operations.options import Options, Positional, split_names

if TYPE_CHECKING:
    from deltaworks.privacy.erasure.requests import Namespace
    from deltaworks.privacy.vault.reveal import RevealedValue


class IngestVaultOptions(Options):
    """Options of a vault ingest."""

    minutes: float = Field(
        30, ge=1, le=720, description=("Start no further file after this time; the next run continues.")
    )
    dry_run: bool = Field(True, description="Only decrypt and count.")


def _other_pipelines(context: OperationContext) -> set[str]:
    """Returns the pipelines of other namespaces."""
    return context.catalog.pipelines.keys() - {spec.pipeline for spec in context.catalog.namespace(context.subject)}


def ingest(context: OperationContext, options: IngestVaultOptions) -> Report:
    """Ingests encrypted files into the vault. Idempotent. Files that cannot be decrypted stay and are listed."""
    from deltaworks.privacy.vault.job import run_ingest

    result = run_ingest(
        context.catalog.environment,
        context.subject,
        other_pipelines=_other_pipelines(context),
        minutes=options.minutes,
        dry_run=options.dry_run,
    )
    parts = [
        f"{result.files:,} sealed files: {result.identities:,} values of {result.subjects:,} subjects, "
        f"{result.links:,} links, {result.unreadable:,} bodies that could not be read; {result.suppressed:,} dropped "
        f"as suppressed; {result.remaining:,} files left."
    ]
    parts += [f"  cannot be opened: {name}" for name in result.damaged[:20]]
    if options.dry_run:
        parts.append("Nothing was changed. Use --no-dry-run to apply it.")
    return Report(parts=parts, results=[result])


def look(context: OperationContext, options: IngestVaultOptions) -> Look:
    """Tells whether a scheduled ingest has work."""
    from deltaworks.privacy.vault.job import reason_to_ingest

    reason = reason_to_ingest(
        context.catalog.environment,
        context.subject,
        other_pipelines=_other_pipelines(context),
    )
    return Look(work=int(bool(reason)), reason=reason or "no sealed file waits")


class MaintainVaultOptions(Options):
    """Options of vault maintenance."""

    rotate: bool = Field(
        False, description=("Rotate the keys regardless of their age, for example after a copy was lost.")
    )
    dry_run: bool = Field(True, description="Only list what is due.")


def maintain(context: OperationContext, options: MaintainVaultOptions) -> Report:
    """Rotates keys, destroys expired ones and compacts tables. Idempotent. Destroyed keys cannot be restored."""
    from deltaworks.privacy.vault import job

    privacies = [spec.privacy for spec in context.catalog.namespace(context.subject) if spec.privacy is not None]
    rotation, days, upkeep = job.maintain(
        context.catalog.environment,
        context.subject,
        # All pipelines share the key of a day, so the shortest period of all pipelines applies.
        unreadable_retention_days=min(privacy.erase.unreadable_days for privacy in privacies),
        rotate_now=options.rotate,
        dry_run=options.dry_run,
    )
    would = "would be " if options.dry_run else ""
    parts = [
        f"Epoch {rotation.epoch}, {rotation.age_days:g} days old, {rotation.pages:,} pages of keys: "
        + (f"{rotation.keys:,} keys rewrapped, epochs destroyed: {rotation.destroyed}." if rotation.destroyed else "")
        + ("" if rotation.destroyed else "a rotation is due." if rotation.due else "no rotation is due."),
        f"Keys of {days.days:,} days before {days.before} {would}destroyed, with {days.objects:,} objects.",
        *(
            f"{table.table}: {table.merged_files:,} files into {table.files:,}, {table.deleted:,} deleted"
            for table in upkeep
        ),
    ]
    if options.dry_run:
        parts.append("Nothing was changed. Use --no-dry-run to apply it.")
    return Report(parts=parts, results=[rotation, days, *upkeep])


@dataclass(frozen=True, slots=True, kw_only=True)
class RevealRequest:
    """The request that a person approves: number of subjects, kinds of values, and reason."""

    subjects: int
    kinds: str
    reason: str


class RevealOptions(Options):
    """Options of a reveal."""

    subjects: Annotated[str, Positional()] = Field(
        description="Tokens of the subjects, separated by commas; they begin with p1_."
    )
    kind: tuple[str, ...] = Field((), description="Only values of these kinds, such as email; all by default.")
    reason: str = Field(description="The reason, such as a ticket number; recorded permanently.")
    approval: str | None = Field(
        None, description="The run of the reveal DAG in which it was approved; required above ten subjects a day."
    )
    dry_run: bool = Field(False, description="Only count the values that would be revealed.")


def reveal(context: OperationContext, options: RevealOptions) -> Report:
    """Records a reveal, then decrypts the values. Each call is recorded.

    Raises:
        ConfigError: REVEAL_REFUSED, no token, no reason, or called in Airflow, whose logs must not contain values;
            REVEAL_LIMIT_REACHED.
        ContractError: APPROVAL_MISSING, APPROVAL_EXPIRED, APPROVAL_REFUSED, APPROVAL_UNREADABLE.
    """
    from deltaworks.operations.approval_checks import find_approval, open_approvals
    from deltaworks.privacy.vault import reveal as revealing
    from deltaworks.privacy.vault.namespace_vault import NamespaceVault

    subjects = sorted(set(split_names(options.subjects)))
    _check_reveal(context, subjects, options)
    if context.run_id:
        # The DAG's tasks have no permission on the vault. There, people only approve subjects, kinds and reason.
        kinds = ", ".join(options.kind) or "all"
        return Report(results=[RevealRequest(subjects=len(subjects), kinds=kinds, reason=options.reason)])
    home = NamespaceVault.open(context.catalog.environment, context.subject)
    if options.dry_run:
        counted = revealing.count_values(home, subjects, options.kind)
        return Report(results=counted)
    approval = None
    by = system_user()
    if revealing.needs_approval(home, by, subjects) or options.approval:
        without_approval = options.model_copy(update={"approval": None})
        run = options.approval or "(not given)"
        approval = find_approval(context.operation, context.catalog, context.subject, without_approval, run=run)
    values = revealing.reveal(
        home, subjects, options.kind, reason=options.reason, by=by, approval=options.approval or ""
    )
    if approval is not None:
        open_approvals(context.operation, context.catalog, context.subject).mark_used(approval)
    return _reveal_report(values, len(subjects))


def _check_reveal(context: OperationContext, subjects: Sequence[str], options: RevealOptions) -> None:
    from deltaworks.privacy.tokens.envelope_encryption import is_token

    problem = ""
    if not subjects:
        problem = "No subject is given"
    elif wrong := [subject for subject in subjects if not is_token(subject)]:
        problem = f"{wrong[0]!r} is no token"
    elif not options.reason.strip():
        problem = "No reason is given"
    elif context.run_id and not options.dry_run:
        problem = "Values are not written to the logs of Airflow"
    if problem:
        raise ConfigError(
            "REVEAL_REFUSED",
            f"{problem}; nothing was decrypted.",
            hint='deltaworks privacy reveal NAMESPACE p1_… --kind email --reason "ticket 4711"',
        )


def _reveal_report(values: list[RevealedValue], subjects: int) -> Report:
    listing = Listing(("subject", "kind", "value", "first seen", "last seen", ""))
    for value in values:
        listing.add(value.subject, value.kind, value.value, value.first_seen, value.last_seen, value.problem)
    closed = sum(bool(value.problem) for value in values)
    end = [f"{closed:,} values cannot be decrypted."] if closed else []
    return Report(parts=[f"{len(values):,} values of {subjects:,} subjects.", listing, *end], results=values)


#: Default hours in UTC in which rows are deleted from tables.
NIGHT_HOURS: Final = range(0, 6)


class EraseOptions(Options):
    """Options of a run on open requests."""

    window: Literal["night", "now", "never"] = Field(
        "night", description="When rows are deleted: from 0 to 6 UTC, immediately, or not in this run."
    )
    confirm: tuple[str, ...] = Field(
        (), description="Requests that you confirm, as a second person, after you have seen whom they erase."
    )
    dry_run: bool = Field(True, description="Only count: subjects, and rows and dates by table, of open requests.")


def erase(context: OperationContext, options: EraseOptions) -> Report:
    """Advances every open request as far as possible. Idempotent; continues an interrupted run.

    Raises:
        ConfigError: KEY_SERVICE_UNDECLARED, VAULT_NOT_ISOLATED; ERASURE_UNKNOWN, ERASURE_ENDED, ERASURE_NOT_CONFIRMED.
        ConcurrencyError: ERASURE_RUNNING, TURN_NOT_GRANTED, COMMIT_CONTENDED.
    """
    from deltaworks.control.clock import utc_now
    from deltaworks.privacy.erasure.erasure_run import ErasureRun
    from deltaworks.privacy.erasure.requests import open_namespace

    namespace = open_namespace(context.catalog, context.subject)
    confirmed = [namespace.erasures.request(request_id) for request_id in options.confirm]
    if options.dry_run:
        return _count_report(namespace)
    for request in confirmed:
        namespace.erasures.confirm(request, by=current_person())
    now = utc_now()
    windows = options.window == "now" or (options.window == "night" and now.hour in NIGHT_HOURS)
    results = ErasureRun(namespace, now=now, may_purge=windows).run()
    listing = Listing(("request", "state", "deadline", "waits for"), title="erasures")
    for result in results:
        listing.add(result.request, result.state, result.deadline[:10], result.waiting_for)
    return Report(parts=[listing] if results else ["No request is open."], results=results)


def _count_report(namespace: Namespace) -> Report:
    from deltaworks.privacy.erasure.landing_sweep import LandingReport, LandingSweep
    from deltaworks.privacy.erasure.purge_window import PersonRowCount, count_rows, person_of_request
    from deltaworks.privacy.erasure.requests import describe_person
    from deltaworks.privacy.erasure.token_search import TokenSearch

    listing = Listing(("request", "state", "table", "rows", "from", "to", ""), title="rows to erase")
    results: list[PersonRowCount | LandingReport] = []
    searches = {}
    subjects: list[str] = []
    for request in namespace.erasures.open_requests():
        if request.has_reached("purged"):
            listing.add(request.request_id, request.state, "", "", "", "", ("rows are deleted; --no-dry-run continues"))
            continue
        person = person_of_request(namespace, request)
        subjects += [f"{request.request_id} ({request.state}):", *describe_person(namespace, person)]
        searches[request.request_id] = TokenSearch(person.tokens)
        for counted in count_rows(namespace, person):
            results.append(counted)
            listing.add(request.request_id, request.state, *counted.cells)
    landing = LandingSweep(namespace, searches, dry_run=True).run() if searches else None
    if landing is not None and landing.objects:
        results.append(landing)
        for request_id, events in sorted(landing.events.items()):
            listing.add(request_id, "", "landed objects", f"{events:,}", "", "", "events would become tombstones")
    parts: list[str | Listing] = [] if landing is None else [*landing.describe()]
    parts = [*subjects, listing, *parts, "Nothing was changed. Use --no-dry-run to apply it."]
    return Report(parts=parts, results=results)
