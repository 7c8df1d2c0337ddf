"""`format("cloudFiles")`: its options, which columns it has, and which files each run reads, without a JVM."""

from __future__ import annotations

import json
import pickle
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from deltaworks.errors import ConfigError
from deltaworks.sources.objects.relay import bucket as bucket_module
from deltaworks.sources.spark_formats import query_relay
from deltaworks.sources.spark_formats.cloud_files import declared_columns, parse_cloud_files
from deltaworks.sources.spark_formats.options import FileQueryOptions
from deltaworks.sources.spark_formats.reader import FileStreamReader
from deltaworks.specs.sources import key_matcher
from deltaworks.testing import write_files

GIVEN = {
    "path": "s3://landing/clicks",
    "cloudFiles.format": "json",
    "sourceCheckpointLocation": "file:///data/checkpoint/sources/0",
}
IDS = StructType([StructField("id", LongType()), StructField("_key", StringType())])
RESCUING = StructType([StructField("id", LongType()), StructField("_rescued_data", StringType())])


def parsed(**changes: str) -> FileQueryOptions:
    names = {name: name for name in changes} | {
        name: f"cloudFiles.{name}" for name in changes if name not in UNPREFIXED
    }
    return parse_cloud_files(GIVEN | {names[name]: value for name, value in changes.items()}, ["id", "name"])


UNPREFIXED = ("path", "pathGlobFilter", "header", "sep", "stateLocation", "rescuedDataColumn", "compression")


def test_the_default_lists_the_path_at_each_trigger_and_reads_each_file_once() -> None:
    options = parsed()
    listing = options.relay.listing
    assert listing is not None
    assert (options.queue_url, listing.prefix, listing.include_existing) == (None, "clicks/", True)
    assert (options.relay.overwrites, options.relay.buckets) == ("ignore", ("landing",))
    assert (options.source.max_files_per_batch, options.source.prefix) == (1000, "clicks/")
    assert options.state.root.startswith("file:///data/checkpoint/sources/cloud_files-")


def test_published_options_are_parsed_in_any_case() -> None:
    changes = {
        "cloudfiles.maxbytespertrigger": "10g",
        "cloudfiles.maxfilespertrigger": "7",
        "cloudfiles.region": "eu-west-1",
        "cloudfiles.schemalocation": "s3://lake/checkpoint",
        "cloudfiles.allowoverwrites": "true",
        "cloudfiles.partitioncolumns": "day,hour",
        "cloudfiles.awsaccesskey": "AKIAIOSFODNN7EXAMPLE",
        "cloudfiles.awssecretkey": "wJalr/XUtnFEMI",
    }
    options = parse_cloud_files(GIVEN | changes)
    assert (options.source.max_bytes_per_batch, options.source.max_files_per_batch) == (10 << 30, 7)
    assert (options.messaging.region, options.relay.overwrites) == ("eu-west-1", "latest")
    assert options.source.partition_columns == ("day", "hour")
    assert options.landing("landing").boto3_options()["aws_secret_access_key"] == "wJalr/XUtnFEMI"
    assert "wJalr" not in repr(options)


@pytest.mark.parametrize(
    ("path", "name_filter", "read", "not_read"),
    [
        ("s3://landing/clicks", None, ["clicks/a", "clicks/b/c.json"], ["clicks2/a"]),
        ("s3a://landing/clicks/", "*.json", ["clicks/a.json", "clicks/b/c.json"], ["clicks/a.csv"]),
        ("s3://landing/", None, ["a", "b/c"], []),
        ("s3://landing/*/orders/", None, ["a/orders/1.json", "b/orders/c/1"], ["orders/1.json", "a/b/orders/1"]),
        ("s3://landing/2026-*", None, ["2026-01.json", "2026-01/a"], ["2025-01/a"]),
        ("s3://landing/in/*.json", None, ["in/a.json"], ["in/a.csv", "in/b/a.json"]),
        ("s3://landing/{a,b}/c", "*.csv", ["a/c/1.csv", "b/c/d/1.csv"], ["a/c/1.json", "c/c/1.csv"]),
    ],
)
def test_a_path_selects_keys(path: str, name_filter: str | None, read: list[str], not_read: list[str]) -> None:
    options = parsed(path=path, **({} if name_filter is None else {"pathGlobFilter": name_filter}))
    matches = key_matcher(options.source.glob)
    for key in [*read, *not_read]:
        assert (key.startswith(options.source.prefix) and matches(key)) == (key in read), key


