"""Finds the events in an Avro object container: each record is one, its values as JSON has them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import fastavro
import orjson

from deltaworks.events.columns import Misfit
from deltaworks.events.formats.json import Malformed
from deltaworks.events.formats.values import plain
from deltaworks.events.reasons import ReasonCode

MAGIC = b"Obj\x01"


def values(payload: bytes) -> Iterator[tuple[Any, bytes]]:
    """Every record; one `Malformed` for each block that cannot be read, and one for what lies behind a torn one.

    Raises:
        Misfit: the object is no Avro container, or its header cannot be read, which has the schema and the codec.
    """
    if not payload.startswith(MAGIC):
        raise Misfit(ReasonCode.OBJECT_WRONG_FORMAT, "it does not begin as an Avro container does")
    try:
        blocks = fastavro.block_reader(io.BytesIO(payload))
    except Exception as error:  # whatever the bytes of a damaged header lead the reader into
        raise Misfit(ReasonCode.OBJECT_UNREADABLE, f"its Avro header cannot be read: {_described(error)}") from None
    if not isinstance(blocks.writer_schema, dict) or blocks.writer_schema.get("type") != "record":
        raise Misfit(ReasonCode.OBJECT_WRONG_FORMAT, "its Avro schema is no record")
    return _records(blocks)


def _records(blocks: Any) -> Iterator[tuple[Any, bytes]]:
    number = 0
    while True:
        try:
            block = next(blocks)
        except StopIteration:
            return
        except Exception as error:  # where the next block begins is not known any more
            yield Malformed(b"", f"block {number} and what follows cannot be read: {_described(error)}"), b""
            return
        try:
            records = list(block)
        except Exception as error:
            yield (
                Malformed(b"", f"block {number} of {block.num_records} records cannot be read: {_described(error)}"),
                b"",
            )
            records = []
        number += 1
        for record in records:
            event = plain(record)
            yield event, orjson.dumps(event, default=str)


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]
