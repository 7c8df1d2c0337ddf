"""File events as references and as payloads: any valid name, and lost objects apart from storage failures."""

from __future__ import annotations

import datetime as dt
import gzip
import hashlib
import pickle
import posixpath
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deltaworks.errors import ConfigError, TransientError
from deltaworks.events.reasons import ReasonCode
from deltaworks.sources.objects import payloads
from deltaworks.sources.objects.object_names import is_valid_etag, is_valid_key, local_path
from deltaworks.sources.objects.payloads import (
    FileOpener,
    FileReference,
    ObjectChanged,
    ObjectMissing,
    ObjectUnreadable,
    open_object,
)
from deltaworks.sources.objects.relay import bucket
from deltaworks.sources.objects.relay.removal import ObjectRemover
from deltaworks.specs.storage import StorageSpec, resolved_variables
from deltaworks.testing import local_storage, write_files
from sandbox.servers.fault_proxy import Action, Fault, running_fault_proxy

AT = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_a_reference_is_opened_inside_a_task(tmp_path: Path, compress: type[bytes]) -> None:
    (tmp_path / "a.json").write_bytes(compress(b'{"a": 1}'))
    opener = pickle.loads(pickle.dumps(FileOpener(local_storage(tmp_path), compression="auto")))

    payload = opener(FileReference(5, "a.json", ""))

    assert (payload.seq, payload.key, payload.data, payload.problem) == (5, "a.json", b'{"a": 1}', None)


def test_an_error_of_an_object_is_a_reason_not_a_failure(tmp_path: Path) -> None:
    whole = gzip.compress(b"x" * 1000)
    (tmp_path / "changed").write_bytes(b"new")
    (tmp_path / "cut").write_bytes(whole[:20])
    opener = FileOpener(local_storage(tmp_path), compression="auto")
    other = hashlib.md5(b"old").hexdigest()

    problems = [opener(FileReference(1, key, etag)) for key, etag in (("gone", ""), ("changed", other), ("cut", ""))]

    assert [payload.data for payload in problems] == [None] * 3
    assert [payload.problem and payload.problem.code for payload in problems] == [
        ReasonCode.OBJECT_MISSING,
        ReasonCode.OBJECT_CHANGED,
        ReasonCode.OBJECT_UNREADABLE,
    ]


def test_the_opener_carries_the_values_of_references(monkeypatch: pytest.MonkeyPatch) -> None:
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


CONTENT = b'{"a": 1}{"a": 2}'


def put(landing: Any, key: str, body: bytes) -> str:
    return str(landing.s3.put_object(Bucket=landing.bucket, Key=key, Body=body)["ETag"]).strip('"')


def test_an_object_is_read_by_key_and_etag(landing: Any) -> None:
    etag = put(landing, "games/Happy Face +1=ä.json", CONTENT)
    assert open_object(landing.storage, "games/Happy Face +1=ä.json", etag) == CONTENT
    assert open_object(landing.storage, "games/Happy Face +1=ä.json", "") == CONTENT


def test_a_missing_object_is_reported(landing: Any) -> None:
    with pytest.raises(ObjectMissing, match="OBJECT_MISSING") as raised:
        open_object(landing.storage, "games/none", "abc")
    assert raised.value.reason == "object_missing"
    assert not raised.value.retryable


def test_a_replaced_object_is_reported(landing: Any) -> None:
    etag = put(landing, "games/1", b"old")
    put(landing, "games/1", b"new")
    with pytest.raises(ObjectChanged, match="OBJECT_CHANGED") as raised:
        open_object(landing.storage, "games/1", etag)
    assert raised.value.reason == "object_changed"


def test_every_member_of_a_gzip_file_is_read(landing: Any) -> None:
    etag = put(landing, "games/1", gzip.compress(CONTENT) + gzip.compress(b"more"))
    assert open_object(landing.storage, "games/1", etag) == CONTENT + b"more"
    assert open_object(landing.storage, "games/1", etag, compression="none")[:2] == b"\x1f\x8b"


@pytest.mark.parametrize(
    "body",
    [gzip.compress(CONTENT)[:-5], gzip.compress(CONTENT)[:12], gzip.compress(CONTENT) + b"garbage", b"\x1f\x8b"],
    ids=["without its end", "only a head", "with something behind", "two bytes"],
)
def test_damaged_gzip_is_reported(landing: Any, body: bytes) -> None:
    etag = put(landing, "games/1", body)
    with pytest.raises(ObjectUnreadable, match="OBJECT_UNREADABLE") as raised:
        open_object(landing.storage, "games/1", etag)
    assert raised.value.reason == "object_unreadable"


def test_plain_content_is_reported_if_gzip_is_required(landing: Any) -> None:
    etag = put(landing, "games/1", CONTENT)
    with pytest.raises(ObjectUnreadable):
        open_object(landing.storage, "games/1", etag, compression="gzip")


def test_a_missing_bucket_is_not_an_error_of_the_object(landing: Any) -> None:
    storage = StorageSpec(root="s3://no-such-bucket-here", path_style=True, **landing.messaging.model_dump())
    with pytest.raises(ConfigError, match="OBJECT_FORBIDDEN"):
        open_object(storage, "games/1", "")


def test_local_files_behave_the_same(tmp_path: Path) -> None:
    storage = local_storage(tmp_path)
    (tmp_path / "one").write_bytes(gzip.compress(CONTENT))
    etag = hashlib.md5((tmp_path / "one").read_bytes()).hexdigest()
    assert open_object(storage, "one", etag) == CONTENT
    with pytest.raises(ObjectChanged):
        open_object(storage, "one", "0" * 32)
    with pytest.raises(ObjectMissing):
        open_object(storage, "two", etag)


