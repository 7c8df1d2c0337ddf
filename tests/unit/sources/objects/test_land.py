"""Landed objects: content in any layout and size, keys, repetition, and inputs rejected before anything lands."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moto import mock_aws

from deltaworks.errors import ConfigError, ContractError, DeltaworksError, TransientError
from deltaworks.events.formats.json import Malformed, read_events
from deltaworks.sources.objects.land import land, require_file_source
from deltaworks.sources.objects.landed_inputs import find_inputs
from deltaworks.sources.objects.landing_store import landing_store
from deltaworks.specs.storage import StorageSpec
from deltaworks.testing import local_storage, pipeline_spec, write_files
from tests.examples import examples
from tests.unit.sources.objects.landing_harness import MemoryStore, landed, source
from tests.unit.sources.objects.reference_reader import content, csv_events, field_lines, json_events, lines

LINES = b'{"a": 1}\n{"a": 2}\n{"a": 3}\n'
BUCKET = StorageSpec(root="s3://landing")


def refusal(folder: Path, data: bytes, **declared: Any) -> DeltaworksError:
    with pytest.raises(DeltaworksError) as caught:
        land(find_inputs([str(write_files(folder, {"events.bin": data}))]), source(**declared), MemoryStore())
    return caught.value


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="landing")
        yield client


def keys(client: Any) -> list[str]:
    return [item["Key"] for item in client.list_objects_v2(Bucket="landing").get("Contents", [])]


def test_a_folder_lands_below_the_pipelines_prefix_under_its_file_names(tmp_path: Path, s3: Any) -> None:
    folder = write_files(tmp_path, {"day 1/a.jsonl": LINES, "b.json.gz": gzip.compress(LINES), ".hidden/c": LINES})

    results = land(find_inputs([str(folder)]), source(), landing_store(BUCKET))

    first, second = keys(s3)
    assert first.startswith("shop/b-00001-")
    assert second.startswith("shop/day-1/a-00001-")
    assert first.endswith(".json.gz")
    assert gzip.decompress(s3.get_object(Bucket="landing", Key=second)["Body"].read()) == LINES
    assert [(result.objects, result.existing, result.events) for result in results] == [(1, 0, 3), (1, 0, 3)]


def test_landing_again_creates_only_missing_objects(tmp_path: Path, s3: Any) -> None:
    store = landing_store(BUCKET)
    files = [str(write_files(tmp_path, {"a.jsonl": LINES}))]
    land(find_inputs(files), source(), store)
    write_files(tmp_path, {"b.jsonl": LINES})

    first, second = land(find_inputs(files), source(), store)

    assert (first.objects, first.existing, first.events) == (0, 1, 3)
    assert (second.objects, second.existing) == (1, 0)
    assert len(keys(s3)) == 2


def test_forced_landing_creates_new_objects(tmp_path: Path, s3: Any) -> None:
    store = landing_store(BUCKET)
    files = [str(write_files(tmp_path, {"a.jsonl": LINES}))]
    land(find_inputs(files), source(), store)

    (result,) = land(find_inputs(files), source(), store, force=True)

    assert (result.objects, result.existing) == (1, 0)
    assert len(keys(s3)) == 2


def test_a_local_folder_stores_objects_like_a_bucket(tmp_path: Path) -> None:
    store = landing_store(local_storage(tmp_path / "landing"))
    files = [str(write_files(tmp_path / "in", {"a.jsonl": LINES}))]

    results = [land(find_inputs(files), source(), store)[0] for _ in range(2)]

    assert [(result.objects, result.existing) for result in results] == [(1, 0), (0, 1)]
    (path,) = (tmp_path / "landing").rglob("*.gz")
    assert gzip.decompress(path.read_bytes()) == LINES


def test_standard_input_lands_too() -> None:
    shelf = MemoryStore()

    (result,) = land(find_inputs(["-"], standard_input=io.BytesIO(LINES)), source(), shelf)

    assert next(iter(shelf)).startswith("shop/stdin-00001-")
    assert (result.file, result.events, result.read_bytes) == ("standard input", 3, len(LINES))


@pytest.mark.parametrize(
    ("declared", "beginning", "end"),
    [
        ({"compression": "none"}, b"{", ".json"),
        ({"compression": "bzip2"}, b"BZh", ".json.bz2"),
        ({"compression": "zstd"}, b"\x28\xb5\x2f\xfd", ".json.zst"),
        ({"compression": "gzip"}, b"\x1f\x8b", ".json.gz"),
    ],
)
def test_objects_are_compressed_as_the_source_declares(
    declared: dict[str, str], beginning: bytes, end: str, tmp_path: Path
) -> None:
    shelf = MemoryStore()

    land(find_inputs([str(write_files(tmp_path, {"a.jsonl": LINES}))]), source(**declared), shelf)

    ((key, stored),) = shelf.items()
    assert stored.startswith(beginning)
    assert key.endswith(end)


def test_parquet_and_avro_land_unchanged(tmp_path: Path) -> None:
    parquet, avro = io.BytesIO(), io.BytesIO()
    pq.write_table(pa.table({"a": list(range(1_000))}), parquet)
    schema = {"type": "record", "name": "event", "fields": [{"name": "a", "type": "long"}]}
    fastavro.writer(avro, schema, [{"a": number} for number in range(10)])

    for form, data, events in (("parquet", parquet.getvalue(), 1_000), ("avro", avro.getvalue(), 10)):
        shelf = MemoryStore()
        path = write_files(tmp_path / form, {f"a.{form}": data})
        (result,) = land(find_inputs([str(path)]), source(format=form), shelf, object_bytes=10)
        assert list(shelf.values()) == [data]
        assert result.events == events


@pytest.mark.parametrize(
    ("declared", "under", "key"),
    [
        ({"prefix": "", "glob": "eu/**/*.json"}, "", "eu/a-00001-"),
        ({"prefix": "eu/", "glob": "eu/*/x-*.json"}, "de", None),
        ({"prefix": "eu/", "partition_columns": ["day"]}, "day=2026-01-31", "eu/day=2026-01-31/a-00001-"),
        ({"prefix": "eu/", "partition_columns": ["day"]}, "", None),
        ({"prefix": ""}, "", "a-00001-"),
        ({"prefix": "eu"}, "", "eu/a-00001-"),
    ],
)
def test_keys_match_the_source(declared: dict[str, Any], under: str, key: str | None, tmp_path: Path) -> None:
    inputs, shelf = find_inputs([str(write_files(tmp_path, {"a.json": LINES}) / "a.json")]), MemoryStore()
    if key is None:
        with pytest.raises(ConfigError) as caught:
            land(inputs, source(**declared), shelf, subfolder=under)
        assert caught.value.condition == "LANDING_KEY_INVALID"
        assert shelf == {}
        return

    land(inputs, source(**declared), shelf, subfolder=under)

    assert next(iter(shelf)).startswith(key)


def test_partition_folders_are_preserved(tmp_path: Path) -> None:
    shelf = MemoryStore()
    folder = write_files(tmp_path, {"day=2026-01-31/a.json": LINES, "day=2026-02-01/a.json": LINES})

    land(find_inputs([str(folder)]), source(partition_columns=["day"]), shelf)

    assert [key.split("-00001")[0] for key in shelf] == ["shop/day=2026-01-31/a", "shop/day=2026-02-01/a"]


def test_an_unreadable_line_is_counted_and_lands(tmp_path: Path) -> None:
    (result,) = land(
        find_inputs([str(write_files(tmp_path, {"a": b'{"a": 1}\n{"a"\n{"a": 2}\n'}))]), source(), MemoryStore()
    )

    assert (result.events, result.unreadable) == (3, 1)


def test_missing_inputs_are_reported(tmp_path: Path) -> None:
    for names in ([str(tmp_path / "none")], [str(tmp_path)]):
        with pytest.raises(ConfigError) as caught:
            find_inputs(names)
        assert caught.value.condition == "INPUT_MISSING"
        assert names[0] in str(caught.value)


def test_a_file_of_another_format_is_rejected(tmp_path: Path) -> None:
    for data, declared in ((b"PAR1xxx", {}), (b"PK\x03\x04", {"format": "csv"}), (LINES, {"format": "parquet"})):
        error = refusal(tmp_path, data, **declared)
        assert isinstance(error, ContractError)
        assert error.condition == "INPUT_WRONG_FORMAT"


def test_a_truncated_file_is_reported(tmp_path: Path) -> None:
    error = refusal(tmp_path, gzip.compress(LINES * 1_000)[:-20])

    assert error.condition == "INPUT_DAMAGED"
    assert "events.bin" in error.message


def test_an_unsplittable_file_must_not_exceed_the_object_limit(tmp_path: Path) -> None:
    assert refusal(tmp_path, b"PAR1" * 100, format="parquet", max_object_bytes=100).condition == "INPUT_TOO_LARGE"


def test_a_missing_bucket_is_rejected(tmp_path: Path, s3: Any) -> None:
    inputs = find_inputs([str(write_files(tmp_path, {"a": LINES}))])

    with pytest.raises(ConfigError) as caught:
        land(inputs, source(), landing_store(StorageSpec(root="s3://nobody")))

    assert caught.value.condition == "LANDING_REFUSED"
    assert keys(s3) == []


def test_an_unreachable_store_fails_quickly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    inputs = find_inputs([str(write_files(tmp_path, {"a": LINES}))])

    with pytest.raises(TransientError) as caught:
        land(inputs, source(), landing_store(StorageSpec(root="s3://landing", endpoint="http://127.0.0.1:9")))

    assert caught.value.condition == "STORAGE_UNREACHABLE"
    assert "deltaworks up" in caught.value.hint


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({"kind": "kafka", "bootstrap_servers": "broker:9092", "topics": ["shop"]}, "kcat -P -b broker:9092 -t shop"),
        ({"kind": "kinesis", "stream": "shop"}, "deltaworks collect --stream shop"),
        ({"kind": "delta", "uri": "s3://lake/orders"}, "s3://lake/orders"),
    ],
)
def test_a_pipeline_without_objects_is_rejected_with_an_alternative(declared: dict[str, Any], told: str) -> None:
    spec = pipeline_spec(
        {"name": "events", "catch_all": True},
        source=declared,
        event={"name": {"constant": "x"}, "time": {"path": "at"}},
    )

    with pytest.raises(ConfigError) as caught:
        require_file_source(spec)

    assert caught.value.condition == "LANDING_WITHOUT_OBJECTS"
    assert told in caught.value.hint


#: Texts that look like structure where structure is looked for.
TRAPS = st.sampled_from(["}{", '"}{"', "},{", "\\", '\\"', "}\n{", "[", "]", "\n", "\r\n", "#Fields: a", "é", "𝄞"])
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8) | TRAPS
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(-1e300, 1e300) | TEXTS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=8
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=5)
ANY_SIZE = st.integers(1, 300)
SETTINGS = settings(max_examples=examples(30))


def on_lines(events: list[Any]) -> bytes:
    return b"".join(json.dumps(event, ensure_ascii=False).encode() + b"\n" for event in events)


def on_lines_of_windows(events: list[Any]) -> bytes:
    return b"\xef\xbb\xbf" + b"\r\n".join(json.dumps(event).encode() for event in events)


def one_behind_the_other(events: list[Any]) -> bytes:
    return b"".join(json.dumps(event).encode() for event in events)


def pretty(events: list[Any]) -> bytes:
    return b"\n".join(json.dumps(event, indent=2, ensure_ascii=False).encode() for event in events)


def one_array(events: list[Any]) -> bytes:
    return json.dumps(events, ensure_ascii=False).encode()


def pretty_array(events: list[Any]) -> bytes:
    return b"\n " + json.dumps(events, indent=1).encode() + b"\n"


def arrays_on_lines(events: list[Any]) -> bytes:
    return b"".join(json.dumps(events[start : start + 3]).encode() + b"\n" for start in range(0, len(events), 3))


def all_of_it(events: list[Any]) -> bytes:
    return one_array(events) + on_lines(events) + one_behind_the_other(events) + pretty_array(events)


WRITERS = [
    on_lines,
    on_lines_of_windows,
    one_behind_the_other,
    pretty,
    one_array,
    pretty_array,
    arrays_on_lines,
    all_of_it,
]


@pytest.mark.parametrize("write", WRITERS)
@SETTINGS
@given(events=st.lists(OBJECTS, max_size=12), size=ANY_SIZE)
def test_json_lands_as_the_same_events_in_their_order(
    write: Callable[[list[Any]], bytes], events: list[Any], size: int
) -> None:
    data = write(events)

    objects, result = landed(data, source(), object_bytes=size)

    assert [event for stored in objects for event in json_events(content(stored))] == json_events(data)
    assert (result.events, result.unreadable) == (len(json_events(data)), 0)


@SETTINGS
@given(rows=st.lists(st.lists(VALUES, max_size=3) | SCALARS, max_size=12), size=ANY_SIZE)
def test_values_on_lines_other_than_objects_are_not_split(rows: list[Any], size: int) -> None:
    data = on_lines(rows)

    objects, _ = landed(data, source(), object_bytes=size)

    assert [event for stored in objects for event in json_events(content(stored))] == json_events(data)


@SETTINGS
@given(events=st.lists(OBJECTS, max_size=8), size=ANY_SIZE)
def test_a_wrapper_of_many_events_is_not_split(events: list[Any], size: int) -> None:
    data = on_lines([{"records": events}, {"body": json.dumps(events)}])

    objects, result = landed(data, source(), object_bytes=size)

    assert [event for stored in objects for event in json_events(content(stored))] == json_events(data)
    assert result.events == 2


@SETTINGS
@given(pieces=st.lists(OBJECTS.map(json.dumps).map(str.encode) | st.binary(max_size=30), max_size=10), size=ANY_SIZE)
def test_malformed_lines_land_byte_for_byte(pieces: list[bytes], size: int) -> None:
    data = b"{}\n" + b"\n".join(pieces)  # an array that is broken may come as several

    objects, _ = landed(data, source(), object_bytes=size)

    together = b"".join(content(stored) for stored in objects)
    if b"[" not in data:
        assert together.strip() == data.strip()
    assert together.count(b"{") == data.count(b"{")


@SETTINGS
@given(events=st.lists(OBJECTS.filter(bool), min_size=2, max_size=12), at=st.integers(0, 11), size=ANY_SIZE)
def test_a_truncated_line_does_not_affect_other_events(events: list[Any], at: int, size: int) -> None:
    written = [json.dumps(event).encode() for event in events]
    written.insert(at % len(events), b'{"torn": "of')
    data = b"\n".join(written)

    objects, _ = landed(data, source(), object_bytes=size)

    def read(whole: bytes) -> list[Any]:
        return [value for value, _ in read_events(whole) if not isinstance(value, Malformed)]

    assert [event for stored in objects for event in read(content(stored))] == read(data)


FIELDS = st.lists(st.text("ab,;\"'\n\r é", max_size=6), min_size=2, max_size=2)


@SETTINGS
@given(rows=st.lists(FIELDS, max_size=15), size=ANY_SIZE, end=st.sampled_from(["\n", "\r\n"]))
def test_csv_lands_with_its_header_in_every_object(rows: list[list[str]], size: int, end: str) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator=end).writerows([["first", "second"], *rows])
    data = text.getvalue().encode()

    objects, result = landed(data, source(format="csv"), object_bytes=size)

    assert [event for stored in objects for event in csv_events(content(stored))] == csv_events(data)
    assert all(content(stored).startswith(b"first,second\n") for stored in objects)
    assert result.events == len(csv_events(data))


@SETTINGS
@given(rows=st.lists(st.sampled_from(["a\tb", "c\td", "#Fields: x y", "#Version: 1", ""]), max_size=20), size=ANY_SIZE)
def test_tsv_lines_land_with_their_field_names(rows: list[str], size: int) -> None:
    data = "\n".join(["#Fields: p q", *rows]).encode()

    objects, result = landed(data, source(format="tsv"), object_bytes=size)

    assert [event for stored in objects for event in field_lines(content(stored))] == field_lines(data)
    assert result.events == len(field_lines(data))


@SETTINGS
@given(
    rows=st.lists(st.text("ab {}\t#é", max_size=10), max_size=20), size=ANY_SIZE, end=st.sampled_from(["\n", "\r\n"])
)
def test_text_lines_are_not_split(rows: list[str], size: int, end: str) -> None:
    data = end.join(rows).encode()

    objects, result = landed(data, source(format="text", pattern="(?P<all>.*)"), object_bytes=size)

    assert [line for stored in objects for line in lines(content(stored))] == lines(data)
    assert result.events == len(lines(data))


@pytest.mark.parametrize(
    "compress", [gzip.compress, bz2.compress, lambda data: pa.compress(data, "zstd", asbytes=True)]
)
def test_compressed_input_is_split_too(compress: Callable[[bytes], bytes]) -> None:
    data = on_lines([{"number": number, "text": "x" * 50} for number in range(2_000)])

    objects, result = landed(compress(data), source(), object_bytes=20_000)

    assert len(objects) == 8
    assert b"".join(content(stored) for stored in objects).replace(b"\n", b"") == data.replace(b"\n", b"")
    assert (result.events, result.read_bytes) == (2_000, len(compress(data)))


def test_several_members_of_gzip_are_one_file() -> None:
    data = gzip.compress(b'{"a": 1}') + gzip.compress(b'{"a": 2}')

    objects, result = landed(data, source(), object_bytes=1_000)

    assert [content(stored) for stored in objects] == [b'{"a": 1}{"a": 2}']
    assert result.events == 2


def test_objects_have_about_the_requested_size() -> None:
    data = one_array([{"number": number, "inside": [{"x": 1}, {"y": 2}]} for number in range(5_000)])

    objects, _ = landed(data, source(), object_bytes=10_000)

    sizes = [len(content(stored)) for stored in objects]
    assert all(9_800 <= size <= 10_002 for size in sizes[:-1])


def test_an_empty_file_lands_no_object() -> None:
    for spec in (source(), source(format="csv"), source(format="tsv")):
        objects, result = landed(b"\n \n", spec, object_bytes=100)

        assert objects == []
        assert (result.objects, result.events) == (0, 0)
