"""Queue messages: every supported format, every record, and a reason for unusable ones."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.sources.objects.relay.messages import IgnoreReason, ParsedMessage, Problem, parse_message
from tests.shared_data import SHARED_DATA

BUCKET = "landing"


def record(**changes: Any) -> dict[str, Any]:
    found = {"key": "games/a.gz", "size": 7, "eTag": "abc", "sequencer": "0055AED6DCD90281E5"}
    found.update(changes.pop("object", {}))
    return {
        "eventSource": "aws:s3",
        "eventTime": "2026-03-01T10:20:30.123Z",
        "eventName": "ObjectCreated:Put",
        "s3": {"bucket": {"name": changes.pop("bucket", BUCKET)}, "object": found},
        **changes,
    }


def notification(*records: Any) -> str:
    return json.dumps({"Records": list(records)})


def in_sns(message: str, **changes: Any) -> str:
    envelope = {"Type": "Notification", "MessageId": "m", "TopicArn": "arn:aws:sns:x", "Message": message}
    return json.dumps(envelope | changes)


def event_bridge(kind: str = "Object Created", **found: Any) -> str:
    return json.dumps(
        {
            "detail-type": kind,
            "source": "aws.s3",
            "time": "2026-03-01T10:20:30Z",
            "detail": {
                "bucket": {"name": BUCKET},
                "object": {"key": "games/a.gz", "size": 7, "etag": "abc", "version-id": "v1", **found},
                "reason": "PutObject",
            },
        }
    )


def cloudtrail(call: str, **changes: Any) -> str:
    detail = {"eventSource": "s3.amazonaws.com", "eventName": call, "requestParameters": {"bucketName": BUCKET}}
    kind = "AWS API Call via CloudTrail"
    return json.dumps({"detail-type": kind, "source": "aws.s3", "detail": detail | changes})


def parse(body: str) -> ParsedMessage:
    return parse_message(body, buckets=(BUCKET,))


def test_a_notification_becomes_a_file_event() -> None:
    (event,) = parse(notification(record(object={"versionId": "v1"}))).events
    assert (event.bucket, event.key, event.size, event.etag) == (BUCKET, "games/a.gz", 7, "abc")
    assert event.event_time == datetime(2026, 3, 1, 10, 20, 30, 123000, tzinfo=UTC)
    assert (event.event_name, event.version_id) == ("ObjectCreated:Put", "v1")
    assert event.sequencer == "0055AED6DCD90281E5"


def test_the_three_formats_of_one_event_agree() -> None:
    body = notification(record())
    raw, wrapped, bridged = (parse(form).events[0] for form in (body, in_sns(body), event_bridge()))
    assert raw == wrapped
    assert (bridged.bucket, bridged.key, bridged.size, bridged.etag) == (raw.bucket, raw.key, raw.size, raw.etag)
    assert bridged.event_name == "ObjectCreated:PutObject"


def test_every_record_of_a_message_counts() -> None:
    parsed = parse(notification(*(record(object={"key": f"games/{n}"}) for n in range(5))))
    assert [event.key for event in parsed.events] == [f"games/{n}" for n in range(5)]


@pytest.mark.parametrize(
    ("encoded", "decoded"),
    [
        ("games/Happy+Face.json", "games/Happy Face.json"),
        ("games/dt%3D2026-03-01/a%2Bb.gz", "games/dt=2026-03-01/a+b.gz"),
        ("games/%E6%97%A5%E6%9C%AC.gz", "games/日本.gz"),
        ("games/100%25.gz", "games/100%.gz"),
    ],
)
def test_keys_of_notifications_are_decoded_as_forms_are(encoded: str, decoded: str) -> None:
    assert parse(notification(record(object={"key": encoded}))).events[0].key == decoded


def test_keys_of_event_bridge_are_not_decoded() -> None:
    assert parse(event_bridge(key="games/a+b%20c.gz")).events[0].key == "games/a+b%20c.gz"


def test_a_key_that_does_not_decode_is_quarantined() -> None:
    assert parse(notification(record(object={"key": "games/%FF.gz"}))).problems == (Problem.RECORD_MALFORMED,)


def test_quotes_around_an_etag_do_not_make_another_file() -> None:
    assert parse(notification(record(object={"eTag": '"abc"'}))).events[0].etag == "abc"


@pytest.mark.parametrize("wrap", [str, in_sns])
def test_the_test_event_is_ignored(wrap: Any) -> None:
    body = json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": BUCKET})
    assert parse(wrap(body)) == ParsedMessage(ignored=(IgnoreReason.TEST_EVENT,))


@pytest.mark.parametrize(
    "body",
    [
        notification(record(eventName="ObjectRemoved:Delete", object={"size": None})),
        notification(record(eventName="s3:ObjectRestore:Completed")),
        notification(record(eventName="LifecycleExpiration:Delete")),
        *(
            notification(record(eventName=f"{prefix}{name}"))
            for prefix in ("", "s3:")
            for name in (
                "ObjectRemoved:DeleteMarkerCreated",
                "ObjectTagging:Put",
                "ObjectAcl:Put",
                "LifecycleTransition",
                "IntelligentTiering",
                "ReducedRedundancyLostObject",
                "Replication:OperationFailedReplication",
                "ObjectAccessed:Head",
                "ObjectLifecycle:Expiration:Current",
                "ObjectSynced:Delete",
                "BucketCreated:*",
            )
        ),
        event_bridge("Object Tags Added"),
        event_bridge("Object Storage Class Changed"),
        cloudtrail("GetObject"),
        cloudtrail("DeleteObjects"),
        cloudtrail("UploadPart"),
        cloudtrail("PutObject", errorCode="AccessDenied"),
        event_bridge("Object Deleted"),
        event_bridge("Object Restore Completed"),
    ],
)
def test_events_without_a_created_object_are_acknowledged_and_counted(body: str) -> None:
    assert parse(body) == ParsedMessage(ignored=(IgnoreReason.NOT_CREATED,))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("", Problem.NOT_JSON),
        (notification(record(eventName="ObjectReplicated:Copy")), Problem.EVENT_NOT_UNDERSTOOD),
        (notification(record(eventName="OBJECT_FINALIZE")), Problem.EVENT_NOT_UNDERSTOOD),
        (notification(record(eventName="objectcreated:put")), Problem.EVENT_NOT_UNDERSTOOD),
        (event_bridge("Object Copied"), Problem.EVENT_NOT_UNDERSTOOD),
        (cloudtrail("PutObject"), Problem.CLOUDTRAIL_EVENT),
        (cloudtrail("CompleteMultipartUpload"), Problem.CLOUDTRAIL_EVENT),
        (cloudtrail("CopyObject"), Problem.CLOUDTRAIL_EVENT),
        (cloudtrail("WriteGetObjectResponse"), Problem.EVENT_NOT_UNDERSTOOD),
        ('{"detail-type": "AWS API Call via CloudTrail", "source": "aws.s3"}', Problem.RECORD_MALFORMED),
        # Google Cloud Storage, Azure Event Grid and Alibaba's OSS.
        ('{"kind": "storage#object", "bucket": "landing", "name": "a", "size": "7"}', Problem.NOT_AN_S3_MESSAGE),
        ('[{"eventType": "Microsoft.Storage.BlobCreated", "subject": "/a"}]', Problem.NOT_AN_S3_MESSAGE),
        ('{"events": [{"eventName": "ObjectCreated:PutObject", "oss": {}}]}', Problem.NOT_AN_S3_MESSAGE),
        ("Hello from SNS!", Problem.NOT_JSON),
        ('{"Records": [', Problem.NOT_JSON),
        (in_sns("Hello from SNS!"), Problem.NOT_JSON),
        ("[]", Problem.NOT_AN_S3_MESSAGE),
        ("{}", Problem.NOT_AN_S3_MESSAGE),
        ('{"Records": []}', Problem.NOT_AN_S3_MESSAGE),
        ('{"Records": [1]}', Problem.NOT_AN_S3_MESSAGE),
        ('{"Records": [{"eventSource": "aws:sqs", "body": "x"}]}', Problem.NOT_AN_S3_MESSAGE),
        ('{"detail-type": "EC2 Instance State-change Notification", "source": "aws.ec2"}', Problem.NOT_AN_S3_MESSAGE),
        (in_sns("confirm", Type="SubscriptionConfirmation"), Problem.SNS_CONTROL_MESSAGE),
        (notification(record(bucket="other")), Problem.FOREIGN_BUCKET),
        (notification(record(object={"key": ""})), Problem.RECORD_MALFORMED),
        (notification(record(object={"size": "7"})), Problem.RECORD_MALFORMED),
        (notification(record(object={"size": -1})), Problem.RECORD_MALFORMED),
        (notification(record(object={"size": 2**63})), Problem.RECORD_MALFORMED),
        (notification(record(eventTime="yesterday")), Problem.RECORD_MALFORMED),
        (notification(record(eventName=None)), Problem.RECORD_MALFORMED),
        (notification(record(object={"eTag": "abc\r\nx-amz-acl: public-read"})), Problem.UNSAFE_TAG),
        (notification(record(object={"eTag": "ab\nc"})), Problem.UNSAFE_TAG),
        (notification(record(object={"eTag": "ä"})), Problem.UNSAFE_TAG),
        (notification(record(object={"eTag": "a" * 300})), Problem.UNSAFE_TAG),
        (event_bridge(etag='a"b'), Problem.UNSAFE_TAG),
        (notification(record(object={"versionId": "v\r\n1"})), Problem.UNSAFE_TAG),
        (notification(record(object={"key": "../other/a.gz"})), Problem.UNSAFE_KEY),
        (notification(record(object={"key": "games/%2E%2E/../a.gz"})), Problem.UNSAFE_KEY),
        (event_bridge(key="games/./../../etc/passwd"), Problem.UNSAFE_KEY),
        (notification(record(object={"key": "games/a%00.gz"})), Problem.UNSAFE_KEY),
        (notification(record(object={"key": "ä" * 513})), Problem.UNSAFE_KEY),
    ],
)
def test_unusable_messages_have_a_reason(body: str, problem: Problem) -> None:
    parsed = parse(body)
    assert parsed == ParsedMessage(problems=(problem,))
    assert parsed.reason == problem.value


def test_one_malformed_record_does_not_affect_others() -> None:
    parsed = parse(notification(record(bucket="other"), record(), record(object={"size": None}), record(bucket="x")))
    assert len(parsed.events) == 1
    assert parsed.reason == "foreign_bucket,record_malformed"


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.sampled_from(sorted(record())) | st.text(), children),
    max_leaves=8,
)


@given(_json, st.sampled_from([lambda v: v, lambda v: {"Records": v}, lambda v: {"Records": [{"s3": v}]}]))
def test_no_body_makes_the_parser_fail(value: Any, shape: Any) -> None:
    parsed = parse(json.dumps(shape(value)))
    assert parsed.events or parsed.ignored or parsed.problems


@given(st.text())
def test_no_text_makes_the_parser_fail(body: str) -> None:
    assert parse(in_sns(body)).problems or parse(body).problems


PUBLISHED = [
    ("s3_event_messages/notification-content-structure-01.json", (), (IgnoreReason.TEST_EVENT,)),
    ("s3_event_messages/notification-content-structure-02.json", ("mybucket", "HappyFace.jpg", 1024), ()),
    ("s3_event_messages/ev-events-00.json", ("DOC-EXAMPLE-BUCKET1", "example-key", 5), ()),
    ("s3_event_messages/ev-events-01.json", (), (IgnoreReason.NOT_CREATED,)),
    ("s3_event_messages/ev-events-02.json", (), (IgnoreReason.NOT_CREATED,)),
    ("s3_event_messages/ev-events-03.json", (), (IgnoreReason.NOT_CREATED,)),
    ("aws_event_samples/s3-event.json", ("sourcebucket", "Happy Face.jpg", 1024), ()),
    ("aws_event_samples/s3-event-with-decoded.json", ("sourcebucket", "Happy Face.jpg", 1024), ()),
    ("aws_event_samples/s3-lifecycle-event.json", (), (IgnoreReason.NOT_CREATED,)),
    ("aws_event_samples/s3-restore-event.json", (), (IgnoreReason.NOT_CREATED,)),
    ("aws_event_samples/s3-glacier-event.json", (), (IgnoreReason.NOT_CREATED,)),
    ("aws_event_samples/s3-intelligenttier-event.json", (), (IgnoreReason.NOT_CREATED,)),
    ("aws_event_samples/s3-replication-event.json", (), (IgnoreReason.NOT_CREATED,)),
]


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason=f"the published samples are not at {SHARED_DATA}")
@pytest.mark.parametrize(("path", "event", "ignored"), PUBLISHED, ids=[entry[0] for entry in PUBLISHED])
def test_published_messages_are_parsed_as_documented(path: str, event: Any, ignored: Any) -> None:
    parsed = parse_message(
        (SHARED_DATA / path).read_text(), buckets=("mybucket", "DOC-EXAMPLE-BUCKET1", "sourcebucket")
    )
    assert parsed.ignored == ignored
    assert parsed.problems == ()
    assert [(found.bucket, found.key, found.size) for found in parsed.events] == ([event] if event else [])


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason=f"the published samples are not at {SHARED_DATA}")
def test_the_published_template_has_no_kind_of_event() -> None:
    body = (SHARED_DATA / "s3_event_messages/notification-content-structure-00.json").read_text()
    assert parse(body).problems == (Problem.EVENT_NOT_UNDERSTOOD,)


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason=f"the published samples are not at {SHARED_DATA}")
def test_messages_of_other_services_are_not_file_events() -> None:
    folder = SHARED_DATA / "aws_event_samples"
    others = [path for path in folder.glob("*.json") if not path.name.startswith("s3-")]
    assert len(others) > 20
    for path in others:
        parsed = parse_message(path.read_text(), buckets=("sourcebucket",))
        assert parsed.problems, path.name
        assert not parsed.events, path.name


def test_an_object_that_ceph_synced_from_another_zone_is_created() -> None:
    (event,) = parse(notification(record(eventName="ObjectSynced:Create"))).events
    assert (event.key, event.event_name) == ("games/a.gz", "ObjectSynced:Create")


@pytest.mark.parametrize(
    ("key", "size", "reason"),
    [
        ("games/", 0, IgnoreReason.FOLDER_MARKER),
        ("games_$folder$", 0, IgnoreReason.FOLDER_MARKER),
        ("day=1/_$folder$", 3, IgnoreReason.FOLDER_MARKER),
        ("day=1/_SUCCESS", 0, IgnoreReason.JOB_MARKER),
        ("_SUCCESS", 120, IgnoreReason.JOB_MARKER),
        ("day=1/_committed_8123", 90, IgnoreReason.JOB_MARKER),
        ("day=1/_started_8123", 0, IgnoreReason.JOB_MARKER),
        ("out/_temporary/0/task_1/part-0.json", 50, IgnoreReason.TEMPORARY_OBJECT),
        ("out/.spark-staging-8/part-0.json", 50, IgnoreReason.TEMPORARY_OBJECT),
        ("out/.hive-staging_hive_2026/part-0.json", 50, IgnoreReason.TEMPORARY_OBJECT),
        ("out/a.json._COPYING_", 50, IgnoreReason.TEMPORARY_OBJECT),
        ("day=1/a.json", 0, IgnoreReason.EMPTY_OBJECT),
        ("day=1/a.json", 1, None),
        ("games/", 5, None),
        ("_SUCCESS/a.json", 5, None),
        ("day=1/_SUCCESS.json", 5, None),
        ("my_temporary/a.json", 5, None),
        ("_events/_orders.json", 5, None),
        ("_committed_by_ana.json", 5, None),
    ],
)
def test_objects_without_events_are_known_by_name_or_size(key: str, size: int, reason: IgnoreReason | None) -> None:
    parsed = parse(notification(record(object={"key": key, "size": size})))

    assert parsed.ignored == (() if reason is None else (reason,))
    assert (len(parsed.events), parsed.problems) == (int(reason is None), ())


def test_minio_omits_the_size_of_an_empty_object() -> None:
    empty = record(eventSource="minio:s3")
    del empty["s3"]["object"]["size"]

    assert parse(notification(empty)).ignored == (IgnoreReason.EMPTY_OBJECT,)
