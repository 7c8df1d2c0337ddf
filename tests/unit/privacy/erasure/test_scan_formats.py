"""The scan finds tokens in pages, dictionaries, footers and compressed text."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltaworks.privacy.erasure import scan
from deltaworks.privacy.erasure.scan import scan_object
from deltaworks.privacy.erasure.token_search import TokenSearch
from deltaworks.testing import local_lake
from tests.unit.privacy.erasure.test_purge_table import token

ANN, BOB = token("ann"), token("bob")


def found(folder: Path, data: bytes, name: str = "object") -> frozenset[str]:
    (folder / name).write_bytes(data)
    return scan_object(local_lake(folder), name, TokenSearch([ANN])).tokens


def parquet(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def test_compressed_pages_are_scanned(tmp_path: Path) -> None:
    rows = pa.table({"player": [BOB, ANN] * 500, "raw": [f'{{"n": {n}}}' for n in range(1000)]})
    data = parquet(rows, compression="zstd", write_statistics=False, use_dictionary=False)
    assert ANN.encode() not in data, "or this would show nothing"
    assert found(tmp_path, data) == {ANN}


@pytest.mark.parametrize("column", ["list", "struct", "map"])
def test_nested_columns_are_scanned(tmp_path: Path, column: str) -> None:
    values = {
        "list": pa.array([[BOB], [BOB, f"about {ANN}."]]),
        "struct": pa.array([{"who": None}, {"who": ANN}]),
        "map": pa.array([[("a", "b")], [(ANN, "b")]], pa.map_(pa.string(), pa.string())),
    }
    data = parquet(pa.table({"c": values[column]}), compression="zstd", write_statistics=False)
    assert found(tmp_path, data) == {ANN}


def test_unused_dictionary_entries_are_scanned(tmp_path: Path) -> None:
    codes = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int32()), pa.array([BOB, ANN]))
    data = parquet(pa.table({"c": codes}), compression="zstd", write_statistics=False, store_schema=False)
    assert pq.read_table(io.BytesIO(data)).column("c").to_pylist() == [BOB, BOB]
    assert found(tmp_path, data) == {ANN}


def test_footer_statistics_and_metadata_are_scanned(tmp_path: Path) -> None:
    noted = pa.table({"n": [1]}).replace_schema_metadata({"note": f"written for {ANN}"})
    assert found(tmp_path, parquet(noted, compression="zstd")) == {ANN}


def test_gzip_members_and_truncated_gzip_are_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_CHUNK_BYTES", 64)
    lines = gzip.compress(b"x" * 50) + gzip.compress(f'y{{"player": "{ANN}"}}'.encode() * 3)
    assert found(tmp_path, lines) == {ANN}
    for shift in range(64):
        assert found(tmp_path, b"-" * shift + ANN.encode() + b"-" * 40) == {ANN}


@pytest.mark.parametrize("half", ["p1_", ANN[:20], BOB[:-1], f"{BOB[:-1]} p1_{'a' * 25}"])
def test_a_token_directly_after_a_partial_one_is_found(tmp_path: Path, half: str) -> None:
    assert found(tmp_path, f"{half}{ANN}".encode()) == {ANN}
    search = TokenSearch([ANN])
    texts = pa.record_batch({"raw": [BOB[:14], f"{'a' * 14}{ANN}", f"{half}{ANN}", BOB]})
    assert search.matching_rows(texts).tolist() == [False, True, True, False]


def test_zstd_after_a_frame_that_it_ignores_is_scanned(tmp_path: Path) -> None:
    skippable = b"\x50\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"any"
    assert found(tmp_path, skippable + pa.compress(ANN.encode(), "zstd", asbytes=True)) == {ANN}


def test_zstd_and_corrupt_zstd_are_scanned(tmp_path: Path) -> None:
    assert found(tmp_path, pa.compress(ANN.encode(), "zstd", asbytes=True)) == {ANN}
    torn = gzip.compress(b"z" * 100_000)[:-20] + ANN.encode()
    with pytest.raises((zlib.error, EOFError, OSError)):
        gzip.decompress(torn)
    assert found(tmp_path, torn) == {ANN}


def test_other_tokens_are_not_found(tmp_path: Path) -> None:
    assert found(tmp_path, BOB.encode() + ANN.encode()[:-1]) == frozenset()
