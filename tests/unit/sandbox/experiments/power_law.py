"""How rows are shared out among organisations, by the power law."""

from __future__ import annotations

from sandbox.experiments.engagement_rows import Workload, _cumulative


def share_above(workload: Workload, rank: int) -> float:
    """The share of rows that organisations 0 to `rank - 1` have."""
    return _cumulative(rank + 1, workload.exponent) / _cumulative(workload.orgs + 1, workload.exponent)
