"""Advances open erasure requests, on schedule in the namespace's DAG or triggered by a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field

from deltaworks.control.listing import Listing
from deltaworks.operations.base import OperationContext, Report
from deltaworks.operations.options import Options

if TYPE_CHECKING:
    from deltaworks.erasure.namespace import Namespace

#: Default hours in UTC in which rows are deleted from tables.
NIGHT_HOURS: Final = range(0, 6)


class EraseOptions(Options):
    """Options of a run on open requests."""

    window: Literal["night", "now", "never"] = Field(
        "night", description="When rows are deleted: from 0 to 6 UTC, immediately, or not in this run."
    )
    dry_run: bool = Field(True, description="Only count: rows and dates by table of every open request.")


def erase(context: OperationContext, options: EraseOptions) -> Report:
    """Advances every open request as far as possible. Idempotent; continues an interrupted run.

    Raises:
        ConfigError: KEY_SERVICE_UNDECLARED, VAULT_NOT_ISOLATED.
        ConcurrencyError: ERASURE_RUNNING, TURN_NOT_GRANTED, COMMIT_CONTENDED.
    """
    from deltaworks.control.clock import utc_now
    from deltaworks.erasure.erasure_run import ErasureRun
    from deltaworks.erasure.namespace import open_namespace

    namespace = open_namespace(context.catalog, context.subject)
    if options.dry_run:
        return _count_report(namespace)
    now = utc_now()
    windows = options.window == "now" or (options.window == "night" and now.hour in NIGHT_HOURS)
    results = ErasureRun(namespace, now=now, may_purge=windows).run()
    listing = Listing(("request", "state", "deadline", "waits for"), title="erasures")
    for result in results:
        listing.add(result.request, result.state, result.deadline[:10], result.waiting_for)
    return Report(parts=[listing] if results else ["No request is open."], results=results)


def _count_report(namespace: Namespace) -> Report:
    from deltaworks.erasure.landing_sweep import LandingReport, LandingSweep
    from deltaworks.erasure.row_counts import PersonRowCount, count_rows, current_person
    from deltaworks.erasure.token_search import TokenSearch

    listing = Listing(("request", "state", "table", "rows", "from", "to", ""), title="rows to erase")
    results: list[PersonRowCount | LandingReport] = []
    searches = {}
    for request in namespace.erasures.open_requests():
        if request.has_reached("purged"):
            listing.add(request.request_id, request.state, "", "", "", "", ("rows are deleted; --no-dry-run continues"))
            continue
        person = current_person(namespace, request)
        searches[request.request_id] = TokenSearch(person.tokens)
        for counted in count_rows(namespace, person):
            results.append(counted)
            listing.add(request.request_id, request.state, *counted.cells)
    landing = LandingSweep(namespace, searches, dry_run=True).run() if searches else None
    if landing is not None and landing.objects:
        results.append(landing)
        for request_id, events in sorted(landing.events.items()):
            listing.add(request_id, "", "landed objects", f"{events:,}", "", "", "events would become tombstones")
    parts = [] if landing is None else landing.describe()
    return Report(parts=[listing, *parts, "Nothing was changed. Use --no-dry-run to apply it."], results=results)
