"""The requests of a namespace to be erased, one object for pages: states and terms, and nobody's identifier.

Whoever brings a request on puts its row here; the health check, which reads every record, makes the whole anew where it
differs. So a row that was not written is there a minute later, and a page reads one object whatever there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ClassVar

from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind
from deltaworks.control.summaries.base import SummaryPart, read_summary, write_summary
from deltaworks.control.summary_paths import erasures_summary

if TYPE_CHECKING:
    from deltaworks.control.records.erasure import ErasureRequest

#: Requests that a page can show: those that are open, then the newest that have ended.
MAX_REQUESTS = 5_000
_MAX_ATTEMPTS = 5
_END_STATES = frozenset({"certified", "refused"})
#: The states of a request that is granted, as records of erasures have them.
GRANTED_STATES = ("received", "resolved", "suppressed", "shredded", "purged", "vacuumed", "verified", "certified")


class ErasureRow(SummaryPart):
    """One request. `since` is when it reached its state; instants are ISO 8601 in UTC."""

    request_id: str
    state: str
    since: str
    received_at: str
    purge_by: str
    deadline_at: str
    is_extended: bool = False
    steps: int = 1

    @property
    def is_open(self) -> bool:
        """Whether anything is left to be done."""
        return self.state not in _END_STATES

    @property
    def step_number(self) -> int | None:
        """How far it has come on the way of a request that is granted, from 1; None for one that was refused."""
        return GRANTED_STATES.index(self.state) + 1 if self.state in GRANTED_STATES else None

    @property
    def is_purged(self) -> bool:
        """Whether the rows are out of the newest versions of tables."""
        return self.state in GRANTED_STATES[GRANTED_STATES.index("purged") :]


class ErasuresSummary(Record):
    """The requests of a namespace, those that are open first, the nearest deadline on top; `omitted` are not in it."""

    kind: ClassVar[RecordKind] = RecordKind(
        noun="summary of erasures", unreadable_condition="SUMMARY_UNREADABLE", hint="The health check writes it anew."
    )
    model_config = SummaryPart.model_config

    namespace: str
    requests: tuple[ErasureRow, ...] = ()
    omitted: int = 0

    def with_request(self, row: ErasureRow) -> ErasuresSummary:
        """With a request as it is now; one that is noted as further on already stays so."""
        others = [one for one in self.requests if one.request_id != row.request_id]
        before = next((one for one in self.requests if one.request_id == row.request_id), None)
        newest = before if before is not None and before.steps > row.steps else row
        return build_summary(self.namespace, [*others, newest], omitted=self.omitted)


def build_summary(namespace: str, rows: Iterable[ErasureRow], *, omitted: int = 0) -> ErasuresSummary:
    """The summary of so many requests, bounded."""
    ordered = sorted(rows, key=lambda row: (row.deadline_at, row.request_id))
    ranked = [*(row for row in ordered if row.is_open), *(row for row in reversed(ordered) if not row.is_open)]
    return ErasuresSummary(
        namespace=namespace,
        requests=tuple(ranked[:MAX_REQUESTS]),
        omitted=omitted + max(0, len(ranked) - MAX_REQUESTS),
    )


def to_row(request: ErasureRequest) -> ErasureRow:
    """A request as a row."""
    return ErasureRow(
        request_id=request.request_id,
        state=request.state,
        since=request.steps[-1].at,
        received_at=request.received_at.isoformat(),
        purge_by=request.purge_by.isoformat(),
        deadline_at=request.deadline_at.isoformat(),
        is_extended=request.is_extended,
        steps=len(request.steps),
    )


def publish_request(objects: ObjectStore, request: ErasureRequest) -> bool:
    """Keep how far a request is; False where others wrote each of a few times. Idempotent."""
    return _change(objects, request.namespace, lambda summary: summary.with_request(to_row(request)))


def publish_requests(objects: ObjectStore, namespace: str, requests: Iterable[ErasureRequest]) -> bool:
    """Keep all requests of a namespace as their records have them, where that differs from what is kept.

    One that was brought on since its records were read stays as it was noted then. Idempotent.
    """
    rows = [to_row(request) for request in requests]

    def change(summary: ErasuresSummary) -> ErasuresSummary:
        stored_rows = {row.request_id: row for row in summary.requests}
        newest = (max(row, stored_rows.get(row.request_id, row), key=lambda one: one.steps) for row in rows)
        return build_summary(namespace, newest)

    return _change(objects, namespace, change)


def _change(objects: ObjectStore, namespace: str, change: Callable[[ErasuresSummary], ErasuresSummary]) -> bool:
    key = erasures_summary(namespace)
    for _ in range(_MAX_ATTEMPTS):
        stored, etag = read_summary(ErasuresSummary, objects, key)
        changed = change(stored or ErasuresSummary(namespace=namespace))
        if changed == stored or write_summary(objects, key, changed, etag=etag):
            return True
    return False
