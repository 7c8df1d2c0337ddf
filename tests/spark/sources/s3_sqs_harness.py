"""One landing bucket read twice: by `format("s3-sqs")` from its queue, and by a pipeline whose relay lists it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from deltaworks.engine.runner import IngestRun
from deltaworks.operations.stream_parts import STREAM_PARTS
from deltaworks.sources.objects.file_event_log import FileEventLog
from deltaworks.sources.objects.relay.relay import Relay
from deltaworks.sources.spark_formats.reader import FILE_QUARANTINE_KEY
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.lake import Lake
from deltaworks.testing import declare_pipeline, load_project, table_rows

#: `(key, position, reasons)` of what gave no row.
Unread = list[tuple[str, int, str]]


class S3SqsHarness:
    """A bucket with its queue, a state beside it, and queries that note what each batch held."""

    def __init__(self, spark: SparkSession, landing: Any, root: Path) -> None:
        self.spark, self.landing, self.root = spark, landing, root
        self.state = f"file://{root}/state"
        self.batches: list[tuple[int, list[dict[str, Any]]]] = []

    def options(self, **changes: str) -> dict[str, str]:
        return {
            "queueUrl": self.landing.queue_url,
            "fileFormat": "json",
            "region": "us-east-1",
            "endpoint": self.landing.endpoint,
            "pathStyle": "true",
            "accessKey": "env:DELTAWORKS_AWS_ACCESS_KEY",
            "secretKey": "env:DELTAWORKS_AWS_SECRET_KEY",
            "stateLocation": self.state,
        } | changes

    def frame(self, *, schema: str, **options: str) -> DataFrame:
        """A frame of these columns."""
        return self.spark.readStream.format("s3-sqs").options(**self.options(**options)).schema(schema).load()

    def drain(self, *, schema: str, checkpoint: str = "c", **options: str) -> list[tuple[int, list[Any]]]:
        """What one AvailableNow run gives: the rows of each batch."""
        self.batches = []

        def note(batch: DataFrame, batch_id: int) -> None:
            self.batches.append((batch_id, sorted(batch.toArrow().to_pylist(), key=str)))

        writer = self.frame(schema=schema, **options).writeStream.foreachBatch(note)
        query = writer.option("checkpointLocation", f"{self.root}/{checkpoint}").trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return self.batches

    def rows(self) -> list[dict[str, Any]]:
        """All rows of the last run."""
        return [row for _, rows in self.batches for row in rows]

    def keys(self) -> list[str]:
        return [row["_key"] for row in self.rows()]

    def unread(self) -> Unread:
        found = Lake(StorageSpec(root=self.state)).rows(FILE_QUARANTINE_KEY)
        rows = [] if found is None else found.to_pylist()
        return sorted((row["key"], row["position"], row["reason"]) for row in rows)


class PipelineHarness:
    """A pipeline of one table over the same bucket, on a lake of its own."""

    def __init__(self, spark: SparkSession, landing: Any, root: Path, columns: Sequence[dict[str, Any]]) -> None:
        self._spark, self._landing, self._root = spark, landing, root
        self._columns = list(columns)

    def run(self, **source: Any) -> tuple[list[dict[str, Any]], Unread]:
        """List the bucket, land its objects: the table's rows with `_key`, and what is in quarantine."""
        catalog = self._project(source)
        spec = catalog.relay("landing")
        counts = Relay(
            spec, lake=catalog.environment.lake, queue=None, landing=catalog.environment.landing, until_drained=True
        ).run()
        assert counts.events
        IngestRun(self._spark, catalog, "shop", parts=STREAM_PARTS, available_now=True).run()
        lake = Lake(catalog.environment.lake)
        keys = {row["seq"]: row["key"] for row in FileEventLog(lake, "landing").read(0).to_pylist()}
        return (
            [row | {"_key": keys[row["_seq"]]} for row in table_rows(lake, "shop", "events")],
            sorted(
                (row["object_key"], row["_position"], ",".join(reason["code"] for reason in row["reasons"]))
                for row in table_rows(lake, "shop", "quarantine")
            ),
        )

    def _project(self, source: dict[str, Any]) -> Catalog:
        places = {"landing": self._landing.storage, "messaging": self._landing.messaging}
        environment = {key: spec.model_dump(mode="json", exclude_none=True) for key, spec in places.items()}
        relay = {"relay": "landing", "buckets": [self._landing.bucket], "listing": {}, "lease_ttl_seconds": 3}
        declared = declare_pipeline(
            {"name": "events", "catch_all": True, "columns": self._columns},
            source={"kind": "cloud_files", "relay": "landing", "bucket": self._landing.bucket} | source,
            event={"name": {"constant": "e"}, "time": {"path": "_partition.day"}},
            stream={"tasks_per_batch": 2, "lease_ttl_seconds": 3},
        )
        options = {"lake": self._root, "environment": environment, "relays": [relay]}
        return load_project(self._root / "project", declared, **options)
