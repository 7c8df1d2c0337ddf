"""Writes the certificate of a verified request from its recorded states."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from deltaworks import __version__
from deltaworks.control.records.certificate import (
    Certificate,
    Certificates,
    CertifiedLanding,
    CertifiedScan,
    CertifiedTable,
)
from deltaworks.control.records.erasure import ErasureRequest, ErasureWindows, PurgedTable
from deltaworks.erasure.namespace import Namespace, require_privacy
from deltaworks.erasure.scan import log_clean_after
from deltaworks.errors import ContractError


def certify(namespace: Namespace, request: ErasureRequest, *, by: str) -> Certificate:
    """Writes the certificate of a request in state `verified`. Idempotent.

    Raises:
        ContractError: ERASURE_MISCOUNTED, row counts of a table are inconsistent; CERTIFICATES_BROKEN.
    """
    certificates = Certificates(namespace.objects, namespace.name)
    existing = certificates.read(request.request_id)
    if existing is not None:
        return existing
    number, previous = certificates.newest()
    certificate = _create_certificate(namespace, request, number=number + 1, previous=previous, by=by)
    wrong = [f"{table.pipeline}.{table.table}" for table in certificate.tables if not table.is_consistent]
    if wrong:
        raise ContractError(
            "ERASURE_MISCOUNTED",
            f"Row counts of {', '.join(wrong)} are inconsistent in window {certificate.window}: nothing is certified.",
            hint=("Compare the version of the purge with the previous one, and restore the table if rows are missing."),
        )
    return certificates.append(certificate)


def _create_certificate(
    namespace: Namespace, request: ErasureRequest, *, number: int, previous: str, by: str
) -> Certificate:
    detail = {step.state: step.detail for step in request.steps}
    window = int(detail["purged"]["window"])
    purged = ErasureWindows(namespace.objects, namespace.name).tables(window)
    verified = detail["verified"]
    purged_at = request.reached_at("purged")
    return Certificate(
        namespace=namespace.name,
        request_id=request.request_id,
        number=number,
        received_at=request.received_at.isoformat(),
        deadline_at=request.deadline_at.isoformat(),
        times={step.state: step.at for step in request.steps},
        tokens=int(detail["resolved"]["tokens"]),
        tokens_sha256=str(detail["resolved"]["tokens_sha256"]),
        shared_tokens=int(detail["resolved"]["shared"]),
        mode=" ".join(sorted({require_privacy(spec).erase.mode for spec in namespace.pipelines})),
        window=window,
        suppression=int(detail["suppressed"]["number"]),
        key_pages=tuple(detail["shredded"]["pages"]),
        tables=tuple(_certified_table(record, request.request_id) for record in purged),
        scan=CertifiedScan(
            objects=int(verified["objects"]),
            bytes=int(verified["bytes"]),
            hits_before=int(detail["purged"]["hits_before"]),
            hits=0,
            log_hits=int(verified["in_logs"]),
            retained=int(verified["kept"]),
            damaged=tuple(verified["damaged"]),
        ),
        holds=tuple(detail["vacuumed"]["holds"]),
        log_clean_after=log_clean_after(_log_retentions(namespace), purged_at).isoformat(),
        landing_clean_after=landing_clean_after(namespace, request.reached_at("suppressed")).isoformat(),
        landing=_certified_landing(detail["purged"], verified),
        code_version=__version__,
        by=by,
        previous_sha256=previous,
    )


def _certified_landing(purged: dict[str, Any], verified: dict[str, Any]) -> CertifiedLanding:
    """Returns the totals of both landing sweeps of a request."""
    last, first = verified["landing"], purged["landing"]

    def total(name: str) -> int:
        return int(last[name]) + int(first[name])

    return CertifiedLanding(
        objects=last["objects"],
        bytes=last["bytes"],
        rewritten=total("rewritten"),
        removed_versions=total("removed"),
        events=total("events"),
        unreadable_events=last["unreadable"],
    )


def _certified_table(record: PurgedTable, request_id: str) -> CertifiedTable:
    return CertifiedTable(
        pipeline=record.pipeline,
        table=record.table,
        version=record.version,
        rows_before=record.rows_before,
        rows_after=record.rows_after,
        erased_before=record.erased_before,
        erased_after=record.erased_after,
        other_rows_before=record.other_rows_before,
        other_rows_after=record.other_rows_after,
        person_rows=record.by_request.get(request_id, 0),
        files_removed=len(record.removed_files),
        retention_reason=record.retention_reason,
    )


def landing_clean_after(namespace: Namespace, suppressed_at: datetime) -> datetime:
    """Returns the time after which no object that landed before the suppression exists."""
    return suppressed_at + timedelta(days=max(require_privacy(spec).erase.landing_days for spec in namespace.pipelines))


def _log_retentions(namespace: Namespace) -> list[str]:
    retentions = []
    for spec in namespace.pipelines:
        for table in spec.tables:
            delta_table = namespace.lake.open(namespace.home(spec.pipeline).table(table.name))
            if delta_table is not None:
                retentions.append(delta_table.metadata().configuration.get("delta.logRetentionDuration") or "")
    return retentions
