"""The demo's erasure: a player is erased from all tables and landed objects, up to the certificate.

A certificate is written a retention period after the purge, once VACUUM has deleted the older versions. Therefore the
second half runs with a clock that is ahead by more than that period. It is the last step of a demo: streams that run
meanwhile find their locks expired.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from deltaworks.control import clock
from deltaworks.control.clock import utc_now
from deltaworks.control.records.certificate import Certificates
from deltaworks.privacy.erasure.erasure_run import ErasureRun
from deltaworks.privacy.erasure.requests import Namespace, open_namespace, receive_request
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.query import connect
from sandbox.demo.answers import AnswerSheet

NAMESPACE, PIPELINE = "players", "games"
_AHEAD = timedelta(days=9)


@dataclass(slots=True)
class Erasure:
    """What was there of a person before and after, and what the certificate says."""

    rows_before: int = 0
    rows_after: int = 0
    certified_rows: int = 0
    certificates: int = 0
    state: str = ""

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
        self._advance(namespace, request)
        self.rows_after = _rows_with(catalog, person)
        with _clock_ahead(_AHEAD):
            self._advance(namespace, request)
        certificates = Certificates(namespace.objects, NAMESPACE, namespace.vault.objects)
        self.certificates = certificates.check()
        certificate = certificates.read(request)
        self.certified_rows = sum(table.person_rows for table in certificate.tables) if certificate else 0

    def answer(self, sheet: AnswerSheet) -> None:
        """Compares what the certificate says with what a search of all tables found."""
        check = sheet.check_equal
        check(PIPELINE, "erasure of a player: rows in all tables afterwards", self.rows_after, 0)
        check(PIPELINE, "erasure of a player: rows by its certificate", self.certified_rows, self.rows_before)
        check(PIPELINE, "erasure of a player: certificates in an unbroken chain", self.certificates, 1)

    def _advance(self, namespace: Namespace, request: str) -> None:
        results = ErasureRun(namespace, now=utc_now()).run()
        self.state = next((f"{one.state} {one.waiting_for}" for one in results if one.request == request), "")


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


@contextmanager
def _clock_ahead(ahead: timedelta) -> Iterator[None]:
    """Sets this process's clock ahead."""

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Ahead:
            there = datetime.now(tz) + ahead
            return cls.fromtimestamp(there.timestamp(), tz)

    setattr(clock, "datetime", Ahead)  # noqa: B010  the module does not export it
    try:
        yield
    finally:
        setattr(clock, "datetime", datetime)  # noqa: B010
