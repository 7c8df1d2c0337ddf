"""The retention of a stream's objects from a bucket's lifecycle rules."""

from __future__ import annotations

from typing import Any

import pytest

from deltaworks.sources.objects.relay import bucket
from deltaworks.sources.objects.relay.bucket import bucket_retention_seconds, shortest_expiry_seconds
from deltaworks.specs.storage import StorageSpec
from tests.unit.sources.conftest import Landing

DAY = 86_400.0


def rule(days: int, *, status: str = "Enabled", **more: Any) -> dict[str, Any]:
    return {"Status": status, "Expiration": {"Days": days}, **more}


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([], None),
        ([rule(7)], 7 * DAY),
        ([rule(7), rule(3, status="Disabled")], 7 * DAY),
        ([rule(7, Filter={"Prefix": "landing/"}), rule(30, Prefix="")], 7 * DAY),
        ([rule(7, Filter={"Prefix": "elsewhere/"})], None),
        # It concerns a part of what is read.
        ([rule(7, Prefix="landing/games/old/")], 7 * DAY),
        ([rule(7, Filter={"And": {"Prefix": "elsewhere/", "Tags": []}})], None),
        ([rule(2, Filter={"Tag": {"Key": "kind", "Value": "raw"}})], 2 * DAY),
        ([{"Status": "Enabled", "NoncurrentVersionExpiration": {"NoncurrentDays": 1}}], None),
        ([{"Status": "Enabled", "Expiration": {"ExpiredObjectDeleteMarker": True}}], None),
    ],
)
def test_the_shortest_applicable_rule_counts(rules: list[dict[str, Any]], expected: float | None) -> None:
    assert shortest_expiry_seconds(rules, "landing/games/") == expected


def test_lifecycle_rules_are_read_from_the_bucket(landing: Landing) -> None:
    assert bucket_retention_seconds(landing.storage, landing.bucket, "games/") is None

    rules = [{"ID": name, "Status": "Enabled", "Filter": {"Prefix": f"{name}/"}} for name in ("games", "edits")]
    landing.s3.put_bucket_lifecycle_configuration(
        Bucket=landing.bucket,
        LifecycleConfiguration={
            "Rules": [each | {"Expiration": {"Days": days}} for each, days in zip(rules, (9, 4), strict=True)]
        },
    )

    assert bucket_retention_seconds(landing.storage, landing.bucket, "games/") == 9 * DAY
    assert bucket_retention_seconds(landing.storage, landing.bucket, "") == 4 * DAY


def test_a_local_folder_has_no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "bucket_client", lambda *_, **__: pytest.fail("a server is asked"))

    assert bucket_retention_seconds(StorageSpec(root="file:///landing"), "landing", "games/") is None
