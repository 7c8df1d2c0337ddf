"""Writes rejected content to the table `file_quarantine` of the state, each item once.

A task writes one object per file with rejected content. The object depends only on the file and the schema, so a
retried task writes the same object. After a batch, the driver commits these objects to the table in one idempotent step
and deletes them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import pyarrow as pa

from deltaworks.control.clock import utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.provenance import user_metadata
from deltaworks.events.reasons import RejectedEvent
from deltaworks.sources.objects.payloads import FileReference
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake

FILE_QUARANTINE_KEY = "file_quarantine"
FILE_QUARANTINE_SCHEMA = pa.schema(
    [
        pa.field("bucket", pa.string()),
        pa.field("key", pa.string()),
        pa.field("etag", pa.string()),
        pa.field("seq", pa.int64()),
        pa.field("position", pa.int64()),
        pa.field("reason", pa.string()),
        pa.field("detail", pa.string()),
        pa.field("raw", pa.string()),
        pa.field("query", pa.string()),
        pa.field("noted_at", pa.timestamp("us", tz="UTC")),
    ]
)


def query_name(schema_json: str, source_json: str) -> str:
    """Returns a digest of a query's input and columns, which identifies the query among those that use one state."""
    return hashlib.blake2b(f"{source_json}\n{schema_json}".encode(), digest_size=8).hexdigest()


def save_rejected(
    objects: ObjectStore, query: str, reference: FileReference, *, bucket: str, rejected: Sequence[RejectedEvent]
) -> None:
    """Stores the rejected content of one file until its batch completes. Idempotent."""
    rows = [
        {
            "bucket": bucket,
            "key": reference.key,
            "etag": reference.etag,
            "seq": reference.seq,
            "position": row.position,
            "reason": ",".join(str(reason.code) for reason in row.reasons),
            "detail": "; ".join(f"{reason.path} {reason.detail}".strip() for reason in row.reasons),
            "raw": row.raw.decode("utf-8", "backslashreplace"),
            "query": query,
        }
        for row in rejected
    ]
    objects.put(f"{_folder(query)}{reference.seq:019d}.json", json.dumps(rows).encode())


class FileQuarantineTable:
    """Commits the rejected content that tasks stored to the table. Used by one thread of one driver."""

    def __init__(self, lake: Lake, objects: ObjectStore, query: str) -> None:
        self._lake = lake
        self._objects = objects
        self._query = query

    def commit_up_to(self, up_to_seq: int) -> int:
        """Commits rejected content of files up to `up_to_seq`, whose batch is complete; returns the number of rows.
        Idempotent.
        """
        keys = [key for key in self._objects.list(_folder(self._query)) if _seq_of(key) <= up_to_seq]
        if not keys:
            return 0
        metadata = user_metadata(pipeline="s3-sqs", batch=up_to_seq, operation="commit_rejected")
        table = self._lake.ensure(FILE_QUARANTINE_KEY, FILE_QUARANTINE_SCHEMA, user_metadata=metadata)
        step = Step(f"s3-sqs/{self._query}", up_to_seq)
        committed_seq = table.transaction_version(step.app_id) or 0
        rows: list[dict[str, object]] = []
        for key in keys:
            stored = self._objects.get(key)
            if stored is not None and _seq_of(key) > committed_seq:
                rows += [{**row, "noted_at": utc_now()} for row in json.loads(stored.data)]
        if rows:
            self._lake.append(
                table,
                FILE_QUARANTINE_KEY,
                pa.Table.from_pylist(rows, FILE_QUARANTINE_SCHEMA),
                step=step,
                user_metadata=metadata,
            )
        for key in keys:
            self._objects.delete(key)
        return len(rows)


def _folder(query: str) -> str:
    return f"rejected/{query}/"


def _seq_of(key: str) -> int:
    return int(key.rpartition("/")[2].removesuffix(".json"))
