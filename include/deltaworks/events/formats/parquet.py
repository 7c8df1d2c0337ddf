"""Finds the events in a Parquet object: each row is one, its values as JSON has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from deltaworks.events.columns import Misfit
from deltaworks.events.formats.json import Malformed
from deltaworks.events.formats.values import plain
from deltaworks.events.reasons import ReasonCode

MAGIC = b"PAR1"
_ROWS_AT_ONCE = 10_000


def values(payload: bytes) -> Iterator[tuple[Any, bytes]]:
    """Every row; one `Malformed` for each group of rows that cannot be read.

    Raises:
        Misfit: the object is no Parquet, or cut off: its end says where everything is.
    """
    if not payload.startswith(MAGIC):
        raise Misfit(ReasonCode.OBJECT_WRONG_FORMAT, "it does not begin as Parquet does")
    try:
        file = pq.ParquetFile(pa.BufferReader(payload), page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise Misfit(ReasonCode.OBJECT_UNREADABLE, f"its Parquet footer cannot be read: {error}") from None
    return _rows(file)


def _rows(file: pq.ParquetFile) -> Iterator[tuple[Any, bytes]]:
    for group in range(file.num_row_groups):
        try:
            table = file.read_row_group(group)
        except (pa.ArrowException, OSError) as error:
            yield Malformed(b"", f"row group {group} of {file.num_row_groups} cannot be read: {error}"), b""
            continue
        for batch in _microseconds(table).to_batches(max_chunksize=_ROWS_AT_ONCE):
            for row in batch.to_pylist(maps_as_pydicts="lossy"):
                event = plain(row)
                yield event, orjson.dumps(event, default=str)


def _microseconds(table: pa.Table) -> pa.Table:
    """Instants to the microsecond, which is what Python's have room for."""
    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            target = pa.timestamp("us", tz=field.type.tz)
            table = table.set_column(index, field.name, pc.cast(table.column(index), target, safe=False))
    return table
