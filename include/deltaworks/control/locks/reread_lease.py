"""The lease on re-reading a pipeline's input: only one replay, reprocess, restore or start-over may run."""

from __future__ import annotations

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.lease import Lease
from deltaworks.control.records.reprocess import LEASE_NAME

LEASE_SECONDS = 30
#: Long enough to detect a dead holder.
WAIT_SECONDS = 2 * LEASE_SECONDS


def reread_lease(home: PipelineHome) -> Lease:
    """Returns the lease on re-reading the pipeline's input."""
    key = paths.reprocess(home.pipeline, LEASE_NAME)
    return Lease(home.objects, key, ttl_seconds=LEASE_SECONDS, name=home.pipeline)
