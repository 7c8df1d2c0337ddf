"""The right to keep a pipeline's tables alone, with an alert where two runs meet."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from deltaworks.alerts.raising import raise_alert, resolve_alert
from deltaworks.control.locks.exclusive import OVERLAP, MaintenanceLock, maintenance_lock
from deltaworks.control.objects import ObjectStore
from deltaworks.errors import ConcurrencyError, DeltaworksError


@contextlib.contextmanager
def keeping_alone(objects: ObjectStore, pipeline: str, *, work: str) -> Iterator[MaintenanceLock]:
    """See `maintenance_lock`. A refusal raises an alert, which the next run that is let in resolves.

    Raises:
        ConcurrencyError: MAINTENANCE_RUNNING.
    """
    with contextlib.ExitStack() as held:
        try:
            lock = held.enter_context(maintenance_lock(objects, pipeline, work=work))
        except ConcurrencyError as error:
            # Whether it can be told or not, the run is refused.
            with contextlib.suppress(DeltaworksError):
                raise_alert(objects, cause=OVERLAP, subject=pipeline, summary=error.message, detail={"work": work})
            raise
        with contextlib.suppress(DeltaworksError):
            resolve_alert(objects, cause=OVERLAP, subject=pipeline)
        yield lock
