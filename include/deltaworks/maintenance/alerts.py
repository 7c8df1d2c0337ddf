"""Alerts of maintenance: overlapping runs, and tables that VACUUM skips.

If an alert cannot be raised or resolved, maintenance continues.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from deltaworks.alerts.raising import raise_alert, resolve_alert
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.exclusive import MAINTENANCE_OVERLAP, ExclusiveLock, maintenance_lock
from deltaworks.errors import ConcurrencyError, DeltaworksError

log = logging.getLogger(__name__)
NOT_VACUUMED = "TABLE_NOT_VACUUMED"


@contextlib.contextmanager
def exclusive_maintenance(home: PipelineHome, *, work: str) -> Iterator[ExclusiveLock]:
    """Holds the maintenance lock of a pipeline within a block.

    If the lock is taken, raises an alert, which the next successful run resolves.

    Raises:
        ConcurrencyError: MAINTENANCE_RUNNING.
    """
    objects, pipeline = home.objects, home.pipeline
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context(maintenance_lock(objects, pipeline, work=work))
        except ConcurrencyError as error:
            with contextlib.suppress(DeltaworksError):
                raise_alert(
                    objects, cause=MAINTENANCE_OVERLAP, subject=pipeline, summary=error.message, detail={"work": work}
                )
            raise
        with contextlib.suppress(DeltaworksError):
            resolve_alert(objects, cause=MAINTENANCE_OVERLAP, subject=pipeline)
        yield lock


def alert_not_vacuumed(home: PipelineHome, table: str, *, reason: str) -> None:
    """Raises the alert for a table that VACUUM skips. The table's obsolete files accumulate until it is vacuumed."""
    subject = f"{home.pipeline}.{table}"
    with _log_alert_failures(subject):
        raise_alert(home.objects, cause=NOT_VACUUMED, subject=subject, summary=f"VACUUM skips {subject}: {reason}")


def resolve_not_vacuumed(home: PipelineHome, table: str) -> None:
    """Resolves the alert for a table that was vacuumed."""
    subject = f"{home.pipeline}.{table}"
    with _log_alert_failures(subject):
        resolve_alert(home.objects, cause=NOT_VACUUMED, subject=subject, summary="the table was vacuumed")


@contextlib.contextmanager
def _log_alert_failures(subject: str) -> Iterator[None]:
    try:
        yield
    except DeltaworksError as error:
        log.warning("table=%s its alert could not be raised or resolved: %s", subject, error)
