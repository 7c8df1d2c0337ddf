"""Sets the number of Hypothesis examples of a property.

Examples are deterministic. `make test`, which is repeated often, runs a share of them; without
DELTAWORKS_EXAMPLES_SHARE, as in `make unit`, all of them run.
"""

from __future__ import annotations

import os

SHARE_VARIABLE = "DELTAWORKS_EXAMPLES_SHARE"
_FEWEST = 6
#: The part of its share that a slow property takes; a run with all examples has all of its, too.
_OF_SLOW = 0.4


def examples(count: int, *, slow: bool = False) -> int:
    """Sets the number of examples, reduced to this run's share.

    Args:
        slow: its share would take five seconds of CPU or more.
    """
    share = float(os.environ.get(SHARE_VARIABLE, "1"))
    if slow and share < 1:
        share *= _OF_SLOW
    return max(min(count, _FEWEST), round(count * share))
