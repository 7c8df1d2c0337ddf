"""The right to read landed rows of a pipeline again: a replay, a reprocess, a restore or a start over has it alone."""

from __future__ import annotations

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.lease import Lease
from deltaworks.control.records.reprocess import LEASE_NAME

LEASE_SECONDS = 30
#: Long enough to see that a holder is gone.
WAIT_SECONDS = 2 * LEASE_SECONDS


def reread_lease(home: PipelineHome) -> Lease:
    """The lease of whoever reads again what has landed of the pipeline."""
    key = paths.reprocess(home.pipeline, LEASE_NAME)
    return Lease(home.objects, key, ttl_seconds=LEASE_SECONDS, name=home.pipeline)
