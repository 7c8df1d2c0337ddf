"""The table of payloads as they came: its columns, and records of streams as rows of it.

Rows are made from a batch of records as Spark hands it over, before any record is read, so that what cannot be parsed
is there too. A payload's place in its stream names it; `_seq` and `_batch_id` are those of the rows it came to.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from deltaworks.events.parse import BatchStamp

ARCHIVE_SCHEMA = pa.schema(
    [
        pa.field("archive_date", pa.date32()),
        pa.field("stream", pa.string()),
        pa.field("partition", pa.string()),
        pa.field("position", pa.string()),
        pa.field("arrived_at_us", pa.int64()),
        pa.field("_seq", pa.int64()),
        pa.field("_batch_id", pa.int64()),
        pa.field("_ingested_at", pa.timestamp("us", tz="UTC")),
        pa.field("record_key", pa.binary()),
        pa.field(
            "headers",
            pa.list_(
                pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
            ),
        ),
        pa.field("value", pa.binary()),
    ]
)
#: By when the batch took them and not by what producers say, whose clocks would make a partition each.
ARCHIVE_PARTITION = ("archive_date",)
#: Makes rows of the archive of records as Spark has them, without what their batch stamps on them.
RecordsToColumns = Callable[[pa.RecordBatch], dict[str, pa.Array]]
_STAMP_COLUMNS = ("archive_date", "_batch_id", "_ingested_at")


def archive_rows(columns: dict[str, pa.Array], stamp: BatchStamp) -> pa.Table:
    """Rows of the archive, of a source's columns. A column that the source lacks is null."""
    count = len(columns["_seq"])
    instants = pa.repeat(pa.scalar(stamp.ingested_at_us, pa.int64()), count).cast(pa.timestamp("us", tz="UTC"))
    stamp_columns = {
        "archive_date": instants.cast(pa.date32()),
        "_batch_id": pa.repeat(pa.scalar(stamp.batch_id, pa.int64()), count),
        "_ingested_at": instants,
    }
    arrays = []
    for field in ARCHIVE_SCHEMA:
        array = stamp_columns[field.name] if field.name in _STAMP_COLUMNS else columns.get(field.name)
        arrays.append(pa.nulls(count, field.type) if array is None else array.cast(field.type))
    return pa.Table.from_arrays(arrays, schema=ARCHIVE_SCHEMA)
