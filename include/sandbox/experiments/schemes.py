"""One layout of the engagement table, with everything an experiment does to it.

All sides run the same statements over the same rows; what differs is the partition columns, whether OPTIMIZE runs, and
the table's properties.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaworks.maintenance.table_health.measure import file_sizes_by_value
from deltaworks.mutations.merge import merge_settings
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.lake import Lake
from deltaworks.tables.spark.session import override_settings

DATE_COLUMN = "engagement_date"
_MERGE_TASKS_PER_CORE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """A layout by name. `zorder_by` empty means that OPTIMIZE never runs, as on most tables partitioned by date."""

    name: str
    partition_by: tuple[str, ...]
    zorder_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a query in order, and the seconds until it was planned, its table's log read and its files chosen."""

    rows: list[tuple[Any, ...]]
    planning_seconds: float


BY_DATE = Scheme(name="by_org_and_date", partition_by=("org_id", DATE_COLUMN))
BY_ORG = Scheme(name="by_org_zordered", partition_by=("org_id",), zorder_by=(DATE_COLUMN,))
BY_ORG_VECTORS = Scheme(
    name="by_org_deletion_vectors",
    partition_by=("org_id",),
    zorder_by=(DATE_COLUMN,),
    properties={"delta.enableDeletionVectors": "true"},
)


class SchemeTable:
    """The table of one scheme at `key` of a storage. One thread at a time."""

    def __init__(
        self, spark: SparkSession, storage: StorageSpec, key: str, scheme: Scheme, *, max_file_bytes: int
    ) -> None:
        self._spark = spark
        self._lake = Lake(storage)
        self._key = key
        self.scheme = scheme
        self.uri = storage.spark_uri(key)
        tasks = str(spark.sparkContext.defaultParallelism)
        # Merged tasks would write a batch of any scheme on one core: small as the rows are, the files are many.
        self._settings = {
            "spark.sql.adaptive.coalescePartitions.enabled": "false",
            "spark.sql.shuffle.partitions": tasks,
            "spark.databricks.delta.optimize.maxFileSize": str(max_file_bytes),
        }
        # As a mutation batch merges: what a partition has beyond a file's size is split, and so shared among tasks.
        self._merge_settings = (
            self._settings
            | merge_settings(target_bytes=0, cores=_MERGE_TASKS_PER_CORE * int(tasks))
            | {"spark.databricks.delta.optimizeWrite.binSize": f"{max(1, max_file_bytes >> 20)}MB"}
        )
        self._tasks = int(tasks)
        self._max_file_bytes = max_file_bytes

    def append(self, rows: DataFrame) -> None:
        """One batch of a stream: each partition it touches gets one file."""
        with override_settings(self._spark, self._settings):
            placed = rows.repartition(self._tasks, *self.scheme.partition_by)
            writer = placed.write.format("delta").mode("append").partitionBy(*self.scheme.partition_by)
            for name, value in self.scheme.properties.items():
                writer = writer.option(name, value)
            writer.save(self.uri)

    def update(self, requests: DataFrame, mutation: int) -> None:
        """A mutation batch: one MERGE that renames contacts by the id they arrived with."""
        requests.createOrReplaceTempView("experiment_requests")
        try:
            with override_settings(self._spark, self._merge_settings):
                self._spark.sql(
                    f"MERGE INTO delta.`{self.uri}` AS t USING experiment_requests AS s "
                    "ON t.org_id = s.org_id AND t.origin_contact_id = s.id "
                    f"WHEN MATCHED THEN UPDATE SET contact_id = s.new_id, _mutation = {mutation}"
                ).collect()
        finally:
            self._spark.catalog.dropTempView("experiment_requests")

    def optimize(self) -> None:
        """Z-order the organisations that have more than one file; nothing where the scheme has no OPTIMIZE.

        An organisation that fits one file is only compacted: within one file there is nothing to skip by.
        """
        if not self.scheme.zorder_by:
            return
        sizes = {org: files for org, files in self.sizes_by_org().items() if len(files) > 1}
        large = sorted(org for org, files in sizes.items() if sum(files) > self._max_file_bytes)
        by = ", ".join(self.scheme.zorder_by)
        with override_settings(self._spark, self._settings):
            for orgs, order in ((large, f" ZORDER BY ({by})"), (sorted(set(sizes) - set(large)), "")):
                if orgs:
                    where = ", ".join(f"'{org}'" for org in orgs)
                    self._spark.sql(f"OPTIMIZE delta.`{self.uri}` WHERE org_id IN ({where}){order}").collect()

    def read(self, where: str, select: str) -> Answer:
        """An aggregating query over the table."""
        with override_settings(self._spark, self._settings):
            started = time.perf_counter()
            query = self._spark.sql(f"SELECT {select} FROM delta.`{self.uri}` WHERE {where} GROUP BY 1")
            # Delta reads its log and chooses files while the query is planned, which `collect` does not do again.
            query._jdf.queryExecution().executedPlan()
            planned = time.perf_counter() - started
            rows = query.collect()
        return Answer(sorted((tuple(row) for row in rows), key=repr), planned)

    def fingerprint(self) -> tuple[int, int]:
        """The number of rows and a sum over all their columns, equal for tables that hold the same rows."""
        table = self._spark.read.format("delta").load(self.uri)
        digest = F.sum(F.xxhash64(*sorted(table.columns)).cast("decimal(38,0)"))
        row = table.agg(F.count(F.lit(1)), digest).first()
        return (int(row[0]), int(row[1] or 0)) if row is not None else (0, 0)

    def sizes_by_org(self) -> dict[str, list[int]]:
        """Bytes of every file by organisation, from the log."""
        sizes_by_org = file_sizes_by_value(self._lake, self._key, "org_id")
        return {str(org): sizes for org, sizes in sizes_by_org.items()}
