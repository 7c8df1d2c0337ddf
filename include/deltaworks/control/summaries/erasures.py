"""Summary of a namespace's erasure requests for pages: states and deadlines, without identifiers.

A run that advances a request updates its row. The health check, which reads all records, rebuilds a differing summary,
so a missed update is repaired within a minute. A page reads one object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from deltaworks.control.objects import ObjectStore
from deltaworks.control.paths import erasures_summary
from deltaworks.control.records.store import Record, RecordKind
from deltaworks.control.summaries.base import SummaryPart, read_summary, write_summary

#: Maximum requests on a page: open ones first, then the newest completed ones.
MAX_REQUESTS = 5_000
_MAX_ATTEMPTS = 5
_END_STATES = frozenset({"certified", "refused"})
#: The states of a granted request, as in `records.erasure`.
GRANTED_STATES = ("received", "resolved", "suppressed", "shredded", "purged", "vacuumed", "verified", "certified")


class ErasureRow(SummaryPart):
    """One request. `since` is when it reached its state; times are ISO 8601 in UTC."""

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
        """Whether the request is neither complete nor refused."""
        return self.state not in _END_STATES

    @property
    def step_number(self) -> int | None:
        """The number of the request's state, from 1; None for a refused request."""
        return GRANTED_STATES.index(self.state) + 1 if self.state in GRANTED_STATES else None

    @property
    def is_purged(self) -> bool:
        """Whether the person's rows are deleted from the newest table versions."""
        return self.state in GRANTED_STATES[GRANTED_STATES.index("purged") :]


class ErasuresSummary(Record):
    """The requests of a namespace, open ones first by deadline; `omitted` counts requests beyond the maximum."""

    kind: ClassVar[RecordKind] = RecordKind(
        noun="summary of erasures", unreadable_condition="SUMMARY_UNREADABLE", hint="The health check rewrites it."
    )
    model_config = SummaryPart.model_config

    namespace: str
    requests: tuple[ErasureRow, ...] = ()
    omitted: int = 0

    def with_request(self, row: ErasureRow) -> ErasuresSummary:
        """Adds or updates a request; a row with more steps is kept."""
        other_rows = [one for one in self.requests if one.request_id != row.request_id]
        existing = next((one for one in self.requests if one.request_id == row.request_id), None)
        newest = existing if existing is not None and existing.steps > row.steps else row
        return build_summary(self.namespace, [*other_rows, newest], omitted=self.omitted)


def build_summary(namespace: str, rows: Iterable[ErasureRow], *, omitted: int = 0) -> ErasuresSummary:
    """Builds the summary, truncated."""
    ordered = sorted(rows, key=lambda row: (row.deadline_at, row.request_id))
    ranked = [*(row for row in ordered if row.is_open), *(row for row in reversed(ordered) if not row.is_open)]
    return ErasuresSummary(
        namespace=namespace,
        requests=tuple(ranked[:MAX_REQUESTS]),
        omitted=omitted + max(0, len(ranked) - MAX_REQUESTS),
    )


def publish_request(objects: ObjectStore, namespace: str, row: ErasureRow) -> bool:
    """Updates the row of a request; returns False if other writers won each attempt. Idempotent."""
    return _update(objects, namespace, lambda summary: summary.with_request(row))


def publish_requests(objects: ObjectStore, namespace: str, rows: Iterable[ErasureRow]) -> bool:
    """Rewrites the summary from the rows of all requests if it differs.

    A request advanced since its records were read keeps its newer row. Idempotent.
    """
    rows = list(rows)

    def change(summary: ErasuresSummary) -> ErasuresSummary:
        stored_rows = {row.request_id: row for row in summary.requests}
        newest = (max(row, stored_rows.get(row.request_id, row), key=lambda one: one.steps) for row in rows)
        return build_summary(namespace, newest)

    return _update(objects, namespace, change)


def _update(objects: ObjectStore, namespace: str, change: Callable[[ErasuresSummary], ErasuresSummary]) -> bool:
    key = erasures_summary(namespace)
    for _ in range(_MAX_ATTEMPTS):
        stored, etag = read_summary(ErasuresSummary, objects, key)
        changed = change(stored or ErasuresSummary(namespace=namespace))
        if changed == stored or write_summary(objects, key, changed, etag=etag):
            return True
    return False
