"""Events as lines, in arrays, wrapped or compressed are parsed to the same events."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.events import EventReader
from deltaworks.events.formats.json import read_events
from deltaworks.events.parse import Parser
from deltaworks.sources.objects.payloads import FileOpener, FileReference
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import declare_pipeline, local_storage
from tests.examples import examples

MakeSpec = Callable[..., PipelineSpec]
SPEC: dict[str, Any] = declare_pipeline(
    {"name": "events", "catch_all": True, "columns": [{"name": "n", "path": "n", "type": "int"}]},
    event={"name": {"constant": "e"}, "time": {"path": "t", "unit": "epoch_seconds"}},
)
STAMP = BatchMetadata(batch_id=0, ingested_at_us=1_700_000_000_000_000, fingerprint="fp")
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
EVENTS = st.lists(st.dictionaries(st.text(max_size=6), JSON_VALUES, max_size=4), max_size=12)


def groups(events: list[Any], cuts: list[int]) -> list[list[Any]]:
    """The events in runs, cut at some of their places."""
    places = sorted({cut % (len(events) + 1) for cut in cuts} | {0, len(events)})
    return [events[start:end] for start, end in itertools.pairwise(places)]


def text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@settings(deadline=None)
@given(EVENTS, st.sampled_from(["", "\n", " \r\n", "\n\n"]), st.lists(st.integers(0, 12), max_size=4), st.booleans())
def test_lines_concatenated_objects_and_arrays_give_the_same_events(
    events: list[Any], between: str, cuts: list[int], in_arrays: bool
) -> None:
    if in_arrays:
        payload = between.join(text(group) for group in groups(events, cuts))
    else:
        payload = between.join(map(text, events))

    assert [value for value, _ in read_events(payload.encode())] == events


@settings(deadline=None)
@given(EVENTS, st.lists(st.integers(0, 12), max_size=4), st.sampled_from(["list", "text"]), st.booleans())
def test_arrays_inside_the_wrapper_are_read_event_by_event(
    events: list[Any], cuts: list[int], inside: str, outer_array: bool
) -> None:
    reader = EventReader(PipelineSpec.model_validate(SPEC | {"unwrap": {"path": "request.body"}}))
    bodies: list[Any] = groups(events, cuts)
    wrappers = [{"path": "/", "request": {"body": b if inside == "list" else text(b)}} for b in bodies]
    payload = text(wrappers) if outer_array else "".join(map(text, wrappers))

    found = list(reader.unwrap_arrays(read_events(payload.encode())))

    assert [reader.read_event(value) for value, _ in found] == events
    # What quarantine keeps of an event is that event alone, and reads as it again.
    again = [list(reader.unwrap_arrays(read_events(raw))) for _, raw in found]
    assert [[reader.read_event(value) for value, _ in each] for each in again] == [[event] for event in events]


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20), st.booleans(), st.integers(1, 3))
def test_compressed_in_one_or_several_members_it_is_the_same(
    numbers: list[int], compressed: bool, members: int
) -> None:
    lines = [text({"t": 0, "n": number}) + "\n" for number in numbers]
    parts = ["".join(lines[at::members]).encode() for at in range(members)]
    wanted = [number for at in range(members) for number in numbers[at::members]]
    body = b"".join(map(gzip.compress, parts)) if compressed else b"".join(parts)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "k").write_bytes(body)
        opener = FileOpener(local_storage(folder), compression="auto", max_object_bytes=1 << 20)

        payload = opener(FileReference(1, "k", hashlib.md5(body).hexdigest()))

    spec = PipelineSpec.model_validate(SPEC)
    rows = [row for _, table in Parser(spec).parse([payload], STAMP) for row in table.to_pylist()]
    assert [row["n"] for row in rows] == wanted
    assert [row["_position"] for row in rows] == list(range(len(wanted)))


def parsed(spec: PipelineSpec, data: bytes, stamp: BatchMetadata = STAMP) -> list[tuple[str, Any]]:
    """`(table, codes or n)` of every row."""
    found: list[tuple[str, Any]] = []
    for name, table in Parser(spec).parse([Payload(1, "k", data)], stamp):
        for row in table.to_pylist():
            found.append((name, [r["code"] for r in row["reasons"]] if name == "quarantine" else row["_position"]))
    return found


def test_an_oversized_event_is_quarantined_truncated_and_others_are_kept() -> None:
    source = SPEC["source"] | {"max_event_bytes": 100}
    spec = PipelineSpec.model_validate(SPEC | {"source": source, "quarantine": {"retain_raw_bytes": 50}})
    large = {"t": 1, "pad": "x" * 100}

    rows = dict(Parser(spec).parse([Payload(1, "k", (text({"t": 1}) + text(large) + text({"t": 2})).encode())], STAMP))

    (bad,) = rows["quarantine"].to_pylist()
    assert (bad["reasons"][0]["code"], bad["_position"], bad["raw_complete"]) == ("too_large", 1, False)
    assert len(bad["raw"]) == 50
    assert rows["events"].column("_position").to_pylist() == [0, 2]


@pytest.mark.parametrize(
    ("seconds", "code"), [(-8 * 86_400, "too_old"), (-6 * 86_400, None), (599, None), (601, "too_far_in_future")]
)
def test_age_is_measured_at_the_arrival_of_the_event(seconds: int, code: str | None) -> None:
    time = {"path": "t", "unit": "epoch_seconds", "max_age_days": 7, "max_future_minutes": 10}
    spec = PipelineSpec.model_validate(SPEC | {"event": SPEC["event"] | {"time": time}})
    line = text({"t": 1_700_000_000 + seconds}).encode()
    wanted = [("events", 0)] if code is None else [("quarantine", [code])]

    assert parsed(spec, line) == wanted
    much_later = BatchMetadata(0, STAMP.ingested_at_us * 2, "fp", arrived_at_us=STAMP.ingested_at_us)
    assert parsed(spec, line, much_later) == wanted


def test_without_limits_any_time_is_accepted() -> None:
    assert parsed(PipelineSpec.model_validate(SPEC), b'{"t": -1}{"t": 9999999999}') == [("events", 0), ("events", 1)]


def test_an_object_that_decompresses_too_large_is_one_quarantine_row(tmp_path: Path) -> None:
    bomb = gzip.compress(b"{}" * (64 << 20))
    for name, body in {"bomb": bomb, "plain": b"{}" * 600_000, "good": b'{"t": 1}'}.items():
        (tmp_path / name).write_bytes(body)
    opener = FileOpener(local_storage(tmp_path), compression="auto", max_object_bytes=1 << 20)

    payloads = [opener(FileReference(seq, name, "")) for seq, name in enumerate(["bomb", "plain", "good"])]

    rows = dict(Parser(PipelineSpec.model_validate(SPEC)).parse(payloads, STAMP))
    found = rows["quarantine"].to_pylist()
    assert [(row["object_key"], row["_position"], row["reasons"][0]["code"]) for row in found] == [
        ("bomb", -1, "too_large"),
        ("plain", -1, "too_large"),
    ]
    assert rows["events"].column("_seq").to_pylist() == [2]
