"""Paths of real test data outside the repository. Tests that need it are skipped with a reason if it is missing."""

from __future__ import annotations

import os
from pathlib import Path

SHARED_DATA = Path(os.environ.get("DELTAWORKS_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
