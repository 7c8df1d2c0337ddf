"""Plans a night: which of the partitions that need rewriting fit into its minutes, and in which order.

They are ranked by benefit for cost. What no longer fits is postponed, and cheaper ones behind it may still be taken.
The selection has at least half the benefit of the best possible one: where a single partition has more benefit than all
that fit by rank, it is taken instead. What costs more than a whole night is reported, since it would be postponed for
ever. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deltaworks.maintenance.choice import Choice, PartitionChoice


@dataclass(frozen=True, slots=True)
class Candidate:
    """A partition of a table that needs rewriting."""

    table: str
    choice: PartitionChoice

    @property
    def worth(self) -> float:
        """Benefit for cost: bytes that reads save for each second of rewriting."""
        return self.choice.benefit / max(self.choice.cost_seconds, 1e-6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """The selection: `taken`, best first, and `put_off`, of which `too_large` exceed a whole night."""

    budget_seconds: float
    taken: tuple[Candidate, ...]
    put_off: tuple[Candidate, ...]
    too_large: tuple[Candidate, ...]

    @property
    def cost_seconds(self) -> float:
        """Estimated seconds of what is taken."""
        return sum(candidate.choice.cost_seconds for candidate in self.taken)

    def tables(self) -> list[str]:
        """The tables with partitions taken, in the order of their best partition."""
        return list(dict.fromkeys(candidate.table for candidate in self.taken))

    def of(self, table: str) -> list[PartitionChoice]:
        """The partitions taken of a table, best first."""
        return [candidate.choice for candidate in self.taken if candidate.table == table]

    def put_off_of(self, table: str) -> list[PartitionChoice]:
        """The partitions of a table that are put off."""
        return [candidate.choice for candidate in self.put_off if candidate.table == table]


def plan_night(choices: Sequence[Choice], *, budget_seconds: float, night_seconds: float | None = None) -> Night:
    """Select within a budget.

    Args:
        night_seconds: the length of a whole night, where the budget is the remainder of one.
    """
    candidates = [Candidate(choice.table, partition) for choice in choices for partition in choice.partitions]
    ranked = sorted(
        candidates, key=lambda candidate: (-candidate.worth, candidate.table, str(candidate.choice.partition))
    )
    taken = _within(ranked, budget_seconds)
    single = max((candidate for candidate in ranked if _cost(candidate) <= budget_seconds), key=_benefit, default=None)
    if single is not None and _benefit(single) > sum(map(_benefit, taken)):
        rest = [candidate for candidate in ranked if candidate is not single]
        taken = [single, *_within(rest, budget_seconds - _cost(single))]
    taken_ids = set(map(id, taken))
    whole = budget_seconds if night_seconds is None else night_seconds
    return Night(
        budget_seconds=budget_seconds,
        taken=tuple(taken),
        put_off=tuple(candidate for candidate in ranked if id(candidate) not in taken_ids),
        too_large=tuple(candidate for candidate in ranked if _cost(candidate) > whole),
    )


def _within(ranked: Sequence[Candidate], budget_seconds: float) -> list[Candidate]:
    taken, left = [], budget_seconds
    for candidate in ranked:
        if _cost(candidate) <= left:
            taken.append(candidate)
            left -= _cost(candidate)
    return taken


def _cost(candidate: Candidate) -> float:
    return candidate.choice.cost_seconds


def _benefit(candidate: Candidate) -> float:
    return candidate.choice.benefit
