"""The page of erasure requests, for a data protection officer: state, due date and certificate of each.

A namespace is shown to readers of its erasure DAG. No identifier of a person is shown, since the lake has none.
Requests are refused and extended by command, which records who did it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from deltaworks.alerts.erasures import OVERDUE, ErasureFinding, check_deadline, retention_of
from deltaworks.console.page_context import PageContext, PageMissingError, parse_instant
from deltaworks.console.pages.base import Page
from deltaworks.console.paging import Rows, StoredSummary, page_rows, read_summaries, read_summary
from deltaworks.console.table_reads import read_tables
from deltaworks.control.paths import erasures_summary
from deltaworks.control.summaries.erasures import GRANTED_STATES, ErasureRow, ErasuresSummary
from deltaworks.operations.registry import get_operation


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """An erasure request.

    Its progress is `step` of `steps`; None if it was refused. If its step is overdue or blocked, `due` describes why.
    """

    namespace: str
    request_id: str
    state: str
    step: int | None
    steps: int
    open: bool
    since: datetime | None
    received_at: datetime | None
    purge_by: datetime | None
    deadline_at: datetime | None
    extended: bool
    due: str
    severity: str
    certified: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceCounts:
    """A namespace with its open, due and overdue requests and the nearest deadline.

    If requests are due, `command` advances them now; it is not an action, because it needs the keys of the vault.
    """

    namespace: str
    open: int
    due: int
    overdue: int
    certified: int
    nearest_at: datetime | None
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasuresView:
    """Content of the erasures page: requests of all namespaces the person may see, open ones first, by deadline.

    Namespaces without any request are listed as `namespaces_without_requests`.
    """

    listed: Rows[RequestRow]
    namespaces: tuple[NamespaceCounts, ...]
    namespaces_without_requests: tuple[str, ...]
    omitted: int
    problems: tuple[str, ...]

    @property
    def announcement(self) -> str:
        """Text for screen readers, which announce it when it changes."""
        overdue = sum(one.overdue for one in self.namespaces)
        return f"{sum(one.open for one in self.namespaces)} open, {overdue} overdue"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateChain:
    """The certificates of a namespace, each verified against the previous one, and the last against the vault."""

    namespace: str
    certificates: int | None
    is_head_checked: bool
    unfinished: bool
    problem: str


_SORT_KEYS = {
    "deadline": lambda row: (not row.open, row.deadline_at) if row.deadline_at else None,
    "request": lambda row: (row.namespace, row.request_id),
    "received": lambda row: row.received_at,
    "state": lambda row: (row.step or 0, row.state),
    "purge": lambda row: row.purge_by,
}


def readable_namespaces(context: PageContext) -> list[str]:
    """Returns the namespaces whose requests the person may see."""
    return [name for name in context.catalog.namespaces if context.person.may_read(get_operation("erase").dag_id(name))]


def view(context: PageContext) -> ErasuresView:
    """Returns the requests of all namespaces the person may see."""
    stored = _summaries(context)
    summaries = {name: one.summary for name, one in stored.items() if one.summary is not None}
    rows = [row for name, summary in summaries.items() for row in _rows(context, name, summary)]
    return ErasuresView(
        listed=page_rows(
            context,
            rows,
            keys=_SORT_KEYS,
            sort="deadline",
            text=lambda row: f"{row.namespace} {row.request_id} {row.state} {row.severity} {row.due}",
        ),
        namespaces=tuple(_count_requests(name, [row for row in rows if row.namespace == name]) for name in summaries),
        namespaces_without_requests=tuple(name for name, one in stored.items() if one.is_missing),
        omitted=sum(summary.omitted for summary in summaries.values()),
        problems=tuple(f"{name}: {one.problem}" for name, one in stored.items() if one.problem),
    )


def approaching_deadlines(context: PageContext) -> tuple[NamespaceCounts, ...]:
    """Returns the namespaces the person may see with due or overdue requests."""
    counts = (
        _count_requests(name, list(_rows(context, name, one.summary)))
        for name, one in _summaries(context).items()
        if one.summary is not None
    )
    return tuple(one for one in counts if one.due or one.overdue)


def certified_request(context: PageContext, namespace: str, request_id: str) -> str:
    """Returns the request id in the address, if the person may download its certificate.

    Raises:
        PageMissingError: the request does not exist, or the person may not see it.
    """
    # Checked first: without access to a namespace, a person must not learn whether it exists.
    if namespace in readable_namespaces(context):
        stored = read_summary(context, ErasuresSummary, erasures_summary(namespace))
        requests = stored.summary.requests if stored.summary is not None else ()
        for row in requests:
            if (row.request_id, row.state) == (request_id, "certified"):
                return row.request_id
    raise PageMissingError(f"There is no certificate of {request_id!r} that you may see.")


def view_chain(context: PageContext) -> CertificateChain:
    """Returns the certificates of the namespace in the address, after reading and verifying all of them.

    Raises:
        PageMissingError: the namespace does not exist, or the person may not see it.
    """
    namespace = context.values["namespace"]
    if namespace not in readable_namespaces(context):
        raise PageMissingError(f"There is no namespace {namespace!r} that you may see.")
    answer = read_tables("certificates", namespace=namespace)
    counted = next((row.get("certificates") for row in answer.rows), None)
    return CertificateChain(
        namespace=namespace,
        certificates=counted if isinstance(counted, int) else None,
        is_head_checked=any(row.get("head") is True for row in answer.rows),
        unfinished=answer.unfinished,
        problem=answer.problem,
    )


def _summaries(context: PageContext) -> dict[str, StoredSummary[ErasuresSummary]]:
    return read_summaries(
        context, ErasuresSummary, {name: erasures_summary(name) for name in readable_namespaces(context)}
    )


def _rows(context: PageContext, namespace: str, summary: ErasuresSummary) -> Iterator[RequestRow]:
    retention = retention_of(context.catalog.namespaces[namespace])
    for row in summary.requests:
        finding = _finding(row, retention, context.now)
        yield RequestRow(
            namespace=namespace,
            request_id=row.request_id,
            state=row.state,
            step=row.step_number,
            steps=len(GRANTED_STATES),
            open=row.is_open,
            since=parse_instant(row.since),
            received_at=parse_instant(row.received_at),
            purge_by=parse_instant(row.purge_by),
            deadline_at=parse_instant(row.deadline_at),
            extended=row.is_extended,
            due="" if finding is None else finding.summary,
            severity="" if finding is None else "overdue" if finding.cause == OVERDUE else finding.severity,
            certified=row.state == "certified",
        )


def _finding(row: ErasureRow, retention: timedelta, now: datetime) -> ErasureFinding | None:
    purge_by, deadline_at = parse_instant(row.purge_by), parse_instant(row.deadline_at)
    if not row.is_open or purge_by is None or deadline_at is None:
        return None
    terms = {"purge_by": purge_by, "deadline_at": deadline_at}
    return check_deadline(row.state, is_purged=row.is_purged, retention=retention, now=now, **terms)


def _count_requests(namespace: str, rows: list[RequestRow]) -> NamespaceCounts:
    open_rows = [row for row in rows if row.open]
    has_due = any(row.due for row in open_rows)
    return NamespaceCounts(
        namespace=namespace,
        open=len(open_rows),
        due=sum(bool(row.due) and row.severity != "overdue" for row in open_rows),
        overdue=sum(row.severity == "overdue" for row in open_rows),
        certified=sum(row.certified for row in rows),
        nearest_at=min((row.deadline_at for row in open_rows if row.deadline_at is not None), default=None),
        command=f"deltaworks {get_operation('erase').command} {namespace} --window now --no-dry-run" if has_due else "",
    )


#: Browsers must not cache these pages: they concern people, although they contain no names.
PAGES = (
    Page(name="erasures", route="/erasures", title="Erasures", view=view, menu="Erasures", may_cache=False),
    Page(
        name="certificates",
        route="/erasures/{namespace}/certificates",
        title="Certificates of {namespace}",
        view=view_chain,
        may_cache=False,
    ),
)
