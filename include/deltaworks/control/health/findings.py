"""Health findings of one relay or stream: state, cause, detail and next step.

Pure functions of the heartbeat, the stop flag and the state of the DAG. A stream that does not run was stopped, paused,
ended, failed, went silent or never started. A running stream may report an error, start slowly, make no progress, lose
data, hold a table back, lag, or receive no input.
"""

from __future__ import annotations

from datetime import datetime

from deltaworks.control.health.heartbeat import Heartbeat
from deltaworks.control.health.limits import Finding, HealthLimits, InputRate, age_seconds, format_duration, silent_hour
from deltaworks.control.health.stop import StopRequest


def finding_of_unstarted(
    name: str, stop: StopRequest | None, paused: bool | None, missing_seconds: float, limits: HealthLimits
) -> Finding:
    """Returns the finding for a stream that has never written a heartbeat."""
    if stop is not None:
        return finding_of_stopped(stop, name)
    if paused:
        return Finding("paused", "PAUSED", "It has never run, and its DAG is paused.", f"deltaworks start {name}")
    detail = f"No heartbeat has been written; missing for {format_duration(missing_seconds)}."
    if missing_seconds <= limits.grace_seconds:
        return Finding("starting", "NEVER_STARTED", detail)
    return Finding("unhealthy", "NEVER_STARTED", detail, "Open the log of the last run of its DAG.")


def finding_of_stopped(stop: StopRequest, name: str) -> Finding:
    """Returns the finding for a stream that was stopped on request."""
    detail = f"Stopped by {stop.by} at {stop.at}: {stop.reason}."
    return Finding("stopped", "STOP_REQUESTED", detail, stop.restart_command(name))


def finding_of_dead(heartbeat: Heartbeat, silent_seconds: float, limits: HealthLimits) -> Finding:
    """Returns the finding for a stream whose heartbeat reports its end or is too old."""
    if heartbeat.state == "failed":
        return _failed(heartbeat, silent_seconds, limits)
    return _ended(silent_seconds, limits) if heartbeat.state == "ended" else _stale(heartbeat, silent_seconds)


def finding_of_paused(heartbeat: Heartbeat, name: str, silent_seconds: float) -> Finding:
    """Returns the finding for a stream that does not run and whose DAG is paused."""
    if heartbeat.state == "ended":
        detail = f"Its DAG is paused; it ended {format_duration(silent_seconds)} ago."
        return Finding("paused", "PAUSED", detail, f"deltaworks start {name}")
    return Finding(
        "unhealthy",
        "PAUSED_WITHOUT_STOP",
        f"Its DAG is paused without a stop request; its last state was {heartbeat.state!r} "
        f"{format_duration(silent_seconds)} ago{_error_suffix(heartbeat)}.",
        f"If intended: deltaworks stop {name}. Otherwise (a DAG pauses itself after many failed runs) "
        f"fix the cause, then deltaworks start {name}.",
    )


def _failed(heartbeat: Heartbeat, silent_seconds: float, limits: HealthLimits) -> Finding:
    error = heartbeat.error or {}
    condition = str(error.get("condition", "FAILED"))
    detail = f"It failed {format_duration(silent_seconds)} ago{_error_suffix(heartbeat)}."
    if error.get("retryable", True) and silent_seconds <= limits.grace_seconds:
        return Finding("starting", condition, detail + " It is being restarted.")
    hint = str(error.get("hint") or "Open the log of the last run of its DAG.")
    return Finding("unhealthy", condition, detail, hint)


def _ended(silent_seconds: float, limits: HealthLimits) -> Finding:
    if silent_seconds <= limits.grace_seconds:
        return Finding(
            "starting",
            "BETWEEN_RUNS",
            f"Its run ended {format_duration(silent_seconds)} ago; the next one is starting.",
        )
    return Finding(
        "unhealthy",
        "NOT_RESTARTED",
        f"Its run ended {format_duration(silent_seconds)} ago, and no new run has started.",
        "Check that its DAG is not paused, its pool has a free slot and the scheduler is running.",
    )


