"""Which engine merges a batch into a table: delta-rs where memory suffices for it, Spark for everything else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from deltalake import DeltaTable

from deltaworks.maintenance.table_health.measure import files_by_partition
from deltaworks.mutations.free_memory import free_memory_bytes
from deltaworks.mutations.merge import Reach
from deltaworks.specs.mutation import ORG_COLUMN
from deltaworks.specs.table import TableSpec
from deltaworks.specs.types import Decimal, Primitive, parse_type
from deltaworks.tables.features import reasons_against_rewriting
from deltaworks.tables.lake import Lake

Engine = Literal["spark", "delta_rs"]
#: As many stretches come to the driver for a merge by delta-rs; a batch with more goes through Spark.
MAX_STRETCHES = 200_000
#: Memory a merge by delta-rs takes for each byte of the files it rewrites: 6 to 10 were measured, by how well they
#: are packed.
MEMORY_PER_BYTE = 10
#: Of the memory that is free, a merge takes no more: others share the machine.
SHARE_OF_MEMORY = 0.5


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The engine of a merge, and why Spark where it is Spark. `target_bytes` is what the merge may rewrite at most."""

    engine: Engine
    target_bytes: int
    reasons: tuple[str, ...] = ()


def plan_merge(lake: Lake, key: str, table: TableSpec, reach: Reach, *, small_merge_bytes: int) -> MergePlan:
    """Choose the engine for one table, from its log. Reads no data.

    Args:
        small_merge_bytes: delta-rs rewrites no more, and no more than fits the memory that is free.
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
    assert table.mutable is not None
    if target_bytes > small_merge_bytes:
        yield f"{target_bytes:,} bytes may be rewritten, more than `small_merge_bytes`"
    elif target_bytes * MEMORY_PER_BYTE > (free := free_memory_bytes()) * SHARE_OF_MEMORY:
        yield f"{target_bytes:,} bytes may be rewritten, too many for the {free:,} bytes of memory that are free"
    if reach.stretches > MAX_STRETCHES:
        yield f"{reach.stretches:,} stretches are more than {MAX_STRETCHES:,}"
    if table.mutable.deletion_vectors:
        yield "rows are to be marked, as `deletion_vectors` says"
    types = table.column_types()
    for name in table.mutable.fields:
        if not isinstance(parse_type(types[name]), Primitive | Decimal):
            yield f"the field {name} is no plain value"
    yield from reasons_against_rewriting(opened)


def _reached_bytes(lake: Lake, key: str, reach: Reach) -> int:
    """The bytes of the organisations a batch reaches; of all files where partitions do not tell them apart."""
    total = 0
    for place, sizes in files_by_partition(lake, key).items():
        known = dict(place)
        if reach.organisations is None or ORG_COLUMN not in known or known[ORG_COLUMN] in reach.organisations:
            total += sum(sizes)
    return total
