"""Certificates of erasures, linked as a hash chain.

Each certificate contains the SHA-256 of the previous one, so that none in between can be changed or removed unnoticed.
Number and SHA-256 of the newest one are also in the vault, which writers of the lake cannot change: the newest ones
cannot be removed, nor the entire chain rewritten. Certificates contain no identifiers, only a digest of the person's
tokens.
"""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar

from pydantic import Field

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordPart, RecordStore
from deltaworks.errors import ContractError
from deltaworks.privacy.paths import vault_certificate_head

_KIND = RecordKind(
    noun="certificate of an erasure",
    unreadable_condition="ERASURE_UNREADABLE",
    hint="Restore it from the storage's versions, or run the release that wrote it.",
)


class CertifiedTable(RecordPart):
    """Row counts of one table: total, erased and other rows, before and after the purge, and rows of the person.

    `version` is the purge's commit, None if the table had no rows to erase.
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
        """Whether no other row was lost and no row of the person remains."""
        erased_rows = self.erased_before if self.rows_after != self.rows_before else 0
        is_count_correct = (
            self.rows_after == self.rows_before - erased_rows and self.other_rows_after == self.other_rows_before
        )
        return bool(self.retention_reason) or (is_count_correct and self.erased_after == 0)


class CertifiedScan(RecordPart):
    """Result of scanning the storage for the person's tokens, before and after the erasure.

    `log_hits` are Delta log objects with statistics of deleted rows; they expire with the log.
    """

    objects: int
    bytes: int
    hits_before: int
    hits: int
    log_hits: int
    retained: int
    damaged: tuple[str, ...] = ()


class CertifiedLanding(RecordPart):
    """Counts of landed objects that were scanned, rewritten or deleted for a request.

    Each event of the person was replaced by a tombstone (`events`). Events that could not be attributed to a person
    (`unreadable_events`) expire by `landing_clean_after`.
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
        number: position in the chain, from 1.
        times: time of each state of the request.
        holds: reasons that delayed VACUUM.
        log_clean_after: from then on no Delta log has statistics of the person's rows.
        landing: the scan of landed objects.
        landing_clean_after: until then landed objects may contain events of the person, which no job reads.
        previous_sha256: digest of the previous certificate; empty for the first.
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
    landing: CertifiedLanding
    detail: dict[str, Any] = Field(default_factory=dict)


class CertificateHead(Record):
    """The end of a namespace's chain, as stored in the vault.

    Args:
        number: number of the newest certificate, with digest `sha256`.
        next_sha256: digest of a certificate that is being appended; it may exist or not.
    """

    kind: ClassVar[RecordKind] = _KIND

    namespace: str
    number: int = 0
    sha256: str = ""
    next_sha256: str = ""


class Certificates:
    """The certificate chain of one namespace. One process appends, under the namespace's lease; any process may
    read.

    Args:
        vault: the vault's objects, which have the head of the chain.
    """

    def __init__(self, objects: ObjectStore, namespace: str, vault: ObjectStore) -> None:
        self._objects = objects
        self._namespace = namespace
        self._records = RecordStore(objects, Certificate)
        self._vault = vault
        self._heads = RecordStore(vault, CertificateHead)

    def read(self, request_id: str) -> Certificate | None:
        """Reads the certificate of a request.

        Raises:
            ContractError: ERASURE_UNREADABLE.
        """
        return self._records.read(paths.erasure_certificate(self._namespace, request_id))

    def raw_bytes(self, request_id: str) -> bytes | None:
        """Returns the stored bytes of a certificate, for download."""
        stored = self._objects.get(paths.erasure_certificate(self._namespace, request_id))
        return None if stored is None else stored.data

    def newest(self) -> tuple[int, str]:
        """Returns number and SHA-256 of the newest certificate; 0 and an empty text if there is none.

        Raises:
            ContractError: CERTIFICATES_BROKEN, ERASURE_UNREADABLE.
        """
        number, digest = self._chain_end()
        self._check_head(number, digest)
        return number, digest

    def append(self, certificate: Certificate) -> Certificate:
        """Appends a certificate; returns the stored one. Idempotent.

        The vault has its digest before the lake has the certificate, so an interrupted append leaves a valid chain.

        Raises:
            ContractError: CERTIFICATES_BROKEN, ERASURE_UNREADABLE, RECORD_VANISHED.
        """
        number, digest = self.newest()
        existing = self.read(certificate.request_id)
        if existing is not None:
            # An interrupted append may have left the head at the previous certificate.
            self._write_head(number, digest)
            return existing
        appended = hashlib.sha256(certificate.encode()).hexdigest()
        self._write_head(number, digest, next_sha256=appended)
        key = paths.erasure_certificate(self._namespace, certificate.request_id)
        stored = self._records.get_or_create(key, certificate)
        self._write_head(number + 1, appended)
        return stored

    def check(self) -> int:
        """Verifies the chain and its head in the vault; returns its length.

        Raises:
            ContractError: CERTIFICATES_BROKEN if a certificate was changed or is missing; ERASURE_UNREADABLE.
            TransientError: the vault does not answer, or denies access.
        """
        return self.newest()[0]

    def check_within_lake(self) -> int:
        """Verifies only that each certificate is bound to the previous one, for processes without access to the vault.

        Raises:
            ContractError: CERTIFICATES_BROKEN, ERASURE_UNREADABLE.
        """
        return self._chain_end()[0]

    def _check_head(self, number: int, digest: str) -> None:
        head = self._heads.read(vault_certificate_head(self._namespace)) or CertificateHead(namespace=self._namespace)
        if (number, digest) in ((head.number, head.sha256), (head.number + 1, head.next_sha256)):
            return
        what = f"it has {number:,} certificates, and the vault has recorded {head.number:,}"
        if number == head.number:
            what = f"its newest certificate, number {number:,}, is not the one that the vault has recorded"
        raise ContractError(
            "CERTIFICATES_BROKEN", f"The certificate chain of {self._namespace!r} was changed at its end: {what}."
        )

    def _write_head(self, number: int, digest: str, *, next_sha256: str = "") -> None:
        head = CertificateHead(namespace=self._namespace, number=number, sha256=digest, next_sha256=next_sha256)
        self._vault.put(vault_certificate_head(self._namespace), head.encode())

    def _chain_end(self) -> tuple[int, str]:
        """Returns number and SHA-256 of the last certificate in the lake, after verifying the chain."""
        links = []
        for key in self._objects.list(paths.erasure_certificate(self._namespace)):
            stored = self._objects.get(key)
            if stored is not None:
                links.append((Certificate.decode(stored.data, key=key), stored.data))
        links.sort(key=lambda link: link[0].number)
        previous_sha256 = ""
        for number, (certificate, data) in enumerate(links, start=1):
            if certificate.number != number or certificate.previous_sha256 != previous_sha256:
                raise ContractError(
                    "CERTIFICATES_BROKEN",
                    f"The certificate chain of {self._namespace!r} is broken at {certificate.request_id}: an "
                    "earlier certificate was changed or is missing.",
                )
            previous_sha256 = hashlib.sha256(data).hexdigest()
        return len(links), previous_sha256