def _stale(heartbeat: Heartbeat, silent_seconds: float) -> Finding:
    return Finding(
        "unhealthy",
        "HEARTBEAT_STALE",
        f"Its last heartbeat is {format_duration(silent_seconds)} old (process {heartbeat.pid} on {heartbeat.host}, "
        f"run {heartbeat.run}).",
        "If its task is running, clear it: the stream resumes where it was. Otherwise check the scheduler and "
        "the pool.",
    )


def finding_of_live(
    heartbeat: Heartbeat,
    now: datetime,
    limits: HealthLimits,
    *,
    last_input: datetime | None = None,
    input_rate: InputRate | None = None,
) -> Finding:
    """Returns the finding for a stream with a recent heartbeat, from its errors, progress, backlog and input."""
    running_seconds = age_seconds(heartbeat.started_at, now)
    if heartbeat.error is not None:
        hint = str(heartbeat.error.get("hint") or "Open its driver log.")
        condition = str(heartbeat.error.get("condition", "ERROR"))
        return Finding("unhealthy", condition, f"It reports{_error_suffix(heartbeat)}.", hint)
    if heartbeat.state == "starting":
        if running_seconds <= limits.starting_seconds_max:
            return Finding("starting", "STARTING", f"It started {format_duration(running_seconds)} ago.")
        return Finding(
            "unhealthy",
            "START_SLOW",
            f"It has been starting for {format_duration(running_seconds)}.",
            "Open its driver log: another process may hold the lease, or the cluster has no free resources.",
        )
    progress_seconds = min(running_seconds, age_seconds(heartbeat.last_batch_at or heartbeat.started_at, now))
    if (heartbeat.backlog_files or heartbeat.backlog_records) and progress_seconds > limits.stall_seconds:
        return Finding(
            "unhealthy",
            "NO_PROGRESS",
            f"{describe_backlog(heartbeat)}, and the last batch completed {format_duration(progress_seconds)} ago.",
            "Open the Spark UI and the driver log. Clearing the task restarts the stream where it was.",
        )
    silence = _missing_input(heartbeat, now, limits, last_input, input_rate)
    finding = _suspended(heartbeat, now) or _data_loss(heartbeat) or silence or _backlog(heartbeat, now, limits)
    # Findings of the stream itself take precedence over gold failures.
    return finding if finding.state == "unhealthy" else _gold_failing(heartbeat, now) or finding


def _data_loss(heartbeat: Heartbeat) -> Finding | None:
    """Returns a finding if input was lost: missing objects, undeliverable messages or expired records."""
    if heartbeat.dead_letters:
        return Finding(
            "unhealthy",
            "DEAD_LETTERS",
            f"About {heartbeat.dead_letters} messages exceeded their delivery attempts and are in the dead-letter "
            "queue.",
            f"`deltaworks files redrive {heartbeat.pipeline}`. Until then their files are missing from the file "
            "event log.",
        )
    if heartbeat.lost_files:
        return Finding(
            "unhealthy",
            "FILES_LOST",
            f"{heartbeat.lost_files} objects were never announced, or were deleted before they were read, "
            f"such as {', '.join(heartbeat.lost_examples[:3])}.",
            "Run `deltaworks files show` for one of them; see how-to/operate.md on lost files.",
        )
    if heartbeat.lost_ranges:
        examples = ", ".join(heartbeat.lost_examples[:3])
        detail = f"{heartbeat.lost_ranges} ranges of records expired before they were read, such as {examples}."
        return Finding(
            "unhealthy", "RECORDS_LOST", detail, ("Quarantine has a row for each range, with code records_lost.")
        )
    return None


def _suspended(heartbeat: Heartbeat, now: datetime) -> Finding | None:
    """Returns a finding for tables whose commits failed.

    The stream continues without these tables until a person has fixed the cause and resumes them.
    """
    tables = [held for held in heartbeat.held if held.get("reason") == "suspended"]
    if not tables:
        return None
    first = tables[0]
    names = ", ".join(str(held.get("table")) for held in tables)
    suspended_seconds = max(age_seconds(str(held.get("at")), now) for held in tables)
    return Finding(
        "unhealthy",
        "TABLE_SUSPENDED",
        f"Suspended for {format_duration(suspended_seconds)}: {names}. {first.get('table')} since batch "
        f"{first.get('since_batch')}: [{first.get('condition')}] {first.get('message')}",
        f"Fix the table (see its condition), then run `deltaworks tables resume {heartbeat.pipeline} "
        f"{first.get('table')}`. No data is lost; the other tables continue.",
    )


