"""Runs VACUUM with Spark, for tables with unsupported features."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from deltaworks.control.provenance import parse_user_metadata
from deltaworks.maintenance.vacuum_holds import MINIMUM_RETENTION_HOURS
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history
from deltaworks.tables.protected_files import existing_files
from deltaworks.tables.vacuum_candidates import LogTooShort

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    # Must be off: otherwise Delta 4.1 and later ignore RETAIN.
    "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false",
    # Must be on for VACUUM to be recorded in the history of a table on S3.
    "spark.databricks.delta.vacuum.logging.enabled": "true",
    "spark.databricks.delta.vacuum.parallelDelete.enabled": "true",
}
_RETENTION_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"
#: VACUUM lists folders in this many tasks; the default of 10,000 takes 40 s for an empty table on two cores.
_LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
#: Error class of Delta if the log no longer reaches back to the last VACUUM.
_LITE_UNAVAILABLE = re.compile(r"DELTA_CANNOT_VACUUM_LITE")


def vacuum_with_spark(
    spark: SparkSession, lake: Lake, key: str, *, hours: int, full: bool, dry_run: bool, version: int, metadata: str
) -> tuple[int, int]:
    """Runs VACUUM. Returns the number of files deleted and their bytes (in a dry run: to be deleted).

    Args:
        version: version of the table before VACUUM.
        metadata: the `userMetadata` of the commits.

    Raises:
        LogTooShort: as `vacuum_files`.
    """
    from deltaworks.tables.spark.session import USER_METADATA, override_settings

    mode = "FULL" if full else "LITE"
    command = f"VACUUM delta.`{lake.storage.spark_uri(key)}` {mode} RETAIN {hours} HOURS"
    tasks = str(max(8, 4 * spark.sparkContext.defaultParallelism))
    checked = str(hours >= MINIMUM_RETENTION_HOURS).lower()
    settings = {**_SETTINGS, _RETENTION_CHECK: checked, _LISTING_TASKS: tasks, USER_METADATA: metadata}
    try:
        with override_settings(spark, settings):
            if dry_run:
                return _count_files(lake, [row["path"] for row in spark.sql(f"{command} DRY RUN").toLocalIterator()])
            spark.sql(command).collect()
    except Exception as error:
        if full or not _LITE_UNAVAILABLE.search(str(error)):
            raise
        raise LogTooShort from error
    return _count_deleted(lake, key, after_version=version, metadata=metadata)


def _count_files(lake: Lake, uris: Sequence[str]) -> tuple[int, int]:
    """Returns the number of files among these paths, without folders, and their bytes."""
    # Not a URI parser: Hadoop writes these paths unescaped, so % and # are part of names.
    locations = [re.sub(r"^[a-z0-9]+:(//)?", "", uri) for uri in uris]
    sizes = [info.size or 0 for info in existing_files(lake, locations)]
    return len(sizes), sum(sizes)


def _count_deleted(lake: Lake, key: str, *, after_version: int, metadata: str) -> tuple[int, int]:
    """Returns the files and bytes that this VACUUM deleted, from its commits (END has files, START has bytes)."""
    opened = lake.open(key)
    newest = opened.version() if opened else after_version
    own_metadata = parse_user_metadata(metadata)
    metrics: dict[str, Any] = {}
    for commit in commit_history(lake, key, newest=newest, limit=newest - after_version):
        if commit.operation.startswith("VACUUM") and commit.metadata == own_metadata:
            metrics |= commit.metrics
    return int(metrics.get("numDeletedFiles", 0)), int(metrics.get("sizeOfDataToDelete", 0))