def test_another_spelling_or_filter_of_a_path_keeps_the_state() -> None:
    roots = {
        parsed().state.root,
        parsed(path="s3a://landing/clicks/").state.root,
        parsed(pathGlobFilter="*.json").state.root,
        parsed(useNotifications="true", queueUrl="http://localhost/1/clicks").state.root,
    }
    assert len(roots) == 1
    assert parsed(path="s3://landing/edits").state.root not in roots


@pytest.mark.parametrize(
    ("changes", "hours"),
    [
        ({"useNotifications": "true"}, 1e6),
        ({"useNotifications": "true", "backfillInterval": "1 day"}, 24),
        ({"useNotifications": "true", "backfillInterval": "2 weeks", "includeExistingFiles": "false"}, 336),
        ({"useNotifications": "true", "includeExistingFiles": "false"}, None),
    ],
)
def test_notifications_are_completed_by_listings(changes: dict[str, str], hours: float | None) -> None:
    options = parsed(**changes, queueUrl="https://sqs.eu-west-1.amazonaws.com/123456789012/clicks")
    listing = options.relay.listing
    assert (None if listing is None else listing.backfill_interval_hours) == hours
    assert options.messaging.region == "eu-west-1"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"path": ""}, "'path' is required: write .load"),
        ({"path": "dbfs:/landing"}, "must be s3://bucket/folder or a local folder, not dbfs:/landing"),
        ({"path": "s3://landing/[ab]"}, r"but no \[a-z\]"),
        ({"path": "file:///data"}, "contains the query's state"),
        ({"format": ""}, "'cloudFiles.format' is required: json, csv"),
        ({"format": "orc"}, r"cannot be orc: .*spark.readStream.format\(\"orc\"\)"),
        ({"useNotifications": "true"}, "'cloudFiles.queueUrl' is required with .* `deltaworks wire`"),
        ({"queueUrl": "http://localhost/1/q"}, "needs cloudFiles.useNotifications true"),
        ({"backfillInterval": "daily"}, "'cloudFiles.backfillInterval' must be an interval such as 1 day"),
        ({"schemaEvolutionMode": "addNewColumns"}, "must be rescue or none: restart the query with new columns"),
        ({"maxFilesPerTrigger": "0"}, "'cloudFiles.maxFilesPerTrigger' is wrong"),
        ({"useIncrementalListing": "maybe"}, "must be auto, true or false"),
        ({"inferColumnTypes": "true"}, "columns are declared, not inferred: write .*schemaHints"),
        ({"cleanSource": "DELETE"}, "lifecycle rule"),
        ({"cleanSource.retentionDuration": "30 days"}, "lifecycle rule"),
        ({"resourceTag.team": "games"}, "tag the queue"),
        ({"useManagedFileEvents": "true"}, "use cloudFiles.useNotifications with cloudFiles.queueUrl"),
        ({"roleArn": "arn:aws:iam::1:role/r"}, "AWS_PROFILE"),
        ({"tenantId": "t"}, "files are on S3"),
        ({"maxFileAge": "1 day"}, "all file names are remembered"),
        ({"maxFiles": "1"}, "is not known; known are cloudFiles.format"),
    ],
)
def test_refused_options_name_what_to_use_instead(changes: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match="SOURCE_OPTION_INVALID.*" + said):
        parsed(**changes)


def test_a_state_location_is_required_without_a_checkpoint() -> None:
    given = {name: value for name, value in GIVEN.items() if name != "sourceCheckpointLocation"}
    with pytest.raises(ConfigError, match=r"'stateLocation' is required: .*the jars of include/jars"):
        parse_cloud_files(given)


def test_columns_are_those_of_the_hints_and_of_rescued_data() -> None:
    given = {name: value for name, value in GIVEN.items() if name != "sourceCheckpointLocation"}
    hints = "id BIGINT, price DECIMAL(9,2), tags MAP<STRING, STRING>"
    assert declared_columns(given | {"cloudFiles.schemaHints": hints}) == f"{hints}, `_rescued_data` string"
    assert declared_columns(
        given | {"cloudFiles.schemaHints": "id long", "cloudFiles.schemaEvolutionMode": "none"}
    ) == ("id long")
    assert declared_columns(given | {"cloudFiles.format": "text"}) == "value string, `_rescued_data` string"
    with pytest.raises(ConfigError, match="no schema") as raised:
        declared_columns(given)
    assert "cloudFiles.schemaHints" in raised.value.hint
    with pytest.raises(ConfigError, match=r"nested field user.age: .*user struct<age: string>"):
        declared_columns(given | {"cloudFiles.schemaHints": "id long, user.age int"})


