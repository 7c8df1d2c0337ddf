"""Certificates of erasures: what was done, counted and looked for, each bound to the one before it.

A certificate has the SHA-256 of the one before, so that none can be changed or taken out unseen. It names nobody: of
the tokens it has a digest, which whoever has them can compare.
"""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar

from pydantic import Field

from deltaworks.control import erasure_paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordPart, RecordStore
from deltaworks.errors import ContractError

_KIND = RecordKind(
    noun="certificate of an erasure",
    unreadable_condition="ERASURE_UNREADABLE",
    hint="Restore it from the storage's versions, or run the release that wrote it.",
)


class CertifiedTable(RecordPart):
    """One table: rows of everybody, of the person's window and of the others, before and after, and of the person.

    `version` is that of the purge, None where the table had no row of theirs.
    """

    pipeline: str
    table: str
    version: int | None
    rows_before: int
    rows_after: int
    erased_before: int
    erased_after: int
    other_rows_before: int
    other_rows_after: int
    person_rows: int
    files_removed: int
    retention_reason: str = ""

    @property
    def is_consistent(self) -> bool:
        """Whether nobody else lost a row and the person has none, where rows of theirs were to go."""
        erased_rows = self.erased_before if self.rows_after != self.rows_before else 0
        counted = self.rows_after == self.rows_before - erased_rows and self.other_rows_after == self.other_rows_before
        return bool(self.retention_reason) or (counted and self.erased_after == 0)


class CertifiedScan(RecordPart):
    """The scan: what was read, where the person's tokens were before, and that they are nowhere now.

    `in_logs` are objects of Delta logs with bounds of rows that are gone, which go with the logs.
    """

    objects: int
    bytes: int
    hits_before: int
    hits: int
    log_hits: int
    retained: int
    damaged: tuple[str, ...] = ()


class CertifiedLanding(RecordPart):
    """Landed objects: those gone through at the end, and what was put anew or deleted in the window and at the end.

    `events` of the person became marks. `unreadable_events` could be told of nobody; they are gone by
    `landing_clean_after`.
    """

    objects: int
    bytes: int
    rewritten: int
    removed_versions: int
    events: int
    unreadable_events: int


class Certificate(Record):
    """The certificate of one request. Times are ISO 8601 in UTC.

    Args:
        number: its place in the chain, from 1.
        times: of each state of the request.
        holds: what held VACUUM back on the way.
        log_clean_after: from when no log has a bound of the person's rows.
        landing: what was gone through of landed objects; None where none are rewritten, or by an earlier release.
        landing_clean_after: until when objects that landed may have events of the person, which nothing reads.
        previous_sha256: of the bytes of the certificate before; empty for the first.
    """

    kind: ClassVar[RecordKind] = _KIND
    indent: ClassVar[int | None] = 1

    namespace: str
    request_id: str
    number: int
    received_at: str
    deadline_at: str
    times: dict[str, str]
    tokens: int
    tokens_sha256: str
    shared_tokens: int
    mode: str
    window: int
    suppression: int
    key_pages: tuple[str, ...]
    tables: tuple[CertifiedTable, ...]
    scan: CertifiedScan
    holds: tuple[str, ...]
    log_clean_after: str
    landing_clean_after: str
    code_version: str
    by: str
    previous_sha256: str
    landing: CertifiedLanding | None = Field(default=None, exclude_if=lambda landing: landing is None)
    detail: dict[str, Any] = Field(default_factory=dict)


class Certificates:
    """The chain of one namespace. One process at a time appends, under the namespace's lease; anybody reads."""

    def __init__(self, objects: ObjectStore, namespace: str) -> None:
        self._objects = objects
        self._namespace = namespace
        self._records = RecordStore(objects, Certificate)

    def read(self, request_id: str) -> Certificate | None:
        """The certificate of a request.

        Raises:
            ContractError: ERASURE_UNREADABLE.
        """
        return self._records.read(erasure_paths.certificate(self._namespace, request_id))

    def raw_bytes(self, request_id: str) -> bytes | None:
        """The object of a certificate, to be handed out."""
        stored = self._objects.get(erasure_paths.certificate(self._namespace, request_id))
        return None if stored is None else stored.data

    def newest(self) -> tuple[int, str]:
        """The number of the newest certificate and its SHA-256; 0 and an empty text before the first.

        Raises:
            ContractError: CERTIFICATES_BROKEN, ERASURE_UNREADABLE.
        """
        chain = self._chain()
        return (len(chain), hashlib.sha256(chain[-1][1]).hexdigest()) if chain else (0, "")

    def append(self, certificate: Certificate) -> Certificate:
        """Write a certificate. Idempotent; the one that stands is returned.

        Raises:
            ContractError: ERASURE_UNREADABLE, RECORD_VANISHED.
        """
        return self._records.get_or_create(
            erasure_paths.certificate(self._namespace, certificate.request_id), certificate
        )

    def check(self) -> int:
        """How many certificates there are, each bound to the one before.

        Raises:
            ContractError: CERTIFICATES_BROKEN, one was changed or is missing; ERASURE_UNREADABLE.
        """
        return len(self._chain())

    def _chain(self) -> list[tuple[Certificate, bytes]]:
        links = []
        for key in self._objects.list(erasure_paths.certificates(self._namespace)):
            stored = self._objects.get(key)
            if stored is not None:
                links.append((Certificate.decode(stored.data, key=key), stored.data))
        links.sort(key=lambda link: link[0].number)
        previous_sha256 = ""
        for number, (certificate, data) in enumerate(links, start=1):
            if certificate.number != number or certificate.previous_sha256 != previous_sha256:
                raise ContractError(
                    "CERTIFICATES_BROKEN",
                    f"The certificates of {self._namespace!r} are no chain at {certificate.request_id}: one before it "
                    "was changed, or is missing.",
                    hint="Put the object back from the storage's versions; nothing is certified until then.",
                )
            previous_sha256 = hashlib.sha256(data).hexdigest()
        return links
