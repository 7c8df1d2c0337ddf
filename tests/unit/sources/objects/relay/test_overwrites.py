"""Overwritten keys under each overwrite policy."""

from __future__ import annotations

from typing import Any

import pytest

from deltaworks.sources.objects.file_event_log import FileEventLog
from deltaworks.tables.lake import Lake
from tests.unit.sources.objects.relay.relay_harness import drain, relay_of, running
from tests.waiting import eventually


def tags(landing: Any) -> list[tuple[str, str]]:
    rows = FileEventLog(Lake(landing.lake), "landing").read(0, columns=["key", "etag", "version_id"]).to_pylist()
    return [(row["etag"][:6], row["version_id"] is not None) for row in rows]


def put(landing: Any, body: bytes) -> str:
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
    first = put(landing, b"one")
    with running(relay_of(landing, overwrites="latest")) as relay:
        eventually(lambda: relay.counts.deleted == 1, "the first is taken")
    put(landing, b"two")
    with running(relay_of(landing, overwrites="ignore")) as relay:
        eventually(lambda: relay.counts.deleted == 1, "the second is taken")
    assert tags(landing) == [(first, False)]