def test_csv_has_no_header_unless_declared() -> None:
    assert parsed(format="csv").source.csv.columns == ("id", "name")
    assert parsed(format="csv", header="true", sep="\\t").source.csv.delimiter == "\t"
    assert parsed(format="csv", header="true").source.csv.header


@dataclass
class Query:
    """Calls a reader as Spark does in `AvailableNow` runs; `offset` stands for the checkpoint."""

    options: dict[str, str]
    schema: StructType = IDS
    offset: dict[str, Any] | None = None
    batches: list[list[dict[str, Any]]] = field(default_factory=list)

    def reader(self) -> FileStreamReader:
        return FileStreamReader(parse_cloud_files(self.options, self.schema.names), self.schema)

    def drain(self) -> list[dict[str, Any]]:
        """The rows of one run."""
        reader, first = self.reader(), len(self.batches)
        reader.prepareForTriggerAvailableNow()
        while self.step(reader):
            pass
        reader.stop()
        return [row for batch in self.batches[first:] for row in batch]

    def step(self, reader: FileStreamReader) -> bool:
        """Reads the next batch; returns whether there was one."""
        start = self.offset or reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        if end == start:
            return False
        rows = []
        for partition in reader.partitions(start, end):
            in_task = pickle.loads(pickle.dumps(reader))
            rows += [row for batch in in_task.read(pickle.loads(pickle.dumps(partition))) for row in batch.to_pylist()]
        self.batches.append(rows)
        self.offset = json.loads(json.dumps(end))
        return True


def cloud_files(landing: Any, root: Path, **changes: str) -> dict[str, str]:
    return {
        "path": f"s3://{landing.bucket}/clicks",
        "cloudFiles.format": "json",
        "cloudFiles.awsAccessKey": "testing",
        "cloudFiles.awsSecretKey": "testing",
        "endpoint": landing.endpoint,
        "pathStyle": "true",
        "sourceCheckpointLocation": f"file://{root}/checkpoint/sources/0",
    } | changes


def put(landing: Any, *numbers: int, folder: str = "clicks") -> None:
    for number in numbers:
        landing.put(f"{folder}/{number:03}.json", body=b'{"id": %d}' % number)


def put_unannounced(landing: Any, *numbers: int) -> None:
    """Puts files that only a listing finds."""
    configuration = landing.s3.get_bucket_notification_configuration(Bucket=landing.bucket)
    configuration.pop("ResponseMetadata")
    landing.s3.put_bucket_notification_configuration(Bucket=landing.bucket, NotificationConfiguration={})
    put(landing, *numbers)
    landing.s3.put_bucket_notification_configuration(Bucket=landing.bucket, NotificationConfiguration=configuration)


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(row["id"] for row in rows)


def test_each_run_reads_new_files_once_and_batches_are_bounded(landing: Any, tmp_path: Path) -> None:
    query = Query(cloud_files(landing, tmp_path, **{"cloudFiles.maxFilesPerTrigger": "2"}))
    put(landing, *range(5))
    put(landing, 9, folder="other")
    assert ids(query.drain()) == [0, 1, 2, 3, 4]
    assert [len(batch) for batch in query.batches] == [2, 2, 1]
    assert query.drain() == []
    put(landing, 3, 5)  # the third again, which counts as read
    assert ids(query.drain()) == [5]
    another = Query(query.options | {"sourceCheckpointLocation": f"file://{tmp_path}/second/sources/0"})
    assert ids(another.drain()) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("allow", ["false", "true"])
def test_a_file_overwritten_before_it_is_read_gives_its_current_content(
    landing: Any, tmp_path: Path, allow: str
) -> None:
    query = Query(cloud_files(landing, tmp_path, **{"cloudFiles.allowOverwrites": allow}))
    put(landing, 1)
    reader = query.reader()
    reader.prepareForTriggerAvailableNow()
    landing.put("clicks/001.json", body=b'{"id": 7}')
    while query.step(reader):
        pass
    reader.stop()
    query.drain()
    assert [row["id"] for batch in query.batches for row in batch] == [7]


