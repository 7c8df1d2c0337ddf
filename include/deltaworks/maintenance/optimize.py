"""OPTIMIZE with Z-order on the partitions that it improves, and on no others.

Z-order rewrites every file of a partition each time it runs, so a partition is taken only when rows came to it since
the last OPTIMIZE and it has more than one file. What was looked at is in the commit, so a second run finds nothing
to do. Appends go on meanwhile: neither side waits for the other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.provenance import user_metadata
from deltaworks.errors import ConfigError
from deltaworks.maintenance.commit_info import USER_METADATA, session_settings
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec, TableSpec
from deltaworks.tables.changes import changed_partitions
from deltaworks.tables.health import files_per_partition
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history

OPERATION = "optimize"
#: Key of `userMetadata`: the version whose partitions this OPTIMIZE has dealt with.
LOOKED_AT = "looked_at_version"
#: Partitions are taken in groups of about this size, each one commit, so that a job that dies keeps what it did.
BYTES_PER_COMMIT = 16 << 30


@dataclass(frozen=True, slots=True)
class OptimizeResult:
    """What became of one table. Counts are of the partitions that were taken."""

    table: str
    reason: str
    partitions: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    seconds: float = 0.0

    @property
    def skipped(self) -> bool:
        """Whether there was nothing to do."""
        return self.partitions == 0


@dataclass(frozen=True, slots=True)
class _Candidates:
    """The partitions to take, with their files' sizes, as of `version`."""

    version: int
    sizes: dict[str, list[int]]
    reason: str


def optimize_tables(
    spark: SparkSession, catalog: Catalog, pipeline: str, *, tables: Sequence[str] | None = None
) -> list[OptimizeResult]:
    """Run OPTIMIZE ZORDER BY on the bronze tables of a pipeline that declare `zorder_by`.

    Idempotent. Beside deletes, updates and merges of the same partitions either side may fail with a conflict.

    Args:
        tables: names of bronze tables; by default all.

    Raises:
        ConfigError: TABLE_UNKNOWN.
    """
    spec = catalog.pipeline(pipeline)

    lake = Lake(catalog.environment.lake)
    return [_optimize(spark, lake, spec, table) for table in selected_tables(spec, tables)]


def selected_tables(spec: PipelineSpec, names: Sequence[str] | None) -> list[TableSpec]:
    """The bronze tables called `names`, or all.

    Raises:
        ConfigError: TABLE_UNKNOWN.
    """
    known = {table.name: table for table in spec.tables}
    unknown = sorted(set(names or ()) - set(known))
    if unknown:
        raise ConfigError(
            "TABLE_UNKNOWN",
            f"Pipeline {spec.pipeline!r} has no bronze table {', '.join(unknown)}.",
            hint=f"Its bronze tables are {', '.join(known)}.",
        )
    return [table for name, table in known.items() if not names or name in names]


def _optimize(spark: SparkSession, lake: Lake, spec: PipelineSpec, table: TableSpec) -> OptimizeResult:
    started = time.monotonic()
    if not table.zorder_by:
        return OptimizeResult(table.name, "it declares no zorder_by")
    if table.partition_by != ("event_date",):
        return OptimizeResult(table.name, f"it is partitioned by {', '.join(table.partition_by)}, not by event_date")
    key = paths.table(spec.pipeline, table.name)
    found = _candidates(lake, key, table.partition_by[0])
    if not found.sizes:
        return OptimizeResult(table.name, found.reason)
    groups = list(_groups(found.sizes))
    files_after = bytes_after = 0
    for ordinal, dates in enumerate(groups, start=1):
        # Only the last commit says that the table was looked at: after a crash the rest is found again.
        done = {LOOKED_AT: found.version} if ordinal == len(groups) else {}
        made = user_metadata(pipeline=spec.pipeline, batch=f"{found.version}.{ordinal}", operation=OPERATION, **done)
        added, size = _run(spark, lake.storage.spark_uri(key), table, dates, made)
        files_after, bytes_after = files_after + added, bytes_after + size
    return OptimizeResult(
        table=table.name,
        reason=found.reason,
        partitions=len(found.sizes),
        files_before=sum(len(sizes) for sizes in found.sizes.values()),
        files_after=files_after,
        bytes_before=sum(sum(sizes) for sizes in found.sizes.values()),
        bytes_after=bytes_after,
        seconds=time.monotonic() - started,
    )


def _candidates(lake: Lake, key: str, column: str) -> _Candidates:
    opened = lake.open(key)
    if opened is None:
        return _Candidates(-1, {}, "it does not exist yet")
    version = opened.version()
    changes = changed_partitions(lake, key, after_version=_looked_at(lake, key, version), up_to_version=version)
    changed = changes.values(column)
    sizes = {
        value: sizes
        for value, sizes in files_per_partition(lake, key, column).items()
        if value is not None and len(sizes) > 1 and (changed is None or value in changed)
    }
    if sizes:
        return _Candidates(version, sizes, f"{len(sizes)} partition(s) changed and have more than one file")
    if changed is not None and not changed:
        return _Candidates(version, {}, "nothing came since the last OPTIMIZE")
    return _Candidates(version, {}, "every changed partition has one file")


def _looked_at(lake: Lake, key: str, version: int) -> int | None:
    """The version the last OPTIMIZE of ours dealt with, -1 when the log reaches back to birth without one."""
    oldest = version + 1
    for commit in commit_history(lake, key, newest=version):
        if LOOKED_AT in commit.metadata:
            return int(commit.metadata[LOOKED_AT])
        oldest = commit.version
    return -1 if oldest == 0 else None


def _groups(sizes: dict[str, list[int]]) -> Iterator[list[str]]:
    """Partitions, oldest first, in groups of at most BYTES_PER_COMMIT, one at least."""
    group: list[str] = []
    held = 0
    for value in sorted(sizes):
        size = sum(sizes[value])
        if group and held + size > BYTES_PER_COMMIT:
            yield group
            group, held = [], 0
        group.append(value)
        held += size
    if group:
        yield group


def _run(spark: SparkSession, uri: str, table: TableSpec, dates: Sequence[str], made: str) -> tuple[int, int]:
    """One OPTIMIZE command; the files it wrote and their bytes."""
    where = ", ".join(f"DATE'{date}'" for date in dates)
    by = ", ".join(f"`{name}`" for name in table.zorder_by)
    with session_settings(spark, {USER_METADATA: made}):
        row = spark.sql(f"OPTIMIZE delta.`{uri}` WHERE `{table.partition_by[0]}` IN ({where}) ZORDER BY ({by})").first()
    metrics = row["metrics"] if row is not None else None
    if metrics is None:
        return 0, 0
    return int(metrics["numFilesAdded"]), int(metrics["filesAdded"]["totalSize"])
