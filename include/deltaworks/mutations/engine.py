"""Chooses the engine that merges a batch into a table: delta-rs where memory suffices for it, Spark otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
from deltalake import DeltaTable

from deltaworks.maintenance.table_health.measure import files_by_partition
from deltaworks.mutations.bounds import mutable_spec
from deltaworks.mutations.merge import Reach
from deltaworks.specs.mutation import ORG_COLUMN
from deltaworks.specs.table import TableSpec
from deltaworks.specs.types import Decimal, Primitive, parse_type
from deltaworks.tables.features import reasons_against_rewriting
from deltaworks.tables.lake import Lake

Engine = Literal["spark", "delta_rs"]
#: The most stretches collected on the driver for a merge by delta-rs; a larger batch goes through Spark.
MAX_STRETCHES = 200_000
#: Bytes of memory that a merge by delta-rs takes for each byte of the files it rewrites: 6 to 10 were measured,
#: depending on how well they are compressed.
MEMORY_PER_BYTE = 10
#: The share of free memory that a merge may take: others share the machine.
SHARE_OF_MEMORY = 0.5
#: Where a container sees its own limits (control groups, version 2).
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The engine of a merge, with the reasons where it is Spark. The merge rewrites at most `target_bytes`."""

    engine: Engine
    target_bytes: int
    reasons: tuple[str, ...] = ()


def plan_merge(lake: Lake, key: str, table: TableSpec, reach: Reach, *, small_merge_bytes: int) -> MergePlan:
    """Choose the engine for one table, from its log. Reads no data.

    Args:
        small_merge_bytes: the most bytes delta-rs may rewrite; free memory may lower that.
    """
    opened = lake.open(key)
    if opened is None:
        return MergePlan("spark", 0, ("the table does not exist",))
    target_bytes = _reached_bytes(lake, key, reach)
    reasons = tuple(_reasons(opened, table, reach, target_bytes, small_merge_bytes))
    return MergePlan("spark" if reasons else "delta_rs", target_bytes, reasons)


def _reasons(
    opened: DeltaTable, table: TableSpec, reach: Reach, target_bytes: int, small_merge_bytes: int
) -> Iterator[str]:
    fields = mutable_spec(table).fields
    if target_bytes > small_merge_bytes:
        yield f"{target_bytes:,} bytes may be rewritten, more than `small_merge_bytes`"
    elif target_bytes * MEMORY_PER_BYTE > (free := free_memory_bytes()) * SHARE_OF_MEMORY:
        yield f"{target_bytes:,} bytes may be rewritten, too many for the {free:,} bytes of memory that are free"
    if reach.stretches > MAX_STRETCHES:
        yield f"{reach.stretches:,} stretches are more than {MAX_STRETCHES:,}"
    if mutable_spec(table).deletion_vectors:
        yield "rows are to be marked, as `deletion_vectors` says"
    types = table.column_types()
    for name in fields:
        if not isinstance(parse_type(types[name]), Primitive | Decimal):
            yield f"the field {name} is no plain value"
    yield from reasons_against_rewriting(opened)


def _reached_bytes(lake: Lake, key: str, reach: Reach) -> int:
    """The bytes of the organisations a batch reaches; of all files where the table is not partitioned by them."""
    total = 0
    for partition, sizes in files_by_partition(lake, key).items():
        values = dict(partition)
        if reach.organisations is None or ORG_COLUMN not in values or values[ORG_COLUMN] in reach.organisations:
            total += sum(sizes)
    return total


def free_memory_bytes(cgroup: Path = CGROUP) -> int:
    """Bytes this process may still allocate without swapping, within the limit of its container.

    File pages that the kernel would drop count as free, in a container as on the machine.
    """
    machine = int(psutil.virtual_memory().available)
    container = _free_in(cgroup)
    return machine if container is None else min(machine, container)


def _free_in(cgroup: Path) -> int | None:
    """The bytes that the limit of a control group leaves; None without a limit that can be read."""
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        statistics = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if not limit.isdigit():
        return None
    return max(0, int(limit) - used + int(statistics.get("inactive_file", 0)))
