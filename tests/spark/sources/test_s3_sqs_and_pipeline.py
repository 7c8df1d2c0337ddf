"""One bucket read by `format("s3-sqs")` and by a pipeline: equal rows, and equal reasons for rejected content.

Uses our own formats and published test vectors, which are not part of the checkout.
"""

from __future__ import annotations

import datetime as dt
import gzip
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from deltaworks.sources.objects.file_event_log import FileEventLog, message_quarantine_key
from deltaworks.sources.objects.relay.relay import Relay
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.lake import Lake
from deltaworks.testing import present
from tests.shared_data import SHARED_DATA
from tests.spark.sources.s3_sqs_harness import PipelineHarness, S3SqsHarness

pytestmark = pytest.mark.integration
published = pytest.mark.skipif(not SHARED_DATA.is_dir(), reason=f"the published vectors are not at {SHARED_DATA}")
SHOP = {"id": "long", "at": "timestamp", "name": "string", "price": "decimal(12,2)", "tags": "array<string>"}
ROWS = [
    {"id": 1, "at": "2026-01-02T03:04:05.000006Z", "name": "ä+ b", "price": 4.99, "tags": ["x", "y"]},
    {"id": 2, "at": "2026-01-02T03:04:05Z", "name": None, "price": None, "tags": None},
]


def parquet() -> bytes:
    rows = [row | {"at": dt.datetime.fromisoformat(str(row["at"]))} for row in ROWS]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


LINES = b"1 2026-01-02T03:04:05Z some name\n2 never name\nno line of ours\n"
TABS = b"#Version: 1.0\n#Fields: id at name\n1\t2026-01-02T03:04:05Z\tb\n2\t-\t-\n3\n"
CSV = b'id,at,name,price,tags\n1,2026-01-02T03:04:05Z,"a,b",4.99,"[""x""]"\n2,,,,\n3,x\n'
BODIES: dict[str, list[bytes]] = {
    "json": [
        b"\n".join(map(orjson.dumps, ROWS)),
        gzip.compress(orjson.dumps(ROWS)),
        b'{"id": 3, "price": 1.234}{"id": 4, "at": "never"}[]7{"id": 5',
        b"",
        parquet(),
        gzip.compress(orjson.dumps(ROWS))[:-9],
        b"\xef\xbb\xbf" + orjson.dumps(ROWS[0]),
    ],
    "csv": [CSV, gzip.compress(CSV), b"id,id\n1,2\n"],
    "tsv": [TABS, gzip.compress(TABS), b"1\t2\n"],
    "text": [LINES, gzip.compress(LINES), b"\x89PNG"],
    "parquet": [parquet(), gzip.compress(parquet()), parquet()[:200], b'{"id": 1}'],
}
PATTERN = r"(?P<id>\d+) (?P<at>\S+) (?P<name>.*)"


@pytest.fixture
def harness(spark: SparkSession, landing: Any, tmp_path: Path) -> S3SqsHarness:
    landing.returns_after(30)
    return S3SqsHarness(spark, landing, tmp_path)


def read_both_ways(
    harness: S3SqsHarness, columns: Mapping[str, str], *, options: Mapping[str, str], source: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], list[tuple[str, int, str]]]:
    """The rows and what gave none, seen to be the same from both."""
    declared = [{"name": name, "path": name, "type": kind} for name, kind in columns.items()]
    schema = ", ".join(f"`{name}` {kind}" for name, kind in columns.items()) + ", _key string, _position long"
    harness.drain(schema=schema, **options)
    rows, unread = PipelineHarness(harness.spark, harness.landing, harness.root, declared).run(
        partition_columns=["day"], **source
    )
    names = [*columns, "_key", "_position"]
    assert as_text(harness.rows(), names) == as_text(rows, names)
    assert harness.unread() == unread
    return harness.rows(), unread


def as_text(rows: list[dict[str, Any]], names: list[str]) -> list[tuple[str, ...]]:
    return sorted(tuple(str(row[name]) for name in names) for row in rows)


@pytest.mark.parametrize("form", sorted(BODIES))
def test_objects_of_each_format(harness: S3SqsHarness, form: str) -> None:
    for number, body in enumerate(BODIES[form]):
        harness.landing.put(f"day=2026-01-0{number + 1}/object", body=body)
    more = {"pattern": PATTERN} if form == "text" else {}
    source = {"format": form} | more
    rows, unread = read_both_ways(harness, SHOP, options={"fileFormat": form} | more, source=source)
    assert len(rows) >= 2
    assert {position == -1 for _, position, _ in unread} == ({True, False} if form != "parquet" else {True})


