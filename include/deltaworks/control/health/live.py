"""What is to be said of a relay or a stream whose heartbeat is young: whether it works, keeps up, and gets input."""

from __future__ import annotations

from datetime import datetime

from deltaworks.control.health.dead_streams import reason_of
from deltaworks.control.health.heartbeat import Heartbeat
from deltaworks.control.health.limits import Finding, HealthLimits, age_seconds, duration
from deltaworks.control.health.norm import InputNorm, silent_hour


def live(
    heartbeat: Heartbeat,
    now: datetime,
    limits: HealthLimits,
    *,
    last_input: datetime | None = None,
    norm: InputNorm | None = None,
) -> Finding:
    """One that runs, by what it says of itself."""
    running_seconds = age_seconds(heartbeat.started_at, now)
    if heartbeat.error is not None:
        hint = str(heartbeat.error.get("hint") or "Open its driver log.")
        condition = str(heartbeat.error.get("condition", "ERROR"))
        return Finding("unhealthy", condition, f"It reports{reason_of(heartbeat)}.", hint)
    if heartbeat.state == "starting":
        if running_seconds <= limits.starting_seconds_max:
            return Finding("starting", "STARTING", f"It started {duration(running_seconds)} ago.")
        return Finding(
            "unhealthy",
            "START_SLOW",
            f"It has been starting for {duration(running_seconds)}.",
            "Open its driver log: the lease may be held by another process, or the cluster has no room.",
        )
    progress_seconds = min(running_seconds, age_seconds(heartbeat.last_batch_at or heartbeat.started_at, now))
    if (heartbeat.backlog_files or heartbeat.backlog_records) and progress_seconds > limits.stall_seconds:
        return Finding(
            "unhealthy",
            "NO_PROGRESS",
            f"{_waiting(heartbeat)} and the last batch was completed {duration(progress_seconds)} ago.",
            "Open the Spark UI and the driver log; clearing the task restarts it where it was.",
        )
    silence = _silent(heartbeat, now, limits, last_input, norm)
    return _suspended(heartbeat, now) or _lost(heartbeat) or silence or _judge_backlog(heartbeat, now, limits)


def _lost(heartbeat: Heartbeat) -> Finding | None:
    """Files missing between the bucket and the tables, messages nobody could deliver, records that expired."""
    if heartbeat.dead_letters:
        return Finding(
            "unhealthy",
            "DEAD_LETTERS",
            f"About {heartbeat.dead_letters} messages were delivered too often and lie in the dead-letter queue.",
            f"deltaworks files redrive {heartbeat.pipeline}; its files are not in the log until then.",
        )
    if heartbeat.lost_files:
        return Finding(
            "unhealthy",
            "FILES_LOST",
            f"{heartbeat.lost_files} objects were never announced, or were gone before they were read, "
            f"such as {', '.join(heartbeat.lost_examples[:3])}.",
            "deltaworks files show, for one of them, says what became of it; see operating.md on lost files.",
        )
    if heartbeat.lost_ranges:
        such = ", ".join(heartbeat.lost_examples[:3])
        detail = f"{heartbeat.lost_ranges} ranges of records expired before they were read, such as {such}."
        return Finding("unhealthy", "RECORDS_LOST", detail, "Quarantine has a row for each: code records_lost.")
    return None


def _suspended(heartbeat: Heartbeat, now: datetime) -> Finding | None:
    """Tables whose commits failed. The stream goes on without them; somebody has to mend them."""
    tables = [held for held in heartbeat.held if held.get("reason") == "suspended"]
    if not tables:
        return None
    first = tables[0]
    names = ", ".join(str(held.get("table")) for held in tables)
    suspended_seconds = max(age_seconds(str(held.get("at")), now) for held in tables)
    return Finding(
        "unhealthy",
        "TABLE_SUSPENDED",
        f"Held back for {duration(suspended_seconds)}: {names}. {first.get('table')} since batch "
        f"{first.get('since_batch')}: [{first.get('condition')}] {first.get('message')}",
        f"Mend the table (the condition says how), then `deltaworks tables resume {heartbeat.pipeline} "
        f"{first.get('table')}`. Nothing is lost meanwhile; the other tables go on.",
    )


def _judge_backlog(heartbeat: Heartbeat, now: datetime, limits: HealthLimits) -> Finding:
    waiting = _waiting(heartbeat)
    if heartbeat.oldest_pending_at is not None:
        waited = age_seconds(heartbeat.oldest_pending_at, now)
        detail = f"{waiting}, the oldest for {duration(waited)}; batch {heartbeat.batch_id}."
        if waited > limits.backlog_seconds_max:
            return Finding(
                "unhealthy",
                "BACKLOG_OLD",
                detail,
                "Give it more cores or larger batches (max_files_per_batch, max_bytes_per_batch) before the "
                "source's retention deletes what waits.",
            )
        if waited > limits.lag_seconds:
            return Finding("lagging", "BACKLOG", detail)
    return Finding("healthy", "OK", f"Batch {heartbeat.batch_id}; {waiting}.")


def _waiting(heartbeat: Heartbeat) -> str:
    """What waits, in the source's own measure; Kinesis tells none."""
    if heartbeat.backlog_records is not None:
        return f"{heartbeat.backlog_records} records wait"
    if heartbeat.backlog_files is None and heartbeat.oldest_pending_at is not None:
        return "records wait"
    return f"{heartbeat.backlog_files or 0} files wait"


def _silent(
    heartbeat: Heartbeat, now: datetime, limits: HealthLimits, last_input: datetime | None, norm: InputNorm | None
) -> Finding | None:
    """Input that stays away. Nothing is said while something waits: then the stream is behind, not the source."""
    if last_input is None or heartbeat.backlog_files or heartbeat.backlog_records:
        return None
    silent_seconds = (now - last_input).total_seconds()
    next_step = "Ask who sends. The stream itself is well; see alerts.md on input that stays away."
    if limits.no_input_seconds is not None:
        if silent_seconds <= limits.no_input_seconds:
            return None
        bound = f"{duration(limits.no_input_seconds)} are declared"
        return Finding("unhealthy", "INPUT_SILENT", f"No input for {duration(silent_seconds)}, and {bound}.", next_step)
    hour = silent_hour(norm, last_input, now)
    if hour is None or norm is None:
        return None
    usual = f"the hour from {hour:%H:%M} usually brings {norm.rows_by_hour[hour.hour]:.0f} rows"
    return Finding("unhealthy", "INPUT_SILENT", f"No input for {duration(silent_seconds)}, and {usual}.", next_step)
