"""Objects are deleted or archived only while they are the announced ones; overwritten keys under each policy."""

from __future__ import annotations

import io
from typing import Any

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse

from deltaworks.errors import ConfigError
from deltaworks.sources.objects.file_event_log import FileEventLog
from deltaworks.sources.objects.relay.removal import ObjectRemover
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.lake import Lake
from tests.unit.sources.conftest import Landing
from tests.unit.sources.objects.relay.relay_harness import drain, relay_of, running
from tests.waiting import eventually


def put(landing: Landing, key: str, body: bytes) -> dict[str, Any]:
    answer = landing.s3.put_object(Bucket=landing.bucket, Key=key, Body=body)
    return {"etag": answer["ETag"].strip('"'), "version_id": answer.get("VersionId")}


def keys(landing: Landing) -> list[str]:
    return [each["Key"] for each in landing.s3.list_objects_v2(Bucket=landing.bucket).get("Contents", [])]


def test_an_object_is_removed_while_it_is_the_one_announced(landing: Landing) -> None:
    objects = ObjectRemover(landing.storage)
    first, second = put(landing, "a", b"1"), put(landing, "b", b"1")
    put(landing, "b", b"2")

    assert objects.check(landing.bucket, "a", **first) == "removed"
    assert keys(landing) == ["a", "b"]
    assert objects.remove(landing.bucket, "a", **first) == "removed"
    assert objects.remove(landing.bucket, "a", **first) == "missing"
    assert objects.remove(landing.bucket, "b", **second) == "changed"
    assert keys(landing) == ["b"]


def test_an_object_is_archived_before_it_is_deleted(landing: Landing) -> None:
    landing.s3.create_bucket(Bucket=f"{landing.bucket}-old")
    archive = StorageSpec(root=f"s3://{landing.bucket}-old/kept", path_style=True, **landing.messaging.model_dump())
    tag, changed = put(landing, "a/b", b"1"), put(landing, "c", b"1")
    put(landing, "c", b"2")
    objects = ObjectRemover(landing.storage, archive=archive)

    assert objects.remove(landing.bucket, "a/b", **tag) == "removed"
    assert objects.remove(landing.bucket, "c", **changed) == "changed"

    found = landing.s3.get_object(Bucket=archive.bucket, Key=f"kept/{landing.bucket}/a/b")
    assert found["Body"].read() == b"1"
    assert landing.s3.list_objects_v2(Bucket=archive.bucket)["KeyCount"] == 1
    assert keys(landing) == ["c"]


def test_in_a_versioned_bucket_the_read_version_is_deleted(landing: Landing) -> None:
    landing.s3.put_bucket_versioning(Bucket=landing.bucket, VersioningConfiguration={"Status": "Enabled"})
    first, second = put(landing, "a", b"1"), put(landing, "a", b"2")
    objects = ObjectRemover(landing.storage, versioned=True)

    assert objects.remove(landing.bucket, "a", **first) == "removed"

    versions = landing.s3.list_object_versions(Bucket=landing.bucket)
    assert [each["VersionId"] for each in versions["Versions"]] == [second["version_id"]]
    assert "DeleteMarkers" not in versions


def test_an_unwritable_archive_is_reported_and_nothing_is_deleted(landing: Landing) -> None:
    archive = StorageSpec(root="s3://nobody-has-this", path_style=True, **landing.messaging.model_dump())
    tag = put(landing, "a", b"1")

    with pytest.raises(ConfigError, match="OBJECT_NOT_REMOVABLE"):
        ObjectRemover(landing.storage, archive=archive).remove(landing.bucket, "a", **tag)
    assert keys(landing) == ["a"]


class _Refusal(io.BytesIO):
    """The body of an answer, as botocore reads it."""

    def stream(self, **_options: Any) -> list[bytes]:
        return [self.read()]


def test_if_a_store_rejects_the_condition_the_etag_was_checked_before(landing: Landing) -> None:
    conditions: list[str] = []

    def refuse(request: AWSPreparedRequest, **_: Any) -> AWSResponse | None:
        if "If-Match" not in request.headers:
            return None
        conditions.append(request.headers["If-Match"])
        body = _Refusal(b"<Error><Code>NotImplemented</Code><Message>A header is not implemented.</Message></Error>")
        return AWSResponse(request.url, 501, {}, body)

    objects = ObjectRemover(landing.storage)
    assert objects._client is not None
    objects._client.meta.events.register("before-send.s3.DeleteObject", refuse)
    tag, changed = put(landing, "a", b"1"), put(landing, "b", b"1")
    put(landing, "b", b"2")

    assert objects.remove(landing.bucket, "a", **tag) == "removed"
    assert objects.remove(landing.bucket, "b", **changed) == "changed"
    assert len(conditions) >= 1
    assert keys(landing) == ["b"]


def tags(landing: Any) -> list[tuple[str, str]]:
    rows = FileEventLog(Lake(landing.lake), "landing").read(0, columns=["key", "etag", "version_id"]).to_pylist()
    return [(row["etag"][:6], row["version_id"] is not None) for row in rows]


def overwrite(landing: Any, body: bytes) -> str:
    return str(landing.s3.put_object(Bucket=landing.bucket, Key="games/1", Body=body)["ETag"]).strip('"')[:6]


@pytest.mark.parametrize(("policy", "files"), [("ignore", [0]), ("latest", [0, 1]), ("every_version", [0, 1, 2, 3])])
def test_a_key_is_written_four_times_with_two_contents(landing: Any, policy: str, files: list[int]) -> None:
    contents = ["one", "two", "one", "two"]
    bodies = [landing.notification("games/1", etag=etag) for etag in contents]
    # Amazon's messages name the version; those of the server here do not.
    bodies = [body.replace('"key"', f'"versionId": "v{index}", "key"') for index, body in enumerate(bodies)]
    landing.send(*bodies, *bodies)
    with running(relay_of(landing, overwrites=policy)) as relay:
        eventually(lambda: drain(landing) and relay.counts.deleted >= 8, "all messages are taken")
    assert sorted(tag for tag, _ in tags(landing)) == sorted(contents[index] for index in files)


def test_the_overwrite_policy_may_change_between_runs_without_duplicates(landing: Any) -> None:
    first = overwrite(landing, b"one")
    with running(relay_of(landing, overwrites="latest")) as relay:
        eventually(lambda: relay.counts.deleted == 1, "the first is taken")
    overwrite(landing, b"two")
    with running(relay_of(landing, overwrites="ignore")) as relay:
        eventually(lambda: relay.counts.deleted == 1, "the second is taken")
    assert tags(landing) == [(first, False)]