@published
def test_json_malformed_in_every_known_way(harness: S3SqsHarness) -> None:
    folder = SHARED_DATA / "malformed_json"
    bodies = {path.name: path.read_bytes() for path in folder.glob("*.json*") if path.suffix in (".json", ".jsonl")}
    with tarfile.open(folder / "test_parsing.tar.gz") as vectors:
        for member in vectors.getmembers():
            if member.isfile():
                found = present(vectors.extractfile(member))
                bodies[Path(member.name).name] = found.read()
    for name, body in bodies.items():
        harness.landing.put(f"day=2026-01-01/{name}", body=body)
    columns = {"a": "string", "ts": "timestamp", "lvl": "string", "idx": "long", "str": "string", "status": "int"}
    columns |= {"session_id": "string", "wad": "decimal(38,0)"}
    rows, unread = read_both_ways(harness, columns, options={"prefix": "day="}, source={"prefix": "day="})
    told = {key for key, _, _ in unread}
    accepted = {row["_key"] for row in rows}
    assert len(bodies) > 320
    # Nothing that was put is left without a row or a reason, but lists of nothing.
    silent = {name for name in bodies if f"day=2026-01-01/{name}" not in told | accepted}
    assert all(set(bodies[name]) <= set(b"[] \n") for name in silent)
    assert sum(row["status"] is not None for row in rows) == 100
    assert [row["idx"] for row in sorted(rows, key=lambda row: row["_position"]) if row["idx"]] == [1, 2, 3, 4, 5]


@published
@pytest.mark.parametrize("with_header", [True, False])
def test_logs_of_cloudfront(harness: S3SqsHarness, with_header: bool) -> None:
    folder = SHARED_DATA / "cloudfront_logs"
    names = {
        True: ["sample-cloudfront-access-logs.gz", "cloudfront_docs_example.log", "cloudfront.log"],
        False: ["cf-access-log-sample.gz", "E3HXCM7PFRG6HT.2023-04-24-21.d740d76bCloudFront.gz"],
    }[with_header]
    for name in names:
        harness.landing.put(f"day=2026-01-01/{name}", body=(folder / name).read_bytes())
    if with_header:
        options, source = {"fileFormat": "tsv"}, {"format": "tsv"}
        columns = {"datetime": "timestamp", "date": "date", "time": "string"}
    else:
        fields = [f"f{number}" for number in range(19)]
        columns = dict.fromkeys(fields, "string") | {"f0": "date", "f3": "long", "f8": "int"}
        options, source = {"fileFormat": "tsv", "columns": ",".join(fields)}, {"format": "tsv"}
        source |= {"tsv": {"columns": fields}}
    rows, unread = read_both_ways(harness, columns, options=options, source=source)
    assert len(rows) > (70 if with_header else 28_949)
    assert bool(unread) == with_header


@published
def test_published_messages(harness: S3SqsHarness) -> None:
    """The relay that a project runs and the one inside a query make the same of each message."""
    paths = [*(SHARED_DATA / "aws_event_samples").glob("*.json"), *(SHARED_DATA / "s3_event_messages").glob("*.json")]
    bodies = [path.read_text() for path in sorted(paths)]
    landing = harness.landing
    other = landing.sqs.create_queue(QueueName=landing.bucket + "-other")["QueueUrl"]
    for bucket in ("sourcebucket", "mybucket"):
        landing.s3.create_bucket(Bucket=bucket)
    landing.send(*bodies)
    # The third bucket that is named has a name no bucket may have any more.
    harness.drain(schema="id long, _key string, _position long", glob="*.jpg")
    landing.queue_url = other
    landing.send(*bodies)
    spec = landing.spec(buckets=("*",))
    counts = Relay(spec, lake=landing.lake, queue=landing.queue(), until_drained=True).run()
    assert counts.deleted == len(bodies) > 45

    logs = [FileEventLog(Lake(root), relay) for root, relay in ((StorageSpec(root=harness.state), "s3_sqs"),)]
    logs.append(FileEventLog(Lake(landing.lake), "landing"))
    names = ["bucket", "key", "etag", "size"]
    first, second = (as_text(log.read(0).to_pylist(), names) for log in logs)
    assert first == second
    assert ("sourcebucket", "Happy Face.jpg") in {row[:2] for row in first}
    held = [
        Lake(root).rows(message_quarantine_key(relay), columns=["body", "reason"])
        for root, relay in ((StorageSpec(root=harness.state), "s3_sqs"), (landing.lake, "landing"))
    ]
    assert held[0] is not None
    assert held[1] is not None
    assert as_text(held[0].to_pylist(), ["body", "reason"]) == as_text(held[1].to_pylist(), ["body", "reason"])
    # Announced and not there: told, and nothing stops.
    assert harness.rows() == []
    assert {(key, reason) for key, _, reason in harness.unread()} == {
        ("Happy Face.jpg", "object_missing"),
        ("HappyFace.jpg", "object_missing"),
    }
