"""Real data beside the checkout, which is no part of it: tests read it there, and skip with a reason without it."""

from __future__ import annotations

import os
from pathlib import Path

SHARED_DATA = Path(os.environ.get("DELTAWORKS_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
