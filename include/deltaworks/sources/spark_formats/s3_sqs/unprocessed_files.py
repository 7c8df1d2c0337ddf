"""What could not be read, on its way into the table `file_quarantine` of the state, each once.

A task writes one object for each file with something unread: what is in it follows from the file and the schema
alone, so a task that runs twice writes the same one again. Once a batch is done, the driver takes its objects into the
table in one guarded step and removes them.
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
    """The id of a query among those over one state: a digest of what it reads, and into which columns."""
    return hashlib.blake2b(f"{source_json}\n{schema_json}".encode(), digest_size=8).hexdigest()


def save_rejected(
    objects: ObjectStore, query: str, reference: FileReference, *, bucket: str, rejected: Sequence[RejectedEvent]
) -> None:
    """Keep what could not be read of one file until its batch is done. Idempotent."""
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
    """Takes what tasks noted into the table. For one thread, of one driver at a time."""

    def __init__(self, lake: Lake, objects: ObjectStore, query: str) -> None:
        self._lake = lake
        self._objects = objects
        self._query = query

    def commit_up_to(self, up_to_seq: int) -> int:
        """Commit what was noted of files up to `up_to_seq`, whose batch is done; how many rows. Repeatable."""
        due = [key for key in self._objects.list(_folder(self._query)) if _seq_of(key) <= up_to_seq]
        if not due:
            return 0
        made = user_metadata(pipeline="s3-sqs", batch=up_to_seq, operation="commit_rejected")
        table = self._lake.ensure(FILE_QUARANTINE_KEY, FILE_QUARANTINE_SCHEMA, user_metadata=made)
        step = Step(f"s3-sqs/{self._query}", up_to_seq)
        landed = table.transaction_version(step.app_id) or 0
        rows: list[dict[str, object]] = []
        for key in due:
            noted = self._objects.get(key)
            if noted is not None and _seq_of(key) > landed:
                rows += [{**row, "noted_at": utc_now()} for row in json.loads(noted.data)]
        if rows:
            self._lake.append(
                table,
                FILE_QUARANTINE_KEY,
                pa.Table.from_pylist(rows, FILE_QUARANTINE_SCHEMA),
                step=step,
                user_metadata=made,
            )
        for key in due:
            self._objects.delete(key)
        return len(rows)


def _folder(query: str) -> str:
    return f"rejected/{query}/"


def _seq_of(key: str) -> int:
    return int(key.rpartition("/")[2].removesuffix(".json"))