@pytest.mark.parametrize("key", ["../secret", "a/../../secret", "/etc/passwd", "a/../one", "one\0", "x" * 2_000])
def test_a_key_cannot_leave_the_landing_folder(tmp_path: Path, key: str) -> None:
    write_files(tmp_path, {"secret": CONTENT, "landing/one": CONTENT})
    storage = local_storage(tmp_path / "landing")
    opener = FileOpener(storage, compression="auto")

    payload = opener(FileReference(1, key, ""))

    assert (payload.data, payload.problem and payload.problem.code) == (None, ReasonCode.OBJECT_UNREADABLE)
    remover = ObjectRemover(storage)
    assert (remover.check("b", key, "", None), remover.remove("b", key, "", None)) == ("missing", "missing")
    assert (tmp_path / "secret").exists()


@pytest.mark.parametrize("key", ["folder", "one/below", "x" * 300, "f/" * 400])
def test_a_key_that_no_file_can_have_is_a_missing_object(tmp_path: Path, key: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "one").write_bytes(CONTENT)
    opener = FileOpener(local_storage(tmp_path), compression="auto")

    payload = opener(FileReference(1, key, ""))

    assert payload.problem is not None
    assert payload.problem.code == ReasonCode.OBJECT_MISSING


@pytest.mark.parametrize(
    ("key", "etag", "version"),
    [("games/1", "a\r\nx: y", None), ("games/1", "ä", None), ("games/1", "", "v\n"), ("../other/1", "", None)],
)
def test_invalid_names_are_errors_of_the_object(landing: Any, key: str, etag: str, version: str | None) -> None:
    opener = FileOpener(landing.storage, compression="auto")

    payload = opener(FileReference(1, key, etag, version))

    assert payload.problem is not None
    assert payload.problem.code == ReasonCode.OBJECT_UNREADABLE


def test_object_errors_are_serialized_from_task_to_driver() -> None:
    error = pickle.loads(pickle.dumps(ObjectMissing("OBJECT_MISSING", "gone", hint="look")))
    assert (type(error), error.reason, error.hint) == (ObjectMissing, "object_missing", "look")


def test_the_announced_version_is_read_if_the_object_was_replaced_or_deleted(landing: Any) -> None:
    landing.s3.put_bucket_versioning(Bucket=landing.bucket, VersioningConfiguration={"Status": "Enabled"})
    first = landing.s3.put_object(Bucket=landing.bucket, Key="games/1", Body=b"first")
    etag, version = first["ETag"].strip('"'), first["VersionId"]
    put(landing, "games/1", b"second")
    assert open_object(landing.storage, "games/1", etag, version_id=version) == b"first"
    landing.s3.delete_object(Bucket=landing.bucket, Key="games/1")
    assert open_object(landing.storage, "games/1", etag, version_id=version) == b"first"
    landing.s3.delete_object(Bucket=landing.bucket, Key="games/1", VersionId=version)
    with pytest.raises(ObjectMissing, match="OBJECT_MISSING"):
        open_object(landing.storage, "games/1", etag, version_id=version)


def test_a_long_storage_failure_is_an_outage_not_an_error_of_the_object(
    landing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(landing, "games/1", CONTENT)
    monkeypatch.setattr(payloads, "_RETRY_SECONDS", 0.5)
    plain = bucket.Config
    monkeypatch.setattr(bucket, "Config", lambda **options: plain(**options | {"retries": {"total_max_attempts": 1}}))
    refused = Fault(action=Action.REFUSE, method="GET", path="games/1")
    with running_fault_proxy(landing.endpoint, faults=[refused]) as proxy:
        storage = landing.storage.model_copy(update={"endpoint": proxy.endpoint})
        with pytest.raises(TransientError, match=r"STORAGE_UNREACHABLE.*games/1") as raised:
            open_object(storage, "games/1", "")
    assert raised.value.retryable


SEGMENTS = st.lists(st.sampled_from(["..", ".", "", "a", "b.gz", "...", "..a", "ä", "a b"]), min_size=1, max_size=8)
ROOT = Path("/landing/bucket")


@given(SEGMENTS.map("/".join))
@example("/etc/passwd")
@example("a/../../x")
def test_a_local_key_is_below_its_folder_or_rejected(key: str) -> None:
    path = local_path(ROOT, key)

    if path is not None:
        assert posixpath.normpath(path).startswith(str(ROOT))
        assert ".." not in path.parts


@given(SEGMENTS.map("/".join))
def test_a_key_with_a_prefix_outside_the_bucket_is_rejected(key: str) -> None:
    parts = [part for part in key.split("/") if part not in ("", ".")]
    beginnings = ["/".join(parts[: count + 1]) for count in range(len(parts))]
    leads_out = any(posixpath.normpath(f"/r/{beginning}").split("/")[1:2] != ["r"] for beginning in beginnings)

    assert is_valid_key(key) == (key != "" and not leads_out)


@given(st.from_regex(r"[0-9a-f]{32}(-[0-9]{1,5})?", fullmatch=True))
def test_etags_of_s3_are_valid(tag: str) -> None:
    assert is_valid_etag(tag)


@given(st.text(min_size=1))
def test_no_valid_etag_can_end_a_header(tag: str) -> None:
    if is_valid_etag(tag):
        tag.encode("ascii")
        assert tag.isprintable()
        assert '"' not in tag
