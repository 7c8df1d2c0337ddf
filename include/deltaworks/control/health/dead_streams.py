"""What is to be said of a relay or a stream that does not run: stopped, paused, ended, failed, gone, never there."""

from __future__ import annotations

from deltaworks.control.health.heartbeat import Heartbeat
from deltaworks.control.health.limits import Finding, HealthLimits, duration
from deltaworks.control.health.stop import StopRequest


def never_started(
    name: str, stop: StopRequest | None, paused: bool | None, missing_seconds: float, limits: HealthLimits
) -> Finding:
    """One that has never written a heartbeat."""
    if stop is not None:
        return stopped(stop, name)
    if paused:
        return Finding("paused", "PAUSED", "It has never run and its DAG is paused.", f"deltaworks start {name}")
    detail = f"It has never written a heartbeat; looked for since {duration(missing_seconds)}."
    if missing_seconds <= limits.grace_seconds:
        return Finding("starting", "NEVER_STARTED", detail)
    return Finding("unhealthy", "NEVER_STARTED", detail, "Open the log of its DAG's last run.")


def stopped(stop: StopRequest, name: str) -> Finding:
    """One that was stopped on purpose."""
    detail = f"Stopped by {stop.by} at {stop.at}: {stop.reason}."
    return Finding("stopped", "STOP_REQUESTED", detail, f"deltaworks start {name}")


def gone(heartbeat: Heartbeat, age: float, limits: HealthLimits) -> Finding:
    """One whose heartbeat says that it has ended, or is too old."""
    if heartbeat.state == "failed":
        return _failed(heartbeat, age, limits)
    return _ended(age, limits) if heartbeat.state == "ended" else _stalled(heartbeat, age)


def paused_without_run(heartbeat: Heartbeat, name: str, age: float) -> Finding:
    """One that does not run, and whose DAG is paused."""
    if heartbeat.state == "ended":
        ended = f"Its DAG is paused; it ended {duration(age)} ago."
        return Finding("paused", "PAUSED", ended, f"deltaworks start {name}")
    return Finding(
        "unhealthy",
        "PAUSED_WITHOUT_STOP",
        f"Its DAG is paused, nobody asked it to stop, and it last was {heartbeat.state!r} "
        f"{duration(age)} ago{reason_of(heartbeat)}.",
        f"If that is meant: deltaworks stop {name}. If not (a DAG pauses itself after many failed runs): "
        f"mend the cause, then deltaworks start {name}.",
    )


def _failed(heartbeat: Heartbeat, age: float, limits: HealthLimits) -> Finding:
    error = heartbeat.error or {}
    condition = str(error.get("condition", "FAILED"))
    detail = f"It failed {duration(age)} ago{reason_of(heartbeat)}."
    if error.get("retryable", True) and age <= limits.grace_seconds:
        return Finding("starting", condition, detail + " It is being started again.")
    hint = str(error.get("hint") or "Open the log of its DAG's last run.")
    return Finding("unhealthy", condition, detail, hint)


def _ended(age: float, limits: HealthLimits) -> Finding:
    if age <= limits.grace_seconds:
        return Finding("starting", "BETWEEN_RUNS", f"It ended its run {duration(age)} ago; the next one is starting.")
    return Finding(
        "unhealthy",
        "NOT_RESTARTED",
        f"It ended its run {duration(age)} ago and no new one has begun.",
        "Check that its DAG is not paused, that its pool has a free slot and that the scheduler is alive.",
    )


def _stalled(heartbeat: Heartbeat, age: float) -> Finding:
    return Finding(
        "unhealthy",
        "HEARTBEAT_STALE",
        f"Its last heartbeat is {duration(age)} old (process {heartbeat.pid} on {heartbeat.host}, "
        f"run {heartbeat.run}).",
        "If its task runs, clear it: it resumes where it was. If it does not, check scheduler and pool.",
    )


def reason_of(heartbeat: Heartbeat) -> str:
    """What it last said was wrong, as the end of a sentence."""
    if heartbeat.error is None:
        return ""
    return f": [{heartbeat.error.get('condition', '?')}] {heartbeat.error.get('message', '')}".rstrip(".")
