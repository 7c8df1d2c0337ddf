"""Plans a night: which of the partitions that want rewriting are taken within its minutes, and in which order.

They are ranked by benefit against cost. What no longer fits is put off, and cheaper ones behind it may still be taken.
Together they bring at least half of what the best possible selection would: where one partition alone brings more
than all that were ranked before it, that one is taken instead. What costs more than a whole night is named, since it
would be put off for ever. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deltaworks.maintenance.choice import Choice, PartitionChoice


@dataclass(frozen=True, slots=True)
class Candidate:
    """A partition of a table that wants rewriting."""

    table: str
    choice: PartitionChoice

    @property
    def worth(self) -> float:
        """Benefit against cost: bytes that reads are spared for each second."""
        return self.choice.benefit / max(self.choice.cost_seconds, 1e-6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """What is taken, best first, and what is put off; `too_large` are those put off that no night could take."""

    budget_seconds: float
    taken: tuple[Candidate, ...]
    put_off: tuple[Candidate, ...]
    too_large: tuple[Candidate, ...]

    @property
    def cost_seconds(self) -> float:
        """How long what is taken should last."""
        return sum(each.choice.cost_seconds for each in self.taken)

    def tables(self) -> list[str]:
        """The tables something is taken of, in the order of their best partition."""
        return list(dict.fromkeys(each.table for each in self.taken))

    def of(self, table: str) -> list[PartitionChoice]:
        """What is taken of a table, best first."""
        return [each.choice for each in self.taken if each.table == table]

    def put_off_of(self, table: str) -> list[PartitionChoice]:
        """What is put off of a table."""
        return [each.choice for each in self.put_off if each.table == table]


def plan_night(choices: Sequence[Choice], *, budget_seconds: float, night_seconds: float | None = None) -> Night:
    """Select within a budget.

    Args:
        night_seconds: what a whole night has, where the budget is what is left of one.
    """
    candidates = [Candidate(choice.table, each) for choice in choices for each in choice.partitions]
    ranked = sorted(candidates, key=lambda each: (-each.worth, each.table, str(each.choice.partition)))
    taken = _within(ranked, budget_seconds)
    single = max((each for each in ranked if _cost(each) <= budget_seconds), key=_benefit, default=None)
    if single is not None and _benefit(single) > sum(map(_benefit, taken)):
        rest = [each for each in ranked if each is not single]
        taken = [single, *_within(rest, budget_seconds - _cost(single))]
    ours = set(map(id, taken))
    whole = budget_seconds if night_seconds is None else night_seconds
    return Night(
        budget_seconds=budget_seconds,
        taken=tuple(taken),
        put_off=tuple(each for each in ranked if id(each) not in ours),
        too_large=tuple(each for each in ranked if _cost(each) > whole),
    )


def _within(ranked: Sequence[Candidate], budget_seconds: float) -> list[Candidate]:
    taken, left = [], budget_seconds
    for each in ranked:
        if _cost(each) <= left:
            taken.append(each)
            left -= _cost(each)
    return taken


def _cost(each: Candidate) -> float:
    return each.choice.cost_seconds


def _benefit(each: Candidate) -> float:
    return each.choice.benefit
