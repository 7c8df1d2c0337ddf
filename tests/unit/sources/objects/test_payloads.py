"""File events as references, and references as payloads."""

from __future__ import annotations

import datetime as dt
import gzip
import hashlib
import pickle
from pathlib import Path

import pytest

from deltaworks.events.reasons import ReasonCode
from deltaworks.sources.objects.payloads import FileOpener, FileReference, resolved_variables
from deltaworks.specs.storage import StorageSpec

AT = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


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
