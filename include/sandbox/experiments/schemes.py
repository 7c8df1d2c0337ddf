"""Table layouts of the engagement table, and the operations that an experiment runs on them.

All layouts run the same statements over the same rows. They differ in partition columns, table properties, and whether
OPTIMIZE runs.
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
from deltaworks.tables.spark_session import override_settings

DATE_COLUMN = "engagement_date"
_MERGE_TASKS_PER_CORE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """A named table layout. Without `zorder_by`, OPTIMIZE never runs, as for most tables partitioned by date."""

    name: str
    partition_by: tuple[str, ...]
    zorder_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The sorted rows of a query, and the seconds of its planning, which includes reading the Delta log and selecting
    files.
    """

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
    """The table of one layout at `key` in a storage. Not thread-safe."""

    def __init__(
        self, spark: SparkSession, storage: StorageSpec, key: str, scheme: Scheme, *, max_file_bytes: int
    ) -> None:
        self._spark = spark
        self._lake = Lake(storage)
        self._key = key
        self.scheme = scheme
        self.uri = storage.spark_uri(key)
        tasks = str(spark.sparkContext.defaultParallelism)
        # Without coalescing: a batch has few bytes but many files, and coalesced tasks would write them on one core.
        self._settings = {
            "spark.sql.adaptive.coalescePartitions.enabled": "false",
            "spark.sql.shuffle.partitions": tasks,
            "spark.databricks.delta.optimize.maxFileSize": str(max_file_bytes),
        }
        # Settings of a mutation batch's MERGE: partitions larger than a file are split among tasks.
        self._merge_settings = (
            self._settings
            | merge_settings(target_bytes=0, cores=_MERGE_TASKS_PER_CORE * int(tasks))
            | {"spark.databricks.delta.optimizeWrite.binSize": f"{max(1, max_file_bytes >> 20)}MB"}
        )
        self._tasks = int(tasks)
        self._max_file_bytes = max_file_bytes

    def append(self, rows: DataFrame) -> None:
        """Appends one batch, with one file per partition."""
        with override_settings(self._spark, self._settings):
            repartitioned = rows.repartition(self._tasks, *self.scheme.partition_by)
            writer = repartitioned.write.format("delta").mode("append").partitionBy(*self.scheme.partition_by)
            for name, value in self.scheme.properties.items():
                writer = writer.option(name, value)
            writer.save(self.uri)

    def update(self, requests: DataFrame, mutation: int) -> None:
        """Runs a mutation batch: one MERGE that renames contacts by their original id."""
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
        """Runs OPTIMIZE for organisations with several files; does nothing for a layout without Z-order.

        Organisations whose files fit into one are only compacted, because data skipping needs several files.
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

    def read(self, where: str, select: str) -> ReadResult:
        """Runs an aggregation over the table."""
        with override_settings(self._spark, self._settings):
            started = time.perf_counter()
            query = self._spark.sql(f"SELECT {select} FROM delta.`{self.uri}` WHERE {where} GROUP BY 1")
            # Planning reads the Delta log and selects files; `collect` does not repeat it.
            query._jdf.queryExecution().executedPlan()
            planned = time.perf_counter() - started
            rows = query.collect()
        return ReadResult(sorted((tuple(row) for row in rows), key=repr), planned)

    def fingerprint(self) -> tuple[int, int]:
        """Returns the row count and a hash sum over all columns; tables with the same rows have equal fingerprints."""
        table = self._spark.read.format("delta").load(self.uri)
        digest = F.sum(F.xxhash64(*sorted(table.columns)).cast("decimal(38,0)"))
        row = table.agg(F.count(F.lit(1)), digest).first()
        return (int(row[0]), int(row[1] or 0)) if row is not None else (0, 0)

    def sizes_by_org(self) -> dict[str, list[int]]:
        """Returns the sizes of all files in bytes by organisation, from the Delta log."""
        sizes_by_org = file_sizes_by_value(self._lake, self._key, "org_id")
        return {str(org): sizes for org, sizes in sizes_by_org.items()}
