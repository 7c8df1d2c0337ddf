"""An engagement table with notifications and a change data feed, after several stream batches and one mutation
batch."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.harness import Clock
from deltaworks.control import paths
from deltaworks.mutations.read_changes import Changes, read_changes
from deltaworks.specs.project import load_catalog
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.changes import ChangePosition, ChangeSource
from sandbox.experiments.engagement_rows import Workload, batch_rows, rename_requests
from sandbox.experiments.schemes import BY_ORG, SchemeTable

PIPELINE, DATA, NOTIFICATIONS = "engagement", "activities", "notifications"
CHANGE_SOURCES: tuple[ChangeSource, ...] = ("notifications", "change_feed")
_NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_FILE_BYTES = 32 << 20


class ChangedTable:
    """A table at the engagement pipeline's path, with a change data feed, and a copy of it without the feed."""

    def __init__(self, spark: SparkSession, storage: StorageSpec, workload: Workload) -> None:
        declared = load_catalog(skip_invalid=True)
        environment = declared.environment.model_copy(update={"lake": storage})
        self._spark, self._storage, self.workload = spark, storage, workload
        self._catalog = replace(declared, environment=environment)
        feed = replace(BY_ORG, name="with_feed", properties={"delta.enableChangeDataFeed": "true"})
        key, plain = paths.table(PIPELINE, DATA), paths.table(PIPELINE, f"{DATA}_plain")
        self._feed = SchemeTable(spark, storage, key, feed, max_file_bytes=_FILE_BYTES)
        self._plain = SchemeTable(spark, storage, plain, BY_ORG, max_file_bytes=_FILE_BYTES)
        self._since: dict[ChangeSource, ChangePosition] = {}
        self._mutations = {True: 1, False: 1}

    def fill(self, progress: Callable[[str], None]) -> dict[ChangeSource, int]:
        """Lands all batches and applies a mutation batch. Returns the number of rows each way of reading returns when
        it starts before the last batch.
        """
        last = self.workload.load_batches - 1
        for batch in range(last + 1):
            if batch == last:
                self._since = {way: self._changes(way, None).position for way in CHANGE_SOURCES}
            # `_seq` and `_position` identify a row, as in tables written by a stream.
            rows = batch_rows(self._spark, self.workload, batch)
            rows = rows.withColumn("_seq", F.xxhash64("engagement_id")).withColumn("_position", F.lit(0).cast("long"))
            for table in (self._feed, self._plain):
                table.append(rows)
            self._append_notifications(rows, batch, "stream")
            progress(f"batch {batch + 1} of {last + 1}")
        requests = rename_requests(self._spark, self.workload, 1, last + 1)
        for table in (self._feed, self._plain):
            table.update(requests, 1)
        self._append_notifications(self._read_table().where("_mutation = 1"), 1, "mutation")
        return {way: self._changes(way, self._since[way]).rows.count() for way in CHANGE_SOURCES}

    def poll(self, way: ChangeSource, clock: Clock) -> None:
        """Reads all rows that changed since the position before the last batch."""
        with clock:
            _collect(self._changes(way, self._since[way]).rows)

    def full_read(self, clock: Clock) -> None:
        """Reads all rows of the table."""
        with clock:
            _collect(self._read_table())

    def merge(self, feed: bool, clock: Clock) -> None:
        """Applies another mutation batch, to the table with the feed (`feed`) or to the one without."""
        self._mutations[feed] += 1
        number = self._mutations[feed]
        requests = rename_requests(self._spark, self.workload, number, self.workload.load_batches).persist()
        requests.count()
        with clock:
            (self._feed if feed else self._plain).update(requests, number)
        requests.unpersist()

    def _read_table(self) -> DataFrame:
        return self._spark.read.format("delta").load(self._feed.uri)

    def _changes(self, way: ChangeSource, since: ChangePosition | None) -> Changes:
        name = f"{PIPELINE}.{DATA}"
        return read_changes(self._spark, name, since, tombstones=True, source=way, catalog=self._catalog)

    def _append_notifications(self, rows: DataFrame, number: int, kind: str) -> None:
        gathered = rows.groupBy("org_id", "engagement_date").agg(F.collect_list("engagement_id").alias("keys"))
        notifications = gathered.select(
            "org_id",
            "engagement_date",
            F.lit(_NOW).alias("ingested_at"),
            F.lit(_NOW.date()).alias("ingested_date"),
            F.lit("insert" if kind == "stream" else "rename").alias("change"),
            "keys",
            F.lit(number).cast("long").alias("batch"),
            F.lit(kind).alias("batch_kind"),
            F.lit(None).cast("long").alias("data_version"),
        )
        writer = notifications.repartition(2, "org_id").write.format("delta").mode("append")
        writer.partitionBy("org_id", "ingested_date").save(
            self._storage.spark_uri(paths.table(PIPELINE, NOTIFICATIONS))
        )


def _collect(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()
