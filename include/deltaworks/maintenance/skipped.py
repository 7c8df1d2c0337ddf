"""The alert for a table that VACUUM leaves out: its files pile up until what holds it back is gone.

Whether VACUUM goes on does not hang on whether this can be told.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from deltaworks.alerts.raising import raise_alert, resolve_alert
from deltaworks.control.objects import ObjectStore
from deltaworks.errors import DeltaworksError

log = logging.getLogger(__name__)

CAUSE = "TABLE_NOT_VACUUMED"


def tell_left_out(objects: ObjectStore, pipeline: str, table: str, *, reason: str) -> None:
    """Raise the alert of a table."""
    subject = f"{pipeline}.{table}"
    with _going_on(subject):
        raise_alert(objects, cause=CAUSE, subject=subject, summary=f"VACUUM leaves {subject} out: {reason}")


def tell_vacuumed(objects: ObjectStore, pipeline: str, table: str) -> None:
    """Resolve it. Nothing happens where none is open."""
    subject = f"{pipeline}.{table}"
    with _going_on(subject):
        resolve_alert(objects, cause=CAUSE, subject=subject, summary="it is vacuumed again")


@contextlib.contextmanager
def _going_on(subject: str) -> Iterator[None]:
    try:
        yield
    except DeltaworksError as error:
        log.warning("table=%s nobody is told: %s", subject, error)
