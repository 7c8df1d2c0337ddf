"""Spark starts Python processes of its own for a streaming source: they find the library through PYTHONPATH only."""

from __future__ import annotations

import os
from pathlib import Path

INCLUDE = str(Path(__file__).resolve().parents[3] / "include")
# At import, so before any session starts its JVM.
if INCLUDE not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [INCLUDE, os.environ.get("PYTHONPATH")]))
