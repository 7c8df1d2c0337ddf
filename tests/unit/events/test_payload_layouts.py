"""Payloads: the same events as lines, in arrays, wrapped (`unwrap.keep`) or compressed, and limits of decompression."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import itertools
import json
import random
import tempfile
import tracemalloc
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isal import isal_zlib

from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.decompression import ContentTooLarge, DamagedContent, decompress
from deltaworks.events.events import EventReader
from deltaworks.events.formats.json import read_events
from deltaworks.events.parse import Parser
from deltaworks.events.reasons import ConversionError, ReasonCode
from deltaworks.sources.objects.payloads import FileOpener, FileReference
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.record_sources import Compression
from deltaworks.testing import declare_pipeline, declare_table, local_storage, parse_events
from tests.examples import examples
from tests.fed_bytes import FedBytes
from tests.shared_data import SHARED_DATA

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


def keeping(make_spec: MakeSpec, *keep: str, path: str = "body", **more: Any) -> PipelineSpec:
    return make_spec(unwrap={"path": path, "keep": keep}, **more)


def rows_of(spec: PipelineSpec, payload: bytes) -> dict[str, list[dict[str, Any]]]:
    return parse_events(spec, payload, stamp=STAMP)


@pytest.mark.parametrize("body", [{"name": "x"}, '{"name": "x"}'])
def test_an_event_has_the_fields_of_its_wrapper(make_spec: MakeSpec, body: Any) -> None:
    reader = EventReader(keeping(make_spec, "stage", "request.region"))
    wrapper = {"stage": "prod", "request": {"region": "eu", "agent": "x"}, "body": body, "path": "/"}

    assert reader.read_event(wrapper) == {"stage": "prod", "request": {"region": "eu"}, "name": "x"}
    assert reader.lossless_event(json.dumps(wrapper).encode()) == reader.read_event(wrapper)


def test_each_array_element_and_its_bytes_have_the_wrapper_fields(make_spec: MakeSpec) -> None:
    reader = EventReader(keeping(make_spec, "facts.label", "cik", path="facts.units.usd"))
    wrapper = {"cik": 7, "facts": {"label": "EPS", "more": 1, "units": {"usd": [{"v": 1}, {"v": 2}], "eur": []}}}

    spread = list(reader.unwrap_arrays([(wrapper, json.dumps(wrapper).encode())]))

    assert [reader.read_event(value) for value, _ in spread] == [
        {"cik": 7, "facts": {"label": "EPS"}, "v": v} for v in (1, 2)
    ]
    assert [json.loads(raw) for _, raw in spread] == [value for value, _ in spread]
    assert [value for value, _ in reader.unwrap_arrays(spread)] == [value for value, _ in spread]


def test_fields_missing_in_the_wrapper_are_absent(make_spec: MakeSpec) -> None:
    reader = EventReader(keeping(make_spec, "stage", "meta.region"))

    assert reader.read_event({"body": {"a": 1}, "meta": "text"}) == {"a": 1}
    assert reader.read_event({"body": {"a": 1}, "stage": None}) == {"a": 1, "stage": None}


def test_a_field_in_both_event_and_wrapper_is_a_conversion_error(make_spec: MakeSpec) -> None:
    reader = EventReader(keeping(make_spec, "stage"))

    with pytest.raises(ConversionError) as caught:
        reader.read_event({"stage": "prod", "body": {"stage": "prod"}})

    assert (caught.value.code, caught.value.path) == (ReasonCode.NAME_TAKEN, "stage")
    assert reader.read_event({"body": {"stage": "own"}}) == {"stage": "own"}


def test_numbers_of_wrapper_fields_are_exact(make_spec: MakeSpec) -> None:
    event = {"name": {"path": "name"}, "time": {"path": "time", "unit": "epoch_seconds"}, "id": ["account", "n"]}
    events = {"name": "events", "catch_all": True}
    bodies = '[{"name": "x", "time": 1700000000, "n": 1}]'

    def id_of(account: str, body: str) -> str:
        wrapper = f'{{"account": {account}, "body": {body}}}'
        (row,) = rows_of(keeping(make_spec, "account", event=event, tables=[events]), wrapper.encode())["events"]
        return str(row["event_id"])

    for body in (bodies, json.dumps(bodies), bodies[1:-1]):
        assert id_of("100000000000000000001", body) != id_of("100000000000000000002", body)


def test_a_wrapper_repeated_too_often_is_one_row(make_spec: MakeSpec) -> None:
    source = {"kind": "s3_sqs", "relay": "landing", "bucket": "b", "budget": {"max_decoded_bytes": "8MiB"}}
    wrapper = json.dumps({"stage": "x" * 10_000, "body": [{}] * 1_000}).encode()

    rows = rows_of(keeping(make_spec, "stage", source=source), wrapper)

    assert [[reason["code"] for reason in row["reasons"]] for row in rows["quarantine"]] == [["over_budget"]]
    assert len(rows_of(make_spec(unwrap={"path": "body"}, source=source), wrapper)["quarantine"]) == 1_000


def test_company_facts_have_the_company_of_their_wrapper(make_spec: MakeSpec) -> None:
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no real data at {SHARED_DATA}; name its folder in DELTAWORKS_SHARED_DATA")
    columns = {"cik": "long", "entityName": "string", "end": "date", "val": "decimal(12,2)", "filed": "date"}
    facts = declare_table("facts", *(f"{name.lower()} {kind} from {name}" for name, kind in columns.items()))
    spec = keeping(
        make_spec,
        "cik",
        "entityName",
        path="facts.us-gaap.EarningsPerShareBasic.units.USD/shares",
        event={"name": {"constant": "fact"}, "time": {"path": "filed"}, "id": ["accn", "start", "end"]},
        tables=[facts],
    )

    rows = rows_of(spec, (SHARED_DATA / "fundamentals" / "snow_facts.json").read_bytes())

    assert {*rows} == {"facts"}
    assert len(rows["facts"]) == 52
    assert {(row["cik"], row["entityname"]) for row in rows["facts"]} == {(1640147, "SNOWFLAKE INC.")}
    assert max(row["val"] for row in rows["facts"]) < Decimal(0)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (["body"], "body overlaps with body"),
        (["body.x"], "body.x overlaps with body"),
        (["stage", "stage.x"], "stage.x and stage overlap"),
        (["_record"], "_record is added to events by the engine"),
        (["params.x"], "params.amount is read from events, which therefore have their own 'params'"),
    ],
)
def test_invalid_wrapper_fields_are_refused(make_spec: MakeSpec, keep: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        keeping(make_spec, *keep)


def test_a_name_of_the_event_may_be_copied_from_another_path_of_the_wrapper(make_spec: MakeSpec) -> None:
    unwrap = keeping(make_spec, "name.first").unwrap

    assert unwrap is not None
    assert list(unwrap.keep) == ["name.first"]


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, "zstd", asbytes=True))


KINDS: dict[Compression, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "bzip2": bz2.compress, "zstd": zstd}
EACH = pytest.mark.parametrize("kind", KINDS)


@EACH
@given(members=st.lists(st.binary(max_size=3_000), min_size=1, max_size=4))
def test_every_member_is_read_whether_it_is_detected_or_declared(kind: Compression, members: list[bytes]) -> None:
    data = b"".join(map(KINDS[kind], members))

    assert decompress(data, "auto", max_bytes=None) == b"".join(members)
    assert decompress(data, kind, max_bytes=None) == b"".join(members)
    assert decompress(data, "none", max_bytes=None) == data


@EACH
@given(content=st.binary(max_size=3_000), share=st.floats(0, 0.999))
def test_truncated_content_raises_and_is_never_half_read(kind: Compression, content: bytes, share: float) -> None:
    data = KINDS[kind](content)
    with pytest.raises(DamagedContent, match=f"its {kind} content is corrupt"):
        decompress(data[: int(len(data) * share)], kind, max_bytes=None)


@EACH
@pytest.mark.parametrize("damage", ["plain text", "garbage behind", "bytes changed"])
def test_corrupt_or_wrongly_declared_content_raises(kind: Compression, damage: str) -> None:
    content = b'{"level": 7}' * 500
    data = KINDS[kind](content)
    changed = data[: len(data) // 2] + bytes(byte ^ 0xFF for byte in data[len(data) // 2 :][:8]) + data[-4:]
    damaged = {"plain text": content, "garbage behind": data + b"garbage", "bytes changed": changed}[damage]
    with pytest.raises(DamagedContent, match=f"its {kind} content is corrupt"):
        decompress(damaged, kind, max_bytes=None)


@EACH
def test_memory_never_exceeds_the_limit(kind: Compression) -> None:
    bomb = KINDS[kind](bytes(200 << 20))
    assert len(bomb) < 1 << 20
    allocated = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        with pytest.raises(ContentTooLarge, match="at most 1000000 are allowed"):
            decompress(bomb, "auto", max_bytes=1_000_000)
        held = tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes() - allocated
    finally:
        tracemalloc.stop()

    assert held < 40 << 20


@pytest.mark.parametrize("plain", [b"", b'{"a": 1}', b"B", b"BZh9 a word", b"\x28\xb5"])
def test_uncompressed_content_is_unchanged(plain: bytes) -> None:
    assert decompress(plain, "auto", max_bytes=1) == plain


@given(
    frames=st.lists(st.tuples(st.integers(0, 15), st.binary(max_size=300)), min_size=1, max_size=3), content=st.binary()
)
def test_frames_that_zstd_ignores_may_be_first(frames: list[tuple[int, bytes]], content: bytes) -> None:
    skippable = b"".join(
        bytes([0x50 + kind]) + b"\x2a\x4d\x18" + len(body).to_bytes(4, "little") + body for kind, body in frames
    )

    assert decompress(skippable + zstd(content), "auto", max_bytes=None) == content
    assert decompress(skippable + zstd(content) + skippable, "zstd", max_bytes=None) == content
    assert decompress(skippable, "auto", max_bytes=None) == skippable


@pytest.mark.parametrize(
    ("kind", "module", "name"), [("gzip", isal_zlib, "decompressobj"), ("bzip2", bz2, "BZ2Decompressor")]
)
def test_many_small_members_take_work_linear_in_their_size(
    kind: Compression, module: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for content in (b"", b"{}\n"):
        data = KINDS[kind](content) * 10_000
        fed = FedBytes(getattr(module, name))
        with monkeypatch.context() as patched:
            patched.setattr(module, name, fed)
            assert decompress(data, "auto", max_bytes=None) == content * 10_000
        assert len(data) <= fed.total < 200 * len(data), "the rest of the data must not be read again for each member"


@pytest.mark.parametrize("kind", ["gzip", "bzip2"])
def test_members_are_bounded(kind: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    members = KINDS[kind](b"") * 101
    monkeypatch.setattr("deltaworks.events.decompression.MAX_MEMBERS", 100)
    with pytest.raises(ContentTooLarge, match=f"more than 100 {kind} members"):
        decompress(members, "auto", max_bytes=None)
    monkeypatch.setattr("deltaworks.events.decompression.MAX_MEMBERS", 101)
    assert decompress(members, "auto", max_bytes=None) == b""


@pytest.mark.parametrize("kind", ["gzip", "bzip2"])
@settings(max_examples=20)
@given(
    members=st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 4_000)), min_size=1, max_size=5),
    padding=st.integers(0, 3),
)
def test_members_across_any_windows_are_read_completely(
    kind: Compression, members: list[tuple[bytes, int]], padding: int
) -> None:
    contents = [random.Random(size).randbytes(size * 20) + text for text, size in members]
    data = b"".join(map(KINDS[kind], contents)) + bytes(padding if kind == "gzip" else 0)
    assert decompress(data, "auto", max_bytes=None) == b"".join(contents)
