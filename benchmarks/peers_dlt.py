"""A dlt user's script that loads events into Delta tables. `peers` runs it with the Python of dlt's environment.

    python peers_dlt.py JOB.json

The job file contains a folder of gzipped files with one event per line, the target folder, and the tables with their
columns. The script prints the seconds of the pipeline run as JSON. It imports nothing from Deltaworks.

Events are dicts whose values dlt coerces to the declared column types, as in dlt's tutorials.
"""

from __future__ import annotations

import gzip
import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_ROWS_PER_BATCH = 20_000
_ENVELOPE = ("event_id", "event_name", "event_time", "event_date", "_ingested_at")
_ENVELOPE_TYPES = dict(zip(_ENVELOPE, ("string", "string", "timestamp", "date", "timestamp"), strict=True))
_DLT_TYPES = {
    "string": "text",
    "int": "bigint",
    "long": "bigint",
    "float": "double",
    "double": "double",
    "boolean": "bool",
    "timestamp": "timestamp",
    "date": "date",
}


def rows_of(event: dict[str, Any], tables: list[dict[str, Any]], now: datetime) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the name and row of every table that accepts the event."""
    parameters = event.get("eventParams") or {}
    at = datetime.fromtimestamp(event["eventTime"], UTC)
    for table in tables:
        if table["names"] is None or event["eventName"] in table["names"]:
            envelope = (parameters.get("event_id"), event["eventName"], at, at.date(), now)
            row = dict(zip(_ENVELOPE, envelope, strict=True))
            row.update((column["name"], parameters.get(column["parameter"])) for column in table["columns"])
            yield table["name"], row


def batches(job: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yields rows by table, in batches."""
    import orjson

    now, held = datetime.now(UTC), {table["name"]: [] for table in job["tables"]}
    for path in sorted(Path(job["events"]).iterdir()):
        for line in gzip.decompress(path.read_bytes()).splitlines():
            for name, row in rows_of(orjson.loads(line), job["tables"], now):
                held[name].append(row)
                if len(held[name]) >= _ROWS_PER_BATCH:
                    yield name, held[name]
                    held[name] = []
    yield from ((name, rows) for name, rows in held.items() if rows)


def types_of(table: dict[str, Any]) -> dict[str, str]:
    """Returns the declared type of every column, starting with the envelope's."""
    return {**_ENVELOPE_TYPES, **{column["name"]: column["type"] for column in table["columns"]}}


def hints_of(table: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns dlt's column hints; nested columns are stored as JSON."""
    hints: dict[str, dict[str, Any]] = {}
    for name, kind in types_of(table).items():
        if kind.startswith("decimal("):
            precision, scale = kind[len("decimal(") : -1].split(",")
            hints[name] = {"data_type": "decimal", "precision": int(precision), "scale": int(scale)}
        else:
            hints[name] = {"data_type": _DLT_TYPES.get(kind, "json")}
        if name in table["partition_by"]:
            hints[name]["partition"] = True
    return hints


def main(job: dict[str, Any]) -> float:
    """Runs the pipeline and returns its seconds, including the time to read the events."""
    import dlt

    tables = {table["name"]: table for table in job["tables"]}
    hints = {
        name: dlt.mark.make_hints(
            table_name=name, columns=hints_of(table), write_disposition="append", table_format="delta"
        )
        for name, table in tables.items()
    }

    @dlt.resource(name="events_sent", max_table_nesting=0)
    def events_sent() -> Iterator[Any]:
        for name, rows in batches(job):
            yield dlt.mark.with_hints(rows, hints[name], create_table_variant=True)

    pipeline = dlt.pipeline(
        "peers",
        destination=dlt.destinations.filesystem(bucket_url=job["root"]),
        dataset_name="tables",
        pipelines_dir=job["state"],
    )
    started = time.perf_counter()
    pipeline.run(events_sent()).raise_on_failed_jobs()
    return time.perf_counter() - started


if __name__ == "__main__":
    print(json.dumps({"seconds": main(json.loads(Path(sys.argv[1]).read_text()))}))
