"""Expected records of erasures."""

from __future__ import annotations

from deltaworks.control.records.certificate import (
    Certificate,
    CertificateHead,
    CertifiedLanding,
    CertifiedScan,
    CertifiedTable,
)
from deltaworks.control.records.erasure import ErasureStep, ErasureWindow, PurgedTable
from deltaworks.control.records.reprocess import (
    ReplacedObject,
    ReplacementCompletion,
    ReplacementPlan,
    WrittenObject,
)
from deltaworks.control.records.store import UnversionedRecord

AT = "2026-01-02T03:04:05.678+00:00"
RUN = "players__erase/scheduled__1/erase/1"
COUNTS = {
    "pipeline": "games",
    "table": "purchase",
    "version": 41,
    "rows_before": 100,
    "rows_after": 97,
    "erased_before": 3,
    "erased_after": 0,
    "other_rows_before": 97,
    "other_rows_after": 97,
}
ERASURE: dict[str, UnversionedRecord] = {
    "erasure_received": ErasureStep(
        namespace="players",
        request_id="e20260102-0a1b2c3d4e",
        number=1,
        state="received",
        at=AT,
        by="dpo",
        run="manual",
        received_at=AT,
        purge_by=AT,
        deadline_at=AT,
        subjects_digest="9f86",
    ),
    "erasure_purged": ErasureStep(
        namespace="players",
        request_id="e20260102-0a1b2c3d4e",
        number=5,
        state="purged",
        at=AT,
        by=RUN,
        run=RUN,
        detail={"window": 7, "rows": 3, "hits_before": 11},
    ),
    "erasure_window": ErasureWindow(namespace="players", number=7, requests={"e20260102-0a1b2c3d4e": 11}, at=AT),
    "purged_table": PurgedTable(
        **COUNTS,
        at_ms=1_767_323_045_678,
        by_request={"e20260102-0a1b2c3d4e": 3},
        dates={"2026-01-01": 3},
        removed_files=("event_date=2026-01-01/part-1.parquet",),
        bytes_written=1234,
    ),
    "replacement_plan": ReplacementPlan(
        number=4,
        namespace="players",
        by=RUN,
        at=AT,
        objects=(
            ReplacedObject(
                bucket="landing",
                key="games/1.json",
                etag="900150983cd24fb0d6963f7d28e17f72",
                version_id=None,
                new_etag="d41d8cd98f00b204e9800998ecf8427e",
                bytes_before=2048,
                bytes_after=1024,
                events=3,
                landed_at=AT,
            ),
        ),
    ),
    "replacement_end": ReplacementCompletion(
        number=4, at=AT, objects=(WrittenObject(etag="d41d8cd98f00b204e9800998ecf8427e", version_id="v2"),)
    ),
    "certificate_head": CertificateHead(namespace="players", number=2, sha256="9f86", next_sha256="d081"),
    "certificate": Certificate(
        namespace="players",
        request_id="e20260102-0a1b2c3d4e",
        number=2,
        received_at=AT,
        deadline_at=AT,
        times={"received": AT, "certified": AT},
        tokens=3,
        tokens_sha256="9f86",
        shared_tokens=1,
        mode="rows",
        window=7,
        suppression=3,
        key_pages=("0af",),
        tables=(CertifiedTable(**COUNTS, person_rows=3, files_removed=1),),
        scan=CertifiedScan(objects=70, bytes=48_197, hits_before=11, hits=0, log_hits=4, retained=0),
        holds=(),
        log_clean_after=AT,
        landing_clean_after=AT,
        code_version="0.1.0",
        by=RUN,
        previous_sha256="60303ae2",
        landing=CertifiedLanding(
            objects=70, bytes=48_197, rewritten=2, removed_versions=3, events=3, unreadable_events=0
        ),
    ),
}
