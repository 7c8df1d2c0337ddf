"""Connecting buckets to a queue: existing configuration stays, dry runs report, and rules give the retention."""

from __future__ import annotations

import json
import uuid
from typing import Any
from urllib.parse import unquote_plus

import pytest

from deltaworks.errors import ContractError
from deltaworks.sources.objects.relay import bucket
from deltaworks.sources.objects.relay.bucket import bucket_retention_seconds, shortest_expiry_seconds
from deltaworks.sources.objects.relay.wiring import Wiring, relay_policy, stream_policy, wiring_policy
from deltaworks.specs.relay import RelaySpec
from deltaworks.specs.storage import StorageSpec
from tests.unit.sources.conftest import Landing


@pytest.fixture
def name() -> str:
    return f"wired-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def wired_bucket(landing: Landing) -> str:
    """A bucket that announces nothing yet."""
    created = f"plain-{uuid.uuid4().hex[:8]}"
    landing.s3.create_bucket(Bucket=created)
    return created


def states(wiring: Wiring, *, dry_run: bool = True) -> set[str]:
    return {step.state for step in wiring.wire(dry_run=dry_run).steps}


def test_an_object_is_announced_to_the_queue_once_it_is_wired(landing: Landing, wired_bucket: str, name: str) -> None:
    wired = Wiring(landing.messaging, name=name, buckets=[wired_bucket]).wire(dry_run=False)
    landing.s3.put_object(Bucket=wired_bucket, Key="a/b.json", Body=b"{}")

    assert wired.queue_url is not None
    received = landing.sqs.receive_message(QueueUrl=wired.queue_url, MaxNumberOfMessages=10, WaitTimeSeconds=2)
    messages = [json.loads(json.loads(each["Body"])["Message"]) for each in received["Messages"]]
    keys = [
        unquote_plus(record["s3"]["object"]["key"]) for message in messages for record in message.get("Records", [])
    ]
    assert keys == ["a/b.json"]


def test_a_dry_run_creates_nothing_and_a_second_run_finds_everything(
    landing: Landing, wired_bucket: str, name: str
) -> None:
    wiring = Wiring(landing.messaging, name=name, buckets=[wired_bucket])

    first = wiring.wire()
    assert [(step.kind, step.state) for step in first.steps] == [
        ("queue", "create"),
        ("queue", "create"),
        ("topic", "create"),
        ("subscription", "create"),
        ("notification", "create"),
    ]
    assert first.queue_url is None
    assert states(wiring) == {"create"}
    assert states(wiring, dry_run=False) == {"create"}
    assert states(wiring) == {"present"}


def test_other_notifications_of_a_bucket_stay(landing: Landing, wired_bucket: str, name: str) -> None:
    topic = landing.s3.get_bucket_notification_configuration(Bucket=landing.bucket)["TopicConfigurations"][0][
        "TopicArn"
    ]
    theirs = {
        "Id": "theirs",
        "TopicArn": topic,
        "Events": ["s3:ObjectCreated:Put"],
        "Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": "theirs/"}]}},
    }
    landing.s3.put_bucket_notification_configuration(
        Bucket=wired_bucket, NotificationConfiguration={"TopicConfigurations": [theirs]}
    )

    with pytest.raises(ContractError, match="NOTIFICATION_OVERLAPS"):
        Wiring(landing.messaging, name=name, buckets=[wired_bucket]).wire(dry_run=False)
    Wiring(landing.messaging, name=name, buckets=[wired_bucket], prefix="ours/").wire(dry_run=False)

    found = landing.s3.get_bucket_notification_configuration(Bucket=wired_bucket)["TopicConfigurations"]
    assert [each["Id"] for each in found] == ["theirs", f"deltaworks-{name}"]
    assert rules(found[0]) == [("prefix", "theirs/")]
    assert rules(found[1]) == [("prefix", "ours/")]


def test_nothing_is_created_if_a_bucket_is_rejected(landing: Landing, name: str) -> None:
    """The bucket of the fixture announces everything already."""
    with pytest.raises(ContractError, match="NOTIFICATION_OVERLAPS"):
        Wiring(landing.messaging, name=name, buckets=[landing.bucket]).wire(dry_run=False)

    assert name not in "".join(landing.sqs.list_queues(QueueNamePrefix=name).get("QueueUrls", []))


def test_existing_settings_stay_and_missing_ones_are_added(landing: Landing, wired_bucket: str, name: str) -> None:
    wiring = Wiring(landing.messaging, name=name, buckets=[wired_bucket])
    url = wiring.wire(dry_run=False).queue_url
    theirs = {"Sid": "theirs", "Effect": "Deny", "Principal": "*", "Action": "sqs:PurgeQueue", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [theirs]})
    Wiring(landing.messaging, name=name, buckets=[wired_bucket], prefix="x/").wire(dry_run=False)
    landing.sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "7", "Policy": policy})

    changed = {(step.kind, step.name) for step in wiring.wire(dry_run=False).steps if step.state == "change"}

    assert changed == {("queue", name), ("notification", wired_bucket)}
    assert states(wiring) == {"present"}
    found = landing.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert found["VisibilityTimeout"] == "7"
    assert [each["Sid"] for each in json.loads(found["Policy"])["Statement"]] == ["theirs", "Deltaworks"]


def rules(entry: dict[str, Any]) -> list[tuple[str, str]]:
    return [(rule["Name"].lower(), rule["Value"]) for rule in entry["Filter"]["Key"]["FilterRules"]]


def actions(policy: dict[str, Any]) -> set[str]:
    return {action for statement in policy["Statement"] for action in statement["Action"]}


@pytest.mark.parametrize("listing", [None, {}])
@pytest.mark.parametrize("overwrites", ["latest", "every_version"])
def test_policies_allow_no_more_than_the_relay_declares(listing: dict[str, Any] | None, overwrites: str) -> None:
    relay = RelaySpec.model_validate(
        {"relay": "a", "queue_url": "q", "buckets": ["in"], "listing": listing, "overwrites": overwrites}
    )
    lake = StorageSpec(root="s3://lake/below")

    taking = relay_policy(relay, lake, queue_arn="arn:q", dead_letter_arn="arn:d")
    reading = stream_policy(relay, lake)
    wiring = wiring_policy(["in"], queue_arn="arn:q", dead_letter_arn="arn:d", topic_arn="arn:t")

    assert ("s3:ListBucketVersions" in actions(taking)) == (listing is not None and overwrites == "every_version")
    assert ("s3:GetObjectVersion" in actions(reading)) == (overwrites == "every_version")
    assert not any(action.startswith("sqs:") for action in actions(reading))
    assert not any(
        action.startswith(("s3:Get", "s3:Put")) for action in actions(wiring) if "Notification" not in action
    )
    for policy in (taking, reading, wiring):
        for statement in policy["Statement"]:
            assert "*" not in statement["Resource"]
            assert not any("*" in action for action in statement["Action"])
    lakes = [each for each in taking["Statement"] if each["Sid"] == "Lake"]
    assert lakes[0]["Resource"] == ["arn:aws:s3:::lake/below/*"]


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
