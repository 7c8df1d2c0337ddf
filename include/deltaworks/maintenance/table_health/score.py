"""How well a table is, from 0 to 100: what each trouble costs, by name, so that a number can be argued with.

Every part has a weight, and costs none of it while all is well and all of it at a stated worst. The weights add up to
100. What is not known, or does not apply to a table, costs nothing and says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltaworks.maintenance.table_health.measure import TableHealth

#: What each part can cost.
WEIGHTS = {
    "small_files": 30,
    "order": 20,
    "deletion_vectors": 15,
    "log": 15,
    "partitions": 10,
    "unreferenced": 10,
}
#: Fewer small files than this cost in proportion: a table of five files is read at once, whatever their size.
MANY_SMALL_FILES = 50
#: The share of rows marked as deleted from which on the whole weight is lost.
WORST_DELETED_SHARE = 0.2
#: Commits on top of the last checkpoint: readers replay them one by one. Tables make a checkpoint every 50 to 100.
FEW_COMMITS, WORST_COMMITS = 100, 500
#: A partition of less than this on average is a folder that a reader lists for nothing, where there are many.
SMALL_PARTITION_BYTES = 1 << 20
FEW_PARTITIONS, MANY_PARTITIONS = 100, 1_000
#: The largest partition so many times the median costs a third of that part's weight; small tables have no skew.
WORST_SKEW, SKEW_FROM_BYTES = 50.0, 1 << 30
#: The share of all bytes on storage that no version needs, from which on the whole weight is lost.
WORST_UNREFERENCED_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePart:
    """One trouble: how much of its weight it costs, and why in words."""

    name: str
    weight: int
    cost: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """`value` is 100 less the costs of `parts`, rounded."""

    value: int
    parts: tuple[ScorePart, ...]

    @property
    def costly(self) -> tuple[ScorePart, ...]:
        """The parts that cost something, dearest first."""
        return tuple(sorted((part for part in self.parts if part.cost > 0), key=lambda part: -part.cost))


def score(health: TableHealth, *, unordered_share: float | None = None, unreferenced_bytes: int | None = None) -> Score:
    """Judge a table by its health. Pure.

    Args:
        unordered_share: of the bytes of a table with Z-order columns, those that are not in order; None where it has
            none or it is not known.
        unreferenced_bytes: on storage, needed by no version within the retention; None where it was not looked.
    """
    costs = {
        "small_files": _small_file_cost(health),
        "order": _order_cost(unordered_share),
        "deletion_vectors": _deletion_vector_cost(health),
        "log": _log_cost(health),
        "partitions": _partition_cost(health),
        "unreferenced": _unreferenced_cost(health, unreferenced_bytes),
    }
    parts = tuple(
        ScorePart(
            name=name, weight=weight, cost=round(weight * min(1.0, max(0.0, costs[name][0])), 1), reason=costs[name][1]
        )
        for name, weight in WEIGHTS.items()
    )
    return Score(value=round(100 - sum(part.cost for part in parts)), parts=parts)


def _small_file_cost(health: TableHealth) -> tuple[float, str]:
    bad = health.small_file_share * min(1.0, health.small_files / MANY_SMALL_FILES)
    return bad, f"{health.small_files:,} of {health.files:,} files could be merged"


def _order_cost(unordered_share: float | None) -> tuple[float, str]:
    if unordered_share is None:
        return 0.0, "no order is declared, or it is not known"
    return unordered_share, f"{unordered_share:.0%} of the bytes are not in Z-order"


def _deletion_vector_cost(health: TableHealth) -> tuple[float, str]:
    share = health.deletion_vector_share
    if share is None:
        return 0.0, "the log does not say how many rows are marked as deleted"
    return share / WORST_DELETED_SHARE, f"{share:.1%} of the rows are marked as deleted and read all the same"


def _log_cost(health: TableHealth) -> tuple[float, str]:
    commits = health.commits_since_checkpoint
    return (commits - FEW_COMMITS) / (WORST_COMMITS - FEW_COMMITS), f"{commits:,} commits on top of the last checkpoint"


def _partition_cost(health: TableHealth) -> tuple[float, str]:
    average = health.bytes / health.partitions if health.partitions else 0.0
    crowd = min(1.0, max(0.0, (health.partitions - FEW_PARTITIONS) / (MANY_PARTITIONS - FEW_PARTITIONS)))
    tiny = max(0.0, 1.0 - average / SMALL_PARTITION_BYTES) * crowd
    skewed = min(1.0, health.skew / WORST_SKEW) if health.largest_partition_bytes >= SKEW_FROM_BYTES else 0.0
    of = f"{health.partitions:,} partition{'' if health.partitions == 1 else 's'} of {average / (1 << 20):,.1f} MiB"
    why = f"{of} on average, the largest {health.skew:,.1f} x the median"
    return tiny + skewed / 3, why


def _unreferenced_cost(health: TableHealth, unreferenced_bytes: int | None) -> tuple[float, str]:
    if unreferenced_bytes is None:
        return 0.0, "it was not looked for"
    stored = health.bytes + unreferenced_bytes
    share = unreferenced_bytes / stored if stored else 0.0
    return share / WORST_UNREFERENCED_SHARE, f"{share:.0%} of the bytes on storage are needed by no version"
