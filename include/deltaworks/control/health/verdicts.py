"""Evaluates the health of relays and streams from their heartbeats, not from task states of the scheduler.

A verdict depends on the age, state and error of the heartbeat, on the age of the oldest pending input and on the time
left until the source deletes it. It is a pure function of its input, so the health DAG, the status page and the
commands agree.

A stream that does not run was stopped, paused, ended, failed, went silent or never started. A running stream may report
an error, start slowly, make no progress, lose data, hold a table back, lag, or receive no input. Each finding has a
state, a cause, a detail and the next step.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal

from deltaworks.control.clock import parse_iso
from deltaworks.control.health.heartbeat import Heartbeat, StopRequest
from deltaworks.control.health.limits import (
    Finding,
    HealthLimits,
    HealthState,
    InputRate,
    age_seconds,
    format_duration,
    is_loss_near,
    silent_hour,
    time_left_seconds,
)
from deltaworks.control.health.throughput import Throughput, describe_quarantine_excess
from deltaworks.errors import DeltaworksError
from deltaworks.specs.dag_ids import dag_id


def finding_of_unstarted(
    name: str, stop: StopRequest | None, paused: bool | None, missing_seconds: float, limits: HealthLimits, *, dag: str
) -> Finding:
    """Returns the finding for a stream that has never written a heartbeat."""
    if stop is not None:
        return finding_of_stopped(stop, name)
    if paused:
        return Finding("paused", "PAUSED", "It has never run, and its DAG is paused.", f"deltaworks start {name}")
    detail = f"No heartbeat has been written; missing for {format_duration(missing_seconds)}."
    if missing_seconds <= limits.grace_seconds:
        return Finding("starting", "NEVER_STARTED", detail)
    return Finding("unhealthy", "NEVER_STARTED", detail, f"Open the log of the last run of the DAG {dag}.")


def finding_of_stopped(stop: StopRequest, name: str) -> Finding:
    """Returns the finding for a stream that was stopped on request."""
    detail = f"Stopped by {stop.by} at {stop.at}: {stop.reason}."
    return Finding("stopped", "STOP_REQUESTED", detail, stop.restart_command(name))


def finding_of_dead(heartbeat: Heartbeat, silent_seconds: float, limits: HealthLimits, *, dag: str) -> Finding:
    """Returns the finding for a stream whose heartbeat reports its end or is too old."""
    if heartbeat.state == "failed":
        return _failed(heartbeat, silent_seconds, limits, dag)
    return _ended(silent_seconds, limits, dag) if heartbeat.state == "ended" else _stale(heartbeat, silent_seconds, dag)


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


def finding_of_last_run(name: str) -> Finding:
    """Returns the finding for a stream that runs although its DAG is paused without a stop request."""
    return Finding(
        "unhealthy",
        "PAUSED_WHILE_RUNNING",
        "Its DAG is paused, and nobody requested a stop: the run under way is its last.",
        f"deltaworks start {name}. If it is intended: deltaworks stop {name}.",
    )


def _failed(heartbeat: Heartbeat, silent_seconds: float, limits: HealthLimits, dag: str) -> Finding:
    error = heartbeat.error or {}
    condition = str(error.get("condition", "FAILED"))
    detail = f"It failed {format_duration(silent_seconds)} ago{_error_suffix(heartbeat)}."
    if error.get("retryable", True) and silent_seconds <= limits.grace_seconds:
        return Finding("starting", condition, detail + " It is being restarted.")
    hint = str(error.get("hint") or f"Open the log of the last run of the DAG {dag}.")
    return Finding("unhealthy", condition, detail, hint)


def _ended(silent_seconds: float, limits: HealthLimits, dag: str) -> Finding:
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
        f"Check that the DAG {dag} is not paused, its pool has a free slot and the scheduler is running.",
    )


def _stale(heartbeat: Heartbeat, silent_seconds: float, dag: str) -> Finding:
    return Finding(
        "unhealthy",
        "HEARTBEAT_STALE",
        f"Its last heartbeat is {format_duration(silent_seconds)} old (process {heartbeat.pid} on {heartbeat.host}, "
        f"run {heartbeat.run}).",
        f"If the task of the DAG {dag} is running, clear it: the stream resumes where it was. Otherwise check the "
        "scheduler and the pool.",
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


# Verdicts from findings.

#: The environment variable with the start of the embedded stack; until its processes run, their last state is old.
STARTED_AT_VARIABLE: Final = "DELTAWORKS_STARTED_AT"
SubjectKind = Literal[
    "relay", "stream", "rules", "sql_server", "spark_connect", "feeds", "remediation", "collector", "vault"
]
#: Cause of a verdict, and name of its alert.
ROWS_QUARANTINED = "ROWS_QUARANTINED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The state of a relay or stream, its cause, and the next step.

    Args:
        since: start of the current state or cause, as far as earlier verdicts are known.
        time_left_seconds: seconds until the source deletes its oldest unread input, if known. loss_near: it is too
            short.
        last_input_at: time of the last input, over all runs.
        quarantine_excess: text about too many quarantined events, in any state; empty if there are few.
    """

    kind: SubjectKind
    name: str
    state: HealthState
    cause: str
    detail: str
    next_step: str
    since: datetime
    time_left_seconds: float | None = None
    loss_near: bool = False
    last_input_at: str | None = None
    quarantine_excess: str = ""

    @property
    def is_unhealthy(self) -> bool:
        """Whether a person must act."""
        return self.state == "unhealthy"


