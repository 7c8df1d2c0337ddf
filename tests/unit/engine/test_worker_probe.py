"""The probe is one event in any declarable format, which a healthy worker can read."""

from __future__ import annotations

from typing import Any

import pytest

from deltaworks.engine.fan_out import probe_payload
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.parse import Parser
from deltaworks.testing import pipeline_spec

_OBJECTS = {"kind": "s3_sqs", "relay": "landing", "bucket": "b"}
_KAFKA = {"kind": "kafka", "bootstrap_servers": "b:9092", "topics": ["t"]}
_DELTA = {"kind": "delta", "uri": "s3://b/t"}
_NAMED = {"header": False, "columns": ["name", "time"], "delimiter": ";"}
SOURCES: dict[str, dict[str, Any]] = {
    "json": _OBJECTS,
    "csv": _OBJECTS | {"format": "csv"},
    "csv without a header": _OBJECTS | {"format": "csv", "csv": _NAMED},
    "tsv": _OBJECTS | {"format": "tsv"},
    "tsv with declared columns": _KAFKA | {"format": "tsv", "tsv": {"columns": ["name", "time"]}},
    "text": _OBJECTS | {"format": "text", "pattern": "(?P<name>.+)(?P<time>)"},
    "parquet": _OBJECTS | {"format": "parquet"},
    "avro": _OBJECTS | {"format": "avro"},
    "records": _KAFKA,
    "rows of a table": _DELTA,
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_probe_contains_one_event_in_the_sources_format(source: dict[str, Any]) -> None:
    spec = pipeline_spec(
        {"name": "events", "catch_all": True}, source=source, event={"name": {"path": "name"}, "time": {"path": "time"}}
    )
    payload = Payload(0, "canary", probe_payload(spec.source))

    parts = list(Parser(spec).parse([payload], BatchMetadata(0, 0, "")))

    rows = [(row["_position"], row["reasons"][0]["code"]) for _, part in parts for row in part.to_pylist()]
    # The fields of some formats are declared, and an event has only those.
    assert rows in ([(0, "unknown_event")], [(0, "type_mismatch")], [(0, "missing_required")])
