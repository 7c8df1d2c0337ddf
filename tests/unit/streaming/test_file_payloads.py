"""File events as references, and references as payloads."""

from __future__ import annotations

import datetime as dt
import gzip
import hashlib
import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from deltaworks.specs.storage import StorageSpec
from deltaworks.streaming.file_payloads import FileOpener, FileReference, resolved_variables, source_slice
from deltaworks.streaming.parsing.reasons import ReasonCode

AT = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def events(*rows: tuple[int, str, int | None]) -> pa.Table:
    return pa.table(
        {
            "seq": pa.array([seq for seq, _, _ in rows], pa.int64()),
            "key": [key for _, key, _ in rows],
            "size": pa.array([size for _, _, size in rows], pa.int64()),
            "etag": ["e"] * len(rows),
            "event_time": pa.array([AT + dt.timedelta(seconds=seq) for seq, _, _ in rows], pa.timestamp("us", "UTC")),
        }
    )


def test_a_batch_is_its_files_in_the_order_of_the_log() -> None:
    source = source_slice(events((3, "c", 30), (1, "a", 10), (2, "b", None)))

    assert source.references == [FileReference(1, "a", "e"), FileReference(2, "b", "e"), FileReference(3, "c", "e")]
    assert source.sizes == [10, 1, 30]
    assert source.metadata == {
        "files": 3,
        "bytes": 41,
        "first_seq": 1,
        "last_seq": 3,
        "oldest_event_time": "2024-01-01T00:00:01+00:00",
        "newest_event_time": "2024-01-01T00:00:03+00:00",
    }


def test_a_batch_without_files_is_empty() -> None:
    source = source_slice(events())

    assert (list(source.references), source.metadata) == ([], {"files": 0, "bytes": 0})


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_a_reference_is_opened_inside_a_task(tmp_path: Path, compress: type[bytes]) -> None:
    (tmp_path / "a.json").write_bytes(compress(b'{"a": 1}'))
    opener = pickle.loads(pickle.dumps(FileOpener(StorageSpec(root=f"file://{tmp_path}"), compression="auto")))

    payload = opener(FileReference(5, "a.json", ""))

    assert (payload.seq, payload.key, payload.data, payload.problem) == (5, "a.json", b'{"a": 1}', None)


def test_what_is_wrong_with_an_object_is_a_reason_and_no_failure(tmp_path: Path) -> None:
    whole = gzip.compress(b"x" * 1000)
    (tmp_path / "changed").write_bytes(b"new")
    (tmp_path / "cut").write_bytes(whole[:20])
    opener = FileOpener(StorageSpec(root=f"file://{tmp_path}"), compression="auto")
    other = hashlib.md5(b"old").hexdigest()

    problems = [opener(FileReference(1, key, etag)) for key, etag in (("gone", ""), ("changed", other), ("cut", ""))]

    assert [payload.data for payload in problems] == [None] * 3
    assert [payload.problem and payload.problem.code for payload in problems] == [
        ReasonCode.OBJECT_MISSING,
        ReasonCode.OBJECT_CHANGED,
        ReasonCode.OBJECT_UNREADABLE,
    ]


def test_the_values_of_references_travel_with_the_opener(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_ENDPOINT", "http://localhost:1")
    monkeypatch.setenv("TEST_ACCESS_KEY", "a")
    monkeypatch.setenv("TEST_SECRET_KEY", "s")
    storage = StorageSpec(
        root="s3://b", endpoint="env:TEST_ENDPOINT", access_key="env:TEST_ACCESS_KEY", secret_key="env:TEST_SECRET_KEY"
    )

    assert resolved_variables(storage) == {
        "TEST_ENDPOINT": "http://localhost:1",
        "TEST_ACCESS_KEY": "a",
        "TEST_SECRET_KEY": "s",
    }
    assert resolved_variables(StorageSpec(root="file:///x")) == {}