def evaluate_health(
    heartbeat: Heartbeat | None,
    stop: StopRequest | None,
    *,
    kind: SubjectKind,
    name: str,
    now: datetime,
    dag: str = "",
    paused: bool | None = None,
    previous: Verdict | None = None,
    limits: HealthLimits | None = None,
    input_rate: InputRate | None = None,
    throughput: Throughput | None = None,
) -> Verdict:
    """Evaluates one relay or stream.

    Args:
        dag: the DAG that runs it; without it, the DAG of its name and kind.
        paused: whether its DAG is paused; None if unknown.
        previous: the verdict of the last check, for `since`, the last input, and the grace period before the first
            heartbeat.
        input_rate: usual input by hour of the day, if known.
        throughput: recent throughput of the stream, if known.
    """
    limits, dag = limits or HealthLimits(), dag or dag_id(name, kind)
    up_seconds = _up_seconds(now)
    if heartbeat is None:
        missing_seconds = min(_missing_seconds(previous, now), up_seconds)
        finding = finding_of_unstarted(name, stop, paused, missing_seconds, limits, dag=dag)
        return _verdict(_detect_restart_loop(finding, previous, now, limits), kind, name, now, previous)
    is_dead = not is_live(heartbeat, limits, now)
    last_input = _last_input(heartbeat, previous, kind)
    if is_dead or stop is not None:
        finding = _not_running(
            heartbeat, stop, name, now, dag=dag, paused=paused, limits=limits, is_dead=is_dead, previous=previous
        )
    else:
        finding = finding_of_live(heartbeat, now, limits, last_input=last_input, input_rate=input_rate)
        if paused and finding.state != "unhealthy":
            finding = finding_of_last_run(name)
    left_seconds = time_left_seconds(heartbeat, limits, now, is_dead=is_dead)
    loss_near = is_loss_near(left_seconds, heartbeat, limits)
    if loss_near and left_seconds is not None and finding.state in ("healthy", "lagging", "starting"):
        finding = _expiring(finding, left_seconds)
    quarantine_excess = describe_quarantine_excess(throughput, limits, now) if throughput is not None else ""
    # Quarantine does not change the state of a starting stream; otherwise a restart loop would not be detected.
    if quarantine_excess and finding.state in ("healthy", "lagging"):
        finding = Finding("unhealthy", "ROWS_QUARANTINED", quarantine_excess, quarantine_next_step(name))
    verdict = _verdict(_detect_restart_loop(finding, previous, now, limits), kind, name, now, previous)
    return replace(
        verdict,
        time_left_seconds=left_seconds,
        loss_near=loss_near,
        last_input_at=last_input.isoformat() if last_input else None,
        quarantine_excess=quarantine_excess,
    )