def test_existing_files_may_be_skipped(landing: Any, tmp_path: Path) -> None:
    query = Query(cloud_files(landing, tmp_path, **{"cloudFiles.includeExistingFiles": "false"}))
    put(landing, 1)
    time.sleep(1.1)  # objects' times have whole seconds
    assert query.drain() == []
    time.sleep(1.1)
    put(landing, 2)
    assert ids(query.drain()) == [2]


def test_a_running_query_lists_only_when_no_known_file_is_left(
    landing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_relay, "_LISTING_SECONDS", 0.0)
    passes: list[int] = []
    list_files = query_relay.QueryRelay._run_until_drained

    def counted(relay: query_relay.QueryRelay, *, lease_wait_seconds: float) -> None:
        passes.append(len(query.batches))
        list_files(relay, lease_wait_seconds=lease_wait_seconds)

    monkeypatch.setattr(query_relay.QueryRelay, "_run_until_drained", counted)
    query = Query(cloud_files(landing, tmp_path, **{"cloudFiles.maxFilesPerTrigger": "2"}))
    put(landing, *range(4))
    reader = query.reader()
    while query.step(reader):
        pass
    put(landing, 4)
    assert query.step(reader)
    reader.stop()
    assert [ids(batch) for batch in query.batches] == [[0, 1], [2, 3], [4]]
    assert passes == [0, 2, 2]


def test_listings_begin_after_the_last_name_if_names_grow(
    landing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "_KEYS_PER_PAGE", 2)
    options = {"cloudFiles.useIncrementalListing": "true", "cloudFiles.backfillInterval": "1 week"}
    query = Query(cloud_files(landing, tmp_path, **options))
    put(landing, 1, 2, 3, 4)
    assert ids(query.drain()) == [1, 2, 3, 4]
    put(landing, 0, 5)
    starts: list[str] = []
    list_pages = bucket_module._s3_pages

    def noted(*arguments: Any, start_after: str, **more: Any) -> Any:
        starts.append(start_after)
        return list_pages(*arguments, start_after=start_after, **more)

    monkeypatch.setattr(bucket_module, "_s3_pages", noted)
    assert ids(query.drain()) == [5]
    assert starts == ["clicks/004.json"]
    # The next complete listing finds the name that did not grow.
    query.options["cloudFiles.useIncrementalListing"] = "false"
    assert ids(query.drain()) == [0]


def test_notifications_and_the_first_listing_give_each_file_once(landing: Any, tmp_path: Path) -> None:
    landing.returns_after(20)
    put_unannounced(landing, 1, 2)
    notified = {"cloudFiles.useNotifications": "true", "cloudFiles.queueUrl": landing.queue_url}
    query = Query(cloud_files(landing, tmp_path, **notified))
    put(landing, 3)
    assert ids(query.drain()) == [1, 2, 3]
    put(landing, 4)
    assert ids(query.drain()) == [4]
    assert landing.waiting() == (0, 0)
    put(landing, 5)
    # Listing instead of the queue goes on with the same state.
    query.options = cloud_files(landing, tmp_path)
    assert ids(query.drain()) == [5]


def test_rescued_data_has_undeclared_fields_and_values_of_other_types(landing: Any, tmp_path: Path) -> None:
    query = Query(cloud_files(landing, tmp_path), RESCUING)
    landing.put(
        "clicks/1.json", body=b'{"id": 1}\n{"id": "x", "new": 12345678901234567890123}\n{"id": 2, "a": {"b": 1}}'
    )
    rows = {row["id"]: row["_rescued_data"] for row in query.drain()}
    assert rows[1] is None
    assert json.loads(rows[2]) == {"a": {"b": 1}, "_file_path": "clicks/1.json"}
    assert rows[None] == '{"new":12345678901234567890123,"id":"x","_file_path":"clicks/1.json"}'


def test_a_local_folder_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "day=1"
    write_files(tmp_path, {"in/day=1/1.csv": "1,a\n2,b\n"})
    schema = StructType([StructField("id", LongType()), StructField("name", StringType())])
    options = {
        "path": str(tmp_path / "in"),
        "cloudFiles.format": "csv",
        "sourceCheckpointLocation": f"file://{tmp_path}/checkpoint/sources/0",
    }
    query = Query(options, schema)
    assert query.drain() == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    (folder / "2.csv").write_text("3,c\n")
    assert query.drain() == [{"id": 3, "name": "c"}]
