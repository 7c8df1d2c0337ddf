"""The demo's erasure: a player is erased from all tables and landed objects.

The certificate follows a retention period later, once VACUUM has deleted the older versions; so it is not in the demo.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltaworks.control.clock import utc_now
from deltaworks.control.records.erasure import ErasureWindows
from deltaworks.privacy.erasure.erasure_run import ErasureRun
from deltaworks.privacy.erasure.requests import Namespace, open_namespace, receive_request
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.query import connect
from sandbox.demo.answers import AnswerSheet
from sandbox.stack.supervisor import wait_until

NAMESPACE, PIPELINE = "players", "games"
#: Within this time, the streams have read that the player's events are dropped.
_SUPPRESSION_SECONDS = 180.0


@dataclass(slots=True)
class Erasure:
    """The rows of a person before and after, and those that the record of the purge counts."""

    rows_before: int = 0
    rows_after: int = 0
    purged: int = 0

    def run(self, catalog: Catalog) -> None:
        """Erases the player with the most sessions.

        Raises:
            ConcurrencyError, ContractError: see `ErasureRun.run`.
        """
        connection, _ = connect(catalog)
        with connection:
            query = f"SELECT player_id FROM {PIPELINE}.session_start WHERE player_id IS NOT NULL GROUP BY 1"
            person = connection.execute(f"{query} ORDER BY count(*) DESC, 1 LIMIT 1").fetchall()[0][0]
        self.rows_before = _rows_with(catalog, person)
        namespace = open_namespace(catalog, NAMESPACE)
        request = receive_request(namespace, person, received_at=utc_now(), by="demo").request_id
        _purge(namespace, request)
        self.rows_after = _rows_with(catalog, person)
        self.purged = _purged_rows(namespace, request)

    def answer(self, sheet: AnswerSheet) -> None:
        """Compares what the record of the purge says with what a search of all tables found."""
        sheet.check_equal(PIPELINE, "erasure of a player: rows in all tables afterwards", self.rows_after, 0)
        sheet.check_equal(PIPELINE, "erasure of a player: rows by the record", self.purged, self.rows_before)


def _purge(namespace: Namespace, request: str) -> None:
    """Advances the request until its rows are purged. It waits for the streams to drop the person's events."""

    def is_purged() -> bool:
        ErasureRun(namespace, now=utc_now()).run()
        return namespace.erasures.request(request).has_reached("purged")

    wait_until(is_purged, seconds=_SUPPRESSION_SECONDS, poll_seconds=2)


def _purged_rows(namespace: Namespace, request: str) -> int:
    """Returns the person's rows by the record of the purge; 0 if it has not been purged."""
    steps = {step.state: step.detail for step in namespace.erasures.request(request).steps}
    if "purged" not in steps:
        return 0
    tables = ErasureWindows(namespace.objects, NAMESPACE).tables(int(steps["purged"]["window"]))
    return sum(table.by_request.get(request, 0) for table in tables)


def _rows_with(catalog: Catalog, token: str) -> int:
    """Returns the number of rows of the namespace's pipelines with a token in any column, found by reading all."""
    connection, tables = connect(catalog)
    with connection:
        pipelines = {spec.pipeline for spec in catalog.namespace(NAMESPACE)}
        named = [table.split(".", 1) for table in tables if table.split(".", 1)[0] in pipelines]
        counts = (
            connection.execute(f'SELECT count(*) FROM "{schema}"."{name}" AS r WHERE contains(r::VARCHAR, ?)', [token])
            for schema, name in named
            if name != "file_quarantine"
        )
        return sum(count.fetchall()[0][0] for count in counts)
