"""Deltaworks: a self-hosted telemetry lakehouse on Airflow, Spark and Delta tables."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"
#: What readers import from here, and where it is: loaded on first use, since jobs without Spark import this package.
_OFFERED = {
    "ChangePosition": "deltaworks.tables.changes",
    "Changes": "deltaworks.mutations.read_changes",
    "read_changes": "deltaworks.mutations.read_changes",
}


def __getattr__(name: str) -> Any:
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_OFFERED[name]), name)
