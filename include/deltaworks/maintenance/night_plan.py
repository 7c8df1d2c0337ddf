"""Plans a maintenance night: which partitions to rewrite within the time budget, and in which order. Pure.

Partitions are ranked by benefit per cost. A partition that does not fit is deferred, and cheaper ones are still
selected. If a single partition has more benefit than the selection, it is selected instead, so the benefit is at least
half of the optimum. Partitions that exceed a full night are reported, since they would be deferred forever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deltaworks.maintenance.partition_choice import PartitionChoice, TableChoice


@dataclass(frozen=True, slots=True)
class Candidate:
    """A partition that needs rewriting."""

    table: str
    choice: PartitionChoice

    @property
    def benefit_per_second(self) -> float:
        """Bytes that reads save per second of rewriting."""
        return self.choice.benefit / max(self.choice.cost_seconds, 1e-6)


@dataclass(frozen=True, slots=True, kw_only=True)
class NightPlan:
    """The plan of a night: `selected` partitions, best first, and `deferred` ones.

    Deferred partitions that exceed a full night are also in `too_large`.
    """

    budget_seconds: float
    selected: tuple[Candidate, ...]
    deferred: tuple[Candidate, ...]
    too_large: tuple[Candidate, ...]

    @property
    def cost_seconds(self) -> float:
        """Estimated seconds of the selected partitions."""
        return sum(candidate.choice.cost_seconds for candidate in self.selected)

    def tables(self) -> list[str]:
        """Returns the tables with selected partitions, best first."""
        return list(dict.fromkeys(candidate.table for candidate in self.selected))

    def selected_partitions(self, table: str) -> list[PartitionChoice]:
        """Returns the selected partitions of a table, best first."""
        return [candidate.choice for candidate in self.selected if candidate.table == table]

    def deferred_partitions(self, table: str) -> list[PartitionChoice]:
        """Returns the deferred partitions of a table."""
        return [candidate.choice for candidate in self.deferred if candidate.table == table]


def plan_night(
    choices: Sequence[TableChoice], *, budget_seconds: float, night_seconds: float | None = None
) -> NightPlan:
    """Selects partitions within a time budget.

    Args:
        night_seconds: the length of a full night, if the budget is only its remainder.
    """
    candidates = [Candidate(choice.table, partition) for choice in choices for partition in choice.partitions]
    ranked = sorted(
        candidates,
        key=lambda candidate: (-candidate.benefit_per_second, candidate.table, str(candidate.choice.partition)),
    )
    selected = _fit_budget(ranked, budget_seconds)
    single = max((candidate for candidate in ranked if _cost(candidate) <= budget_seconds), key=_benefit, default=None)
    if single is not None and _benefit(single) > sum(map(_benefit, selected)):
        rest = [candidate for candidate in ranked if candidate is not single]
        selected = [single, *_fit_budget(rest, budget_seconds - _cost(single))]
    taken_ids = set(map(id, selected))
    full_seconds = budget_seconds if night_seconds is None else night_seconds
    return NightPlan(
        budget_seconds=budget_seconds,
        selected=tuple(selected),
        deferred=tuple(candidate for candidate in ranked if id(candidate) not in taken_ids),
        too_large=tuple(candidate for candidate in ranked if _cost(candidate) > full_seconds),
    )


def _fit_budget(ranked: Sequence[Candidate], budget_seconds: float) -> list[Candidate]:
    selected, remaining_seconds = [], budget_seconds
    for candidate in ranked:
        if _cost(candidate) <= remaining_seconds:
            selected.append(candidate)
            remaining_seconds -= _cost(candidate)
    return selected


def _cost(candidate: Candidate) -> float:
    return candidate.choice.cost_seconds


def _benefit(candidate: Candidate) -> float:
    return candidate.choice.benefit
