"""Tombstones of erased events are skipped by all readers, and other events keep their positions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.erasure_tombstones import tombstone, tombstone_line
from deltaworks.events.parse import Parser
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import pipeline_spec

REQUEST = "e20260301-0123456789"
MARK = json.dumps(tombstone(REQUEST)).encode()


def pipeline(**more: Any) -> PipelineSpec:
    source = {"kind": "s3_sqs", "relay": "landing", "bucket": "landing", **more.pop("source", {})}
    columns = [{"name": "amount", "path": "amount", "type": "long", "required": True}]
    return pipeline_spec(
        {"name": "orders", "catch_all": True, "columns": columns},
        source=source,
        **{"event": {"name": {"constant": "order"}, "time": {"path": "at", "unit": "iso8601"}}} | more,
    )


def read(spec: PipelineSpec, data: bytes, *, by_columns: bool = False) -> tuple[list[tuple[str, int]], int]:
    """The table and the position of each row, and how many marks there were."""
    parser = Parser(spec, columnar_from_bytes=0 if by_columns else None)
    rows = [
        (table, row["_position"])
        for table, part in parser.parse([Payload(1, "k", data)], BatchMetadata(1, 0, "f"))
        for row in part.to_pylist()
    ]
    assert bool(parser.columnar_count) == by_columns
    return sorted(rows), parser.findings.privacy["erased"]


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("named", ["constant", "path"])
def test_a_tombstone_is_skipped_and_counted_by_both_parsers(by_columns: bool, named: str) -> None:
    event = {"name": {"constant": "order"} if named == "constant" else {"path": "name"}}
    spec = pipeline(event={**event, "time": {"path": "at", "unit": "iso8601"}})
    order = b'{"name": "order", "at": "2026-03-01T10:00:00Z", "amount": 1}'
    data = order + MARK + b"\n" + order + MARK
    assert read(spec, data, by_columns=by_columns) == ([("orders", 0), ("orders", 2)], 2)


def test_an_event_that_resembles_a_tombstone_is_an_event() -> None:
    order = {"at": "2026-03-01T10:00:00Z", "amount": 1, "_erased": REQUEST}
    data = json.dumps(order).encode() + b'{"_erased": "me"}'
    assert read(pipeline(), data) == ([("orders", 0), ("quarantine", 1)], 0)


def test_tombstones_in_wrappers_and_lines_are_skipped() -> None:
    wrapped = pipeline(unwrap={"path": "in"})
    order = {"at": "2026-03-01T10:00:00Z", "amount": 1}
    data = (
        json.dumps({"in": [tombstone(REQUEST), order]}).encode()
        + json.dumps({"in": json.dumps(tombstone(REQUEST))}).encode()
    )
    assert read(wrapped, data + MARK) == ([("orders", 1)], 3)
    csv = pipeline(source={"format": "csv"})
    lines = f"at,amount\n{tombstone_line(REQUEST)}\n2026-03-01T10:00:00Z,1\n_erased=me\n".encode()
    assert read(csv, lines) == ([("orders", 1), ("quarantine", 2)], 1)