def is_live(heartbeat: Heartbeat, limits: HealthLimits, now: datetime) -> bool:
    """Whether a process writes the heartbeat: it has not reported its end and is not too old."""
    age = age_seconds(heartbeat.written_at, now)
    return heartbeat.state not in ("ended", "failed") and age <= limits.stale_seconds(heartbeat.trigger_seconds)


def quarantine_next_step(name: str) -> str:
    """Returns the next step for too many quarantined rows."""
    return (
        f"See `deltaworks quarantine list {name}` and `show`. Fix the producer or pipeline.yaml, then run "
        f"`deltaworks quarantine replay {name}`. See reference/alerts.md#too-much-goes-to-quarantine."
    )


def _not_running(
    heartbeat: Heartbeat,
    stop: StopRequest | None,
    name: str,
    now: datetime,
    *,
    dag: str,
    paused: bool | None,
    limits: HealthLimits,
    is_dead: bool,
    previous: Verdict | None,
) -> Finding:
    age = age_seconds(heartbeat.written_at, now)
    if stop is not None and not is_dead:
        return Finding(
            "stopping", "STOP_REQUESTED", (f"Stop requested by {stop.by} at {stop.at}; the current batch is ending.")
        )
    if stop is not None:
        return finding_of_stopped(stop, name)
    if paused:
        return finding_of_paused(heartbeat, name, age)
    up_seconds = _up_seconds(now)
    if up_seconds < min(age, limits.grace_seconds):
        detail = f"The stack started {format_duration(up_seconds)} ago; the next run is starting."
        return Finding("starting", "BETWEEN_RUNS", detail)
    if _is_starting_again(heartbeat, previous, now, paused=paused, limits=limits):
        return Finding("starting", "BETWEEN_RUNS", "It was started again; the heartbeat is still that of its last run.")
    return finding_of_dead(heartbeat, age, limits, dag=dag)


#: Causes of verdicts on processes that nothing was meant to run.
_NOT_MEANT_TO_RUN: Final = ("PAUSED", "PAUSED_WITHOUT_STOP", "STOP_REQUESTED")


def _is_starting_again(
    heartbeat: Heartbeat, previous: Verdict | None, now: datetime, *, paused: bool | None, limits: HealthLimits
) -> bool:
    """Returns whether a run has been started since the heartbeat was written, which it has not replaced yet.

    The check before saw a stopped or paused process, or found that its task had just started (`is_starting`).
    """
    if previous is None or heartbeat.state == "ended":
        return False
    if previous.cause in _NOT_MEANT_TO_RUN:
        return paused is False
    is_starting = (previous.state, previous.cause) == ("starting", "BETWEEN_RUNS")
    return is_starting and (now - previous.since).total_seconds() <= limits.grace_seconds


def _expiring(finding: Finding, left_seconds: float) -> Finding:
    end = (
        f"ended {format_duration(-left_seconds)} ago"
        if left_seconds < 0
        else f"ends in {format_duration(left_seconds)}"
    )
    return Finding(
        "unhealthy",
        "SOURCE_EXPIRES",
        f"The source's retention for the oldest unread input {end}: {finding.detail}",
        "Raise the source's retention now, then find out why the stream is behind.",
    )


def _last_input(heartbeat: Heartbeat, previous: Verdict | None, kind: SubjectKind) -> datetime | None:
    """Returns the time of a stream's last input: its last batch (batches run only on input), or else the start of its
    run.
    """
    if kind != "stream":
        return None
    # A stopped or paused stream expects no input.
    active_previous = (
        previous if previous is not None and previous.state not in ("stopped", "stopping", "paused") else None
    )
    instants = [
        at
        for text in (heartbeat.last_batch_at, active_previous.last_input_at if active_previous else None)
        if (at := parse_iso(text)) is not None
    ]
    return max(instants, default=parse_iso(heartbeat.started_at))


