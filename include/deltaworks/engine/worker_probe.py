"""Checks whether a Python worker can parse a known good payload.

If a native library crashes on every payload, the worker is broken, and objects must not be blamed for the crashes.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from deltaworks.events.chunks import Payload
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources.selection import SourceSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Timeout of the probe. A healthy worker needs milliseconds plus its start time.
PROBE_SECONDS = 60.0
_KEY = "probe"


def probe_payload(source: SourceSpec) -> bytes:
    """Returns a small payload with one event in the source's format."""
    return _PAYLOADS[source.format](source)


def _csv(source: Any) -> bytes:
    rows = [source.csv.columns or (_KEY,), (_KEY,) * len(source.csv.columns or (_KEY,))]
    return "".join(f"{source.csv.delimiter.join(row)}\n" for row in rows[not source.csv.header :]).encode()


def _tsv(source: Any) -> bytes:
    names = source.tsv.columns or (_KEY,)
    return f"#Fields: {' '.join(names)}\n{chr(9).join(_KEY for _ in names)}\n".encode()


def _parquet(source: Any) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(pa.table({_KEY: [_KEY]}), sink)
    return sink.getvalue()


def _avro(source: Any) -> bytes:
    import fastavro

    sink = io.BytesIO()
    schema = {"type": "record", "name": _KEY, "fields": [{"name": _KEY, "type": "string"}]}
    fastavro.writer(sink, fastavro.parse_schema(schema), [{_KEY: _KEY}])
    return sink.getvalue()


_PAYLOADS: dict[str, Callable[[Any], bytes]] = {
    "json": lambda source: b'{"probe": "probe"}',
    "csv": _csv,
    "tsv": _tsv,
    "text": lambda source: b"probe\n",
    "parquet": _parquet,
    "avro": _avro,
}


def probe_worker(spark: SparkSession, spec: PipelineSpec, read: Callable[[Iterable[Payload]], Any]) -> None:
    """Runs one Spark task that parses the probe payload and discards the rows.

    The payload is created in the task too, so that a broken library cannot crash the driver.

    Args:
        read: parses payloads like a task of a batch; an exception from it does not count as a crash.

    Raises:
        Exception: Spark's error if the task crashed.
    """
    declared = spec.model_dump_json()

    def run_probe(numbers: Iterable[int]) -> Iterator[int]:
        source = PipelineSpec.model_validate_json(declared).source
        for number in numbers:
            with contextlib.suppress(Exception):  # An exception means that the worker did not crash.
                read([Payload(number, _KEY, probe_payload(source))])
            yield number

    spark.sparkContext.parallelize([0], 1).mapPartitions(run_probe).collect()
