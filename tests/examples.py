"""Sets the number of Hypothesis examples of a property.

Examples are deterministic. `make test`, which is repeated often, runs a share of them; without
DELTAWORKS_EXAMPLES_SHARE, as in `make unit`, all of them run.
"""

from __future__ import annotations

import os

SHARE_VARIABLE = "DELTAWORKS_EXAMPLES_SHARE"
_FEWEST = 6


def examples(count: int) -> int:
    """Sets the number of examples, reduced to this run's share."""
    share = float(os.environ.get(SHARE_VARIABLE, "1"))
    return max(min(count, _FEWEST), round(count * share))
