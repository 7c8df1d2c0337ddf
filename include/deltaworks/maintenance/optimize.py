"""OPTIMIZE with Z-order on the partitions that it improves, and on no others.

Z-order rewrites every file of a partition each time it runs, so a partition is taken only when rows came to it since
the last OPTIMIZE and it has more than one file. What was looked at is in the commit, so a second run finds nothing
to do. Appends go on meanwhile: neither side waits for the other. A table that mutations merge is optimised under its
write turn, commit by commit, so that no merge meets it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.objects import open_objects
from deltaworks.control.provenance import OPTIMIZE, current_run, user_metadata
from deltaworks.control.write_turn import write_turn
from deltaworks.errors import ConfigError
from deltaworks.maintenance.commit_info import USER_METADATA, session_settings
from deltaworks.maintenance.layout import Layout
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec, TableSpec
from deltaworks.tables.changes import Partition, changed_partitions
from deltaworks.tables.health import files_by_partition
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history
from deltaworks.tables.partitions import within

#: Key of `userMetadata`: the version whose partitions this OPTIMIZE has dealt with.
LOOKED_AT = "looked_at_version"
#: Partitions are taken in groups of about this size, each one commit, so that a job that dies keeps what it did.
BYTES_PER_COMMIT = 16 << 30
#: And as many are named in one command.
PARTITIONS_PER_COMMIT = 1_000


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


class Turn(Protocol):
    """The right to commit to a table alone."""

    def check(self) -> None:
        """Refuse to go on without it."""


TurnOf = Callable[[], AbstractContextManager[Turn]]


@dataclass(frozen=True, slots=True)
class _Candidates:
    """The partitions to take, with their files' sizes, as of `version`."""

    version: int
    sizes: dict[Partition, list[int]]
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
    lake, objects = Lake(catalog.environment.lake), open_objects(catalog.environment.lake)
    results = []
    for table in selected_tables(spec, tables):
        turn_of: TurnOf = free_turn
        if table.mutable is not None:
            turn_of = partial(write_turn, objects, pipeline, table.name, by=current_run())
        results.append(optimize_table(spark, lake, pipeline, Layout.of(table), turn_of=turn_of))
    return results


@contextlib.contextmanager
def free_turn() -> Iterator[Turn]:
    """The turn of a table that its writers need not be kept from."""

    class Free:
        def check(self) -> None:
            """Appends do not conflict."""

    yield Free()


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


def optimize_table(
    spark: SparkSession, lake: Lake, pipeline: str, layout: Layout, *, turn_of: TurnOf = free_turn
) -> OptimizeResult:
    """Run OPTIMIZE ZORDER BY on one table of a pipeline. Idempotent.

    Args:
        turn_of: gives the right to commit, taken anew for each commit.
    """
    started = time.monotonic()
    if not layout.zorder_by:
        return OptimizeResult(layout.name, "it declares no zorder_by")
    key = paths.table(pipeline, layout.name)
    found = _candidates(lake, key, layout.partition_by)
    if not found.sizes:
        return OptimizeResult(layout.name, found.reason)
    groups = list(_groups(found.sizes))
    files_after = bytes_after = 0
    for ordinal, partitions in enumerate(groups, start=1):
        # Only the last commit says that the table was looked at: after a crash the rest is found again.
        done = {LOOKED_AT: found.version} if ordinal == len(groups) else {}
        made = user_metadata(pipeline=pipeline, batch=f"{found.version}.{ordinal}", operation=OPTIMIZE, **done)
        with turn_of() as turn:
            turn.check()
            added, size = _run(spark, lake.storage.spark_uri(key), layout, partitions, made)
        files_after, bytes_after = files_after + added, bytes_after + size
    return OptimizeResult(
        table=layout.name,
        reason=found.reason,
        partitions=len(found.sizes),
        files_before=sum(len(sizes) for sizes in found.sizes.values()),
        files_after=files_after,
        bytes_before=sum(sum(sizes) for sizes in found.sizes.values()),
        bytes_after=bytes_after,
        seconds=time.monotonic() - started,
    )


def _candidates(lake: Lake, key: str, partition_by: tuple[str, ...]) -> _Candidates:
    opened = lake.open(key)
    if opened is None:
        return _Candidates(-1, {}, "it does not exist yet")
    version = opened.version()
    changes = changed_partitions(lake, key, after_version=_looked_at(lake, key, version), up_to_version=version)
    changed = None if changes.everything else changes.partitions
    sizes = {
        partition: sizes
        for partition, sizes in files_by_partition(lake, key).items()
        if len(sizes) > 1
        and {name for name, _ in partition} == set(partition_by)
        # A partition of rows without a value gathers what has gone wrong; ordering it helps nobody.
        and all(value is not None for _, value in partition)
        and (changed is None or partition in changed)
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


def _groups(sizes: dict[Partition, list[int]]) -> Iterator[list[Partition]]:
    """Partitions, oldest first, in groups of at most BYTES_PER_COMMIT, one at least."""
    group: list[Partition] = []
    held = 0
    for partition in sorted(sizes, key=str):
        size = sum(sizes[partition])
        if group and (held + size > BYTES_PER_COMMIT or len(group) >= PARTITIONS_PER_COMMIT):
            yield group
            group, held = [], 0
        group.append(partition)
        held += size
    if group:
        yield group


def _run(spark: SparkSession, uri: str, layout: Layout, partitions: Sequence[Partition], made: str) -> tuple[int, int]:
    """One OPTIMIZE command; the files it wrote and their bytes."""
    by = ", ".join(f"`{name}`" for name in layout.zorder_by)
    where = f" WHERE {within(partitions, layout.types)}" if layout.partition_by else ""
    with session_settings(spark, {USER_METADATA: made}):
        row = spark.sql(f"OPTIMIZE delta.`{uri}`{where} ZORDER BY ({by})").first()
    metrics = row["metrics"] if row is not None else None
    if metrics is None:
        return 0, 0
    return int(metrics["numFilesAdded"]), int(metrics["filesAdded"]["totalSize"])
