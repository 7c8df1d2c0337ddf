"""Landed objects: content, keys, repetition, and inputs rejected before anything lands."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import boto3
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from moto import mock_aws

from deltaworks.errors import ConfigError, ContractError, DeltaworksError, TransientError
from deltaworks.sources.objects.landing.inputs import find_inputs
from deltaworks.sources.objects.landing.land import land, require_file_source
from deltaworks.sources.objects.landing.landing_store import landing_store
from deltaworks.specs.storage import StorageSpec
from deltaworks.testing import local_storage, pipeline_spec, write_files
from tests.unit.sources.objects.landing.landing_harness import MemoryStore, source

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
