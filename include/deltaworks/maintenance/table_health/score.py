"""Scores the health of a table from 0 to 100, with the points deducted for each named problem.

Each part has a weight. Its cost is 0 if all is well, and the full weight at a defined worst case. Weights sum to 100.
Unknown or inapplicable parts cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltaworks.maintenance.table_health.measure import TableHealth

#: The maximum cost of each part.
WEIGHTS = {
    "small_files": 30,
    "order": 20,
    "deletion_vectors": 15,
    "log": 15,
    "partitions": 10,
    "unreferenced": 10,
}
#: Number of small files that costs the full weight; fewer files cost proportionally less.
MANY_SMALL_FILES = 50
#: Share of rows marked as deleted that costs the full weight.
WORST_DELETED_SHARE = 0.2
#: Commits since the last checkpoint, which readers replay; checkpoints are written every 50 to 100 commits.
FEW_COMMITS, WORST_COMMITS = 100, 500
#: Average partition size below which many partitions reduce the score.
SMALL_PARTITION_BYTES = 1 << 20
FEW_PARTITIONS, MANY_PARTITIONS = 100, 1_000
#: Skew costs up to a third of the weight, for tables above this size.
WORST_SKEW, SKEW_FROM_BYTES = 50.0, 1 << 30
#: Share of unreferenced bytes that costs the full weight.
WORST_UNREFERENCED_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePart:
    """The points deducted for one part, with the reason."""

    name: str
    weight: int
    cost: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score: 100 minus the costs of `parts`, rounded."""

    value: int
    parts: tuple[ScorePart, ...]

    @property
    def costly(self) -> tuple[ScorePart, ...]:
        """The parts with costs, highest first."""
        return tuple(sorted((part for part in self.parts if part.cost > 0), key=lambda part: -part.cost))


def score(health: TableHealth, *, unordered_share: float | None = None, unreferenced_bytes: int | None = None) -> Score:
    """Scores the health of a table. Pure.

    Args:
        unordered_share: share of bytes not in Z-order; None if no order is declared or the share is unknown.
        unreferenced_bytes: bytes that no retained version needs; None if not measured.
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
        return 0.0, "no order declared, or unknown"
    return unordered_share, f"{unordered_share:.0%} of the bytes are not in Z-order"


def _deletion_vector_cost(health: TableHealth) -> tuple[float, str]:
    share = health.deletion_vector_share
    if share is None:
        return 0.0, "the number of deleted rows is unknown"
    return share / WORST_DELETED_SHARE, f"{share:.1%} of the rows are marked as deleted but still read"


def _log_cost(health: TableHealth) -> tuple[float, str]:
    commits = health.commits_since_checkpoint
    return (commits - FEW_COMMITS) / (WORST_COMMITS - FEW_COMMITS), f"{commits:,} commits since the last checkpoint"


def _partition_cost(health: TableHealth) -> tuple[float, str]:
    average = health.bytes / health.partitions if health.partitions else 0.0
    crowd = min(1.0, max(0.0, (health.partitions - FEW_PARTITIONS) / (MANY_PARTITIONS - FEW_PARTITIONS)))
    tiny = max(0.0, 1.0 - average / SMALL_PARTITION_BYTES) * crowd
    skewed = min(1.0, health.skew / WORST_SKEW) if health.largest_partition_bytes >= SKEW_FROM_BYTES else 0.0
    average_text = (
        f"{health.partitions:,} partition{'' if health.partitions == 1 else 's'} of {average / (1 << 20):,.1f} MiB"
    )
    reason = f"{average_text} on average, the largest {health.skew:,.1f} x the median"
    return tiny + skewed / 3, reason


def _unreferenced_cost(health: TableHealth, unreferenced_bytes: int | None) -> tuple[float, str]:
    if unreferenced_bytes is None:
        return 0.0, "not measured"
    stored = health.bytes + unreferenced_bytes
    share = unreferenced_bytes / stored if stored else 0.0
    return share / WORST_UNREFERENCED_SHARE, f"{share:.0%} of the bytes on storage are needed by no version"
