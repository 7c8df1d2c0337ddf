"""Location of the project. Imports no specs, so that listing names stays fast."""

from __future__ import annotations

import os
from pathlib import Path

PROJECT_ROOT = Path(__file__).resolve().parents[3]


def project_root() -> Path:
    """Returns the project folder: DELTAWORKS_PROJECT, or the checkout."""
    return Path(os.environ.get("DELTAWORKS_PROJECT", PROJECT_ROOT))
