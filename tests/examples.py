"""How many examples a property is tried with.

They are the same in every run, so a run that is done again and again tries a share of them: `make test` does. All are
tried by whoever runs the tests without DELTAWORKS_EXAMPLES_SHARE, as `make unit` does.
"""

from __future__ import annotations

import os

SHARE_VARIABLE = "DELTAWORKS_EXAMPLES_SHARE"
_FEWEST = 6


def examples(count: int) -> int:
    """So many examples, or the share of them that this run tries."""
    share = float(os.environ.get(SHARE_VARIABLE, "1"))
    return max(min(count, _FEWEST), round(count * share))
