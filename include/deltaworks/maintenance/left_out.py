"""The alert for a table that VACUUM leaves out: its files pile up until what holds it back is gone.

Whether VACUUM goes on does not hang on whether this can be told.
"""

from __future__ import annotations

import contextlib

from deltaworks.alerts.raising import raise_alert, resolve_alert
from deltaworks.control.objects import ObjectStore
from deltaworks.errors import DeltaworksError

CAUSE = "TABLE_NOT_VACUUMED"


def tell_left_out(objects: ObjectStore, pipeline: str, table: str, *, reason: str) -> None:
    """Raise the alert of a table."""
    subject = f"{pipeline}.{table}"
    with contextlib.suppress(DeltaworksError):
        raise_alert(objects, cause=CAUSE, subject=subject, summary=f"VACUUM leaves {subject} out: {reason}")


def tell_vacuumed(objects: ObjectStore, pipeline: str, table: str) -> None:
    """Resolve it. Nothing happens where none is open."""
    with contextlib.suppress(DeltaworksError):
        resolve_alert(objects, cause=CAUSE, subject=f"{pipeline}.{table}", summary="it is vacuumed again")