def _verdict(finding: Finding, kind: SubjectKind, name: str, now: datetime, previous: Verdict | None) -> Verdict:
    is_unchanged = previous is not None and (previous.cause == finding.cause or previous.state == finding.state)
    return _as_verdict(finding, kind, name, since=previous.since if previous is not None and is_unchanged else now)


def _as_verdict(finding: Finding, kind: SubjectKind, name: str, *, since: datetime) -> Verdict:
    return Verdict(
        kind=kind,
        name=name,
        state=finding.state,
        cause=finding.cause,
        detail=finding.detail,
        next_step=finding.next_step,
        since=since,
    )


def _detect_restart_loop(finding: Finding, previous: Verdict | None, now: datetime, limits: HealthLimits) -> Finding:
    """Replaces the finding with RESTART_LOOP if the stream has been starting for too long over consecutive checks."""
    if finding.state != "starting" or previous is None:
        return finding
    starting_seconds = (now - previous.since).total_seconds()
    if previous.cause == "RESTART_LOOP" or (
        previous.state == "starting" and starting_seconds > limits.starting_seconds_max
    ):
        return Finding(
            "unhealthy",
            "RESTART_LOOP",
            f"It has been starting for {format_duration(starting_seconds)} without becoming healthy: {finding.detail}",
            "Open the log of the last failed run of its DAG: the last lines name the condition.",
        )
    return finding


def verdict_of(
    finding: Finding, *, kind: SubjectKind, name: str, now: datetime, previous: Verdict | None = None
) -> Verdict:
    """Builds the verdict of a process without input of its own, such as a collector or a vault.

    The time `since` is kept only while both state and cause are unchanged. For relays and streams an unchanged state or
    an unchanged cause is enough, because the cause may change while they stay unhealthy.
    """
    is_unchanged = previous is not None and (previous.state, previous.cause) == (finding.state, finding.cause)
    return _as_verdict(finding, kind, name, since=previous.since if previous is not None and is_unchanged else now)


def starting_verdict(verdict: Verdict, *, started_at: datetime, now: datetime) -> Verdict:
    """Builds the verdict of a process whose task started a short time ago, and whose heartbeat an earlier run wrote."""
    age = format_duration((now - started_at).total_seconds())
    finding = Finding(
        "starting", "BETWEEN_RUNS", f"Its task started {age} ago; the heartbeat is still that of its last run."
    )
    return _as_verdict(finding, verdict.kind, verdict.name, since=started_at)


def unreadable_verdict(
    error: Exception, *, kind: SubjectKind, name: str, now: datetime, previous: Verdict | None = None
) -> Verdict:
    """Builds the verdict for a heartbeat that could not be read."""
    finding = Finding(
        "unhealthy",
        "HEARTBEAT_UNREADABLE",
        f"{type(error).__name__}: {error}",
        "Check that the lake's storage answers and that its credentials in the environment are correct.",
    )
    return _verdict(finding, kind, name, now, previous)


def invalid_spec_verdict(
    error: DeltaworksError,
    *,
    kind: SubjectKind,
    name: str,
    now: datetime,
    previous: Verdict | None = None,
    heartbeat: Heartbeat | None = None,
    limits: HealthLimits | None = None,
) -> Verdict:
    """Builds the verdict for an invalid spec: a process that already runs continues, but no new one can start."""
    limits = limits or HealthLimits()
    is_running = heartbeat is not None and is_live(heartbeat, limits, now)
    run_text = " The current run continues with the previous spec." if is_running else " It is not running."
    finding = Finding("unhealthy", "INVALID_DECLARATION", error.message + run_text, error.hint)
    return _verdict(finding, kind, name, now, previous)


def _up_seconds(now: datetime) -> float:
    """Returns the seconds since the stack was started; infinity if its processes are started by other means."""
    return age_seconds(os.environ.get(STARTED_AT_VARIABLE) or None, now)


def _missing_seconds(previous: Verdict | None, now: datetime) -> float:
    if previous is None or previous.cause != "NEVER_STARTED":
        return 0.0
    return (now - previous.since).total_seconds()
