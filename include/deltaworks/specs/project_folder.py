"""Where the project is. Imports nothing that is declared: whoever lists names needs no more."""

from __future__ import annotations

import os
from pathlib import Path

PROJECT_ROOT = Path(__file__).resolve().parents[3]


def project_root() -> Path:
    """The checkout's folder, or what DELTAWORKS_PROJECT says."""
    return Path(os.environ.get("DELTAWORKS_PROJECT", PROJECT_ROOT))