def _gold_failing(heartbeat: Heartbeat, now: datetime) -> Finding | None:
    """Returns a finding for gold tables that the stream fails to refresh.

    The stream retries them; its batches commit meanwhile.
    """
    if not heartbeat.gold_failures:
        return None
    first = heartbeat.gold_failures[0]
    names = ", ".join(str(failure.get("table")) for failure in heartbeat.gold_failures)
    failing_seconds = max(age_seconds(str(failure.get("since")), now) for failure in heartbeat.gold_failures)
    return Finding(
        "unhealthy",
        "GOLD_REFRESH_FAILING",
        f"Batches commit, but gold tables cannot be built for {format_duration(failing_seconds)}: {names}. "
        f"{first.get('table')}: [{first.get('condition')}] {first.get('message')}",
        str(first.get("hint") or "Open its driver log."),
    )


def _backlog(heartbeat: Heartbeat, now: datetime, limits: HealthLimits) -> Finding:
    backlog = describe_backlog(heartbeat)
    if heartbeat.oldest_pending_at is not None:
        waited = age_seconds(heartbeat.oldest_pending_at, now)
        suffix = "" if heartbeat.batch_id is None else f"; batch {heartbeat.batch_id}"
        detail = f"{backlog}, the oldest for {format_duration(waited)}{suffix}."
        if waited > limits.backlog_seconds_max:
            return Finding(
                "unhealthy",
                "BACKLOG_OLD",
                detail,
                "Add cores or raise max_files_per_batch and max_bytes_per_batch before the "
                "source's retention deletes unread input.",
            )
        if waited > limits.lag_seconds:
            return Finding("lagging", "BACKLOG", detail)
    last_batch = "No batch in this run yet" if heartbeat.batch_id is None else f"Batch {heartbeat.batch_id}"
    return Finding("healthy", "OK", f"{last_batch}; {backlog}.")


def describe_backlog(heartbeat: Heartbeat) -> str:
    """Describes the backlog in the source's own unit; Kinesis reports no counts."""
    for count, noun in ((heartbeat.backlog_records, "record"), (heartbeat.backlog_files, "file")):
        if count:
            return f"{count:,} {noun}s wait" if count > 1 else f"1 {noun} waits"
    return "nothing waits" if heartbeat.oldest_pending_at is None else "records wait"


def _missing_input(
    heartbeat: Heartbeat, now: datetime, limits: HealthLimits, last_input: datetime | None, input_rate: InputRate | None
) -> Finding | None:
    """Returns a finding if a stream receives no input.

    Returns None while there is a backlog, because then the stream is behind and the source does send events.
    """
    if last_input is None or heartbeat.backlog_files or heartbeat.backlog_records:
        return None
    silent_seconds = (now - last_input).total_seconds()
    next_step = "Ask the producer. The stream itself is healthy; see reference/alerts.md on missing input."
    if limits.no_input_seconds is not None:
        if silent_seconds <= limits.no_input_seconds:
            return None
        bound = f"at most {format_duration(limits.no_input_seconds)} is declared"
        return Finding(
            "unhealthy", "INPUT_SILENT", f"No input for {format_duration(silent_seconds)}; {bound}.", next_step
        )
    hour = silent_hour(input_rate, last_input, now)
    if hour is None or input_rate is None:
        return None
    usual_input = f"the hour from {hour:%H:%M} usually has {input_rate.rows_by_hour[hour.hour]:.0f} rows"
    return Finding(
        "unhealthy", "INPUT_SILENT", f"No input for {format_duration(silent_seconds)}; {usual_input}.", next_step
    )


def _error_suffix(heartbeat: Heartbeat) -> str:
    """Formats the heartbeat's error as the end of a sentence."""
    if heartbeat.error is None:
        return ""
    return f": [{heartbeat.error.get('condition', '?')}] {heartbeat.error.get('message', '')}".rstrip(".")
