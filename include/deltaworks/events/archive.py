"""The archive table: every record of a stream, unparsed.

Records are archived before they are parsed, so records that fail to parse are archived too. A row is identified by its
partition and position in the stream. Its `_seq` and `_batch_id` equal those of the rows parsed from the record.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from deltaworks.events.chunks import BatchMetadata

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
#: Partitioned by ingestion date: with the producer's timestamp, a wrong clock would create arbitrary partitions.
ARCHIVE_PARTITION = ("archive_date",)
#: Converts Spark's records to archive columns, without the batch columns.
RecordsToColumns = Callable[[pa.RecordBatch], dict[str, pa.Array]]
_BATCH_METADATA_COLUMNS = ("archive_date", "_batch_id", "_ingested_at")


def archive_rows(columns: dict[str, pa.Array], stamp: BatchMetadata) -> pa.Table:
    """Returns archive rows from the columns of records, by name, and adds the batch's columns. Missing columns are
    null.
    """
    count = len(columns["_seq"])
    instants = pa.repeat(pa.scalar(stamp.ingested_at_us, pa.int64()), count).cast(pa.timestamp("us", tz="UTC"))
    stamp_columns = {
        "archive_date": instants.cast(pa.date32()),
        "_batch_id": pa.repeat(pa.scalar(stamp.batch_id, pa.int64()), count),
        "_ingested_at": instants,
    }
    arrays = []
    for field in ARCHIVE_SCHEMA:
        array = stamp_columns[field.name] if field.name in _BATCH_METADATA_COLUMNS else columns.get(field.name)
        arrays.append(pa.nulls(count, field.type) if array is None else array.cast(field.type))
    return pa.Table.from_arrays(arrays, schema=ARCHIVE_SCHEMA)
