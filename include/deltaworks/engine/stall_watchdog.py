"""Ends a process whose batch hangs in a call that never returns: nothing inside it could."""

from __future__ import annotations

import logging

from deltaworks.control.guard import driving_jvm, end_now
from deltaworks.control.health.heartbeat import HeartbeatWriter
from deltaworks.errors import TransientError

log = logging.getLogger(__name__)


def end_where_stalled(
    pipeline: str, batch_started: float | None, now: float, *, stall_seconds: float, heartbeat: HeartbeatWriter
) -> None:
    """Do nothing, or end this process and its JVM with BATCH_STALLED once a batch has run for `stall_seconds`.

    Args:
        batch_started: by the same monotonic clock as `now`; None while no batch runs.
    """
    if batch_started is None or now - batch_started < stall_seconds:
        return
    message = f"A batch of {pipeline!r} has run for {now - batch_started:.0f} seconds."
    error = TransientError("BATCH_STALLED", message, hint="The next run resumes it; see the driver log for where.")
    heartbeat.close(state="failed", error=error.as_record())
    log.error("%s", error)
    print(error.as_line(), flush=True)  # noqa: T201 - the line a launcher reads
    end_now(driving_jvm(), exit_code=error.exit_code)
