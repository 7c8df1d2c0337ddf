"""Judges relays and streams by what they last said of themselves, not by a green light in a scheduler.

A verdict rests on the age of the heartbeat, on its state and error, and on how old the oldest pending file is. It is a
pure function of what was read, so that the health DAG, the status page and the command line agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from deltaworks.control.clock import parse_iso
from deltaworks.control.heartbeat import Heartbeat
from deltaworks.control.stop import StopRequest
from deltaworks.errors import DeltaworksError

State = Literal["healthy", "lagging", "starting", "stopping", "stopped", "paused", "unhealthy"]
Kind = Literal["relay", "stream"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthLimits:
    """How long what may last before it counts as unhealthy. Seconds throughout."""

    stale_triggers: float = 3
    stale_seconds_min: float = 120
    grace_seconds: float = 180
    starting_seconds_max: float = 600
    stall_seconds: float = 900
    lag_seconds: float = 300
    backlog_seconds_max: float = 3600

    def stale_seconds(self, trigger_seconds: float) -> float:
        """The age from which a heartbeat says that its writer hangs or is gone."""
        return max(self.stale_triggers * trigger_seconds, self.stale_seconds_min)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a relay or a stream is, why, and what to do about it.

    `since` is when it was first judged so, by state or by cause, as far as earlier verdicts were known.
    """

    kind: Kind
    name: str
    state: State
    cause: str
    detail: str
    next_step: str
    since: datetime

    @property
    def unhealthy(self) -> bool:
        """Whether somebody has to look at it."""
        return self.state == "unhealthy"


@dataclass(frozen=True, slots=True)
class _Finding:
    state: State
    cause: str
    detail: str
    next_step: str = ""


def judge(
    heartbeat: Heartbeat | None,
    stop: StopRequest | None,
    *,
    kind: Kind,
    name: str,
    now: datetime,
    paused: bool | None = None,
    previous: Verdict | None = None,
    limits: HealthLimits | None = None,
) -> Verdict:
    """Say how one relay or stream is.

    Args:
        paused: whether the scheduler was told to start it no more; None where that is not known.
        previous: the verdict of the last check, from which `since` and the grace of one that has never
            written a heartbeat are counted.
    """
    limits = limits or HealthLimits()
    if heartbeat is None:
        finding = _never_started(name, stop, paused, _missing_seconds(previous, now), limits)
    else:
        finding = _judge_heartbeat(heartbeat, stop, name, now, paused=paused, limits=limits)
    return _verdict(_without_loop(finding, previous, now, limits), kind, name, now, previous)


def _verdict(finding: _Finding, kind: Kind, name: str, now: datetime, previous: Verdict | None) -> Verdict:
    lasting = previous is not None and (previous.cause == finding.cause or previous.state == finding.state)
    return Verdict(
        kind=kind,
        name=name,
        state=finding.state,
        cause=finding.cause,
        detail=finding.detail,
        next_step=finding.next_step,
        since=previous.since if previous is not None and lasting else now,
    )


def _without_loop(finding: _Finding, previous: Verdict | None, now: datetime, limits: HealthLimits) -> _Finding:
    """One that starts again and again, each time young, never gets well: seen over several checks it is ill."""
    if finding.state != "starting" or previous is None:
        return finding
    starting_seconds = (now - previous.since).total_seconds()
    if previous.cause == "RESTART_LOOP" or (
        previous.state == "starting" and starting_seconds > limits.starting_seconds_max
    ):
        return _Finding(
            "unhealthy",
            "RESTART_LOOP",
            f"It has been starting for {_duration(starting_seconds)} without getting well: {finding.detail}",
            "Open the log of its DAG's last failed run: its last lines name the condition.",
        )
    return finding


def unreadable(error: Exception, *, kind: Kind, name: str, now: datetime, previous: Verdict | None = None) -> Verdict:
    """The verdict where the heartbeat itself could not be read."""
    finding = _Finding(
        "unhealthy",
        "HEARTBEAT_UNREADABLE",
        f"{type(error).__name__}: {error}",
        "Check that the lake's storage answers and that its keys in the environment are right.",
    )
    return _verdict(finding, kind, name, now, previous)


def declared_wrongly(
    error: DeltaworksError, *, kind: Kind, name: str, now: datetime, previous: Verdict | None = None
) -> Verdict:
    """The verdict where the declaration is wrong: a run under way goes on, and no other is started."""
    finding = _Finding("unhealthy", "DECLARED_WRONGLY", error.message, error.hint)
    return _verdict(finding, kind, name, now, previous)


def _missing_seconds(previous: Verdict | None, now: datetime) -> float:
    if previous is None or previous.cause != "NEVER_STARTED":
        return 0.0
    return (now - previous.since).total_seconds()


def _never_started(
    name: str, stop: StopRequest | None, paused: bool | None, missing_seconds: float, limits: HealthLimits
) -> _Finding:
    if stop is not None:
        return _stopped(stop, name)
    if paused:
        return _Finding("paused", "PAUSED", "It has never run and its DAG is paused.", f"deltaworks start {name}")
    detail = f"It has never written a heartbeat; looked for since {_duration(missing_seconds)}."
    if missing_seconds <= limits.grace_seconds:
        return _Finding("starting", "NEVER_STARTED", detail)
    return _Finding("unhealthy", "NEVER_STARTED", detail, "Open the log of its DAG's last run.")


def _stopped(stop: StopRequest, name: str) -> _Finding:
    detail = f"Stopped by {stop.by} at {stop.at}: {stop.reason}."
    return _Finding("stopped", "STOP_REQUESTED", detail, f"deltaworks start {name}")


def _judge_heartbeat(
    heartbeat: Heartbeat,
    stop: StopRequest | None,
    name: str,
    now: datetime,
    *,
    paused: bool | None,
    limits: HealthLimits,
) -> _Finding:
    age = _age_seconds(heartbeat.written_at, now)
    gone = heartbeat.state in ("ended", "failed") or age > limits.stale_seconds(heartbeat.trigger_seconds)
    if stop is not None and not gone:
        return _Finding("stopping", "STOP_REQUESTED", f"Asked to stop by {stop.by} at {stop.at}; a batch is ending.")
    if stop is not None:
        return _stopped(stop, name)
    if not gone:
        return _judge_live(heartbeat, now, limits)
    return _paused(heartbeat, name, age) if paused else _judge_gone(heartbeat, age, limits)


def _judge_gone(heartbeat: Heartbeat, age: float, limits: HealthLimits) -> _Finding:
    if heartbeat.state == "failed":
        return _failed(heartbeat, age, limits)
    return _ended(age, limits) if heartbeat.state == "ended" else _stalled(heartbeat, age)


def _paused(heartbeat: Heartbeat, name: str, age: float) -> _Finding:
    if heartbeat.state == "ended":
        ended = f"Its DAG is paused; it ended {_duration(age)} ago."
        return _Finding("paused", "PAUSED", ended, f"deltaworks start {name}")
    return _Finding(
        "unhealthy",
        "PAUSED_WITHOUT_STOP",
        f"Its DAG is paused, nobody asked it to stop, and it last was {heartbeat.state!r} "
        f"{_duration(age)} ago{_reason(heartbeat)}.",
        f"If that is meant: deltaworks stop {name}. If not (a DAG pauses itself after many failed runs): "
        f"mend the cause, then deltaworks start {name}.",
    )


def _failed(heartbeat: Heartbeat, age: float, limits: HealthLimits) -> _Finding:
    error = heartbeat.error or {}
    condition = str(error.get("condition", "FAILED"))
    detail = f"It failed {_duration(age)} ago{_reason(heartbeat)}."
    if error.get("retryable", True) and age <= limits.grace_seconds:
        return _Finding("starting", condition, detail + " It is being started again.")
    hint = str(error.get("hint") or "Open the log of its DAG's last run.")
    return _Finding("unhealthy", condition, detail, hint)


def _ended(age: float, limits: HealthLimits) -> _Finding:
    if age <= limits.grace_seconds:
        return _Finding("starting", "BETWEEN_RUNS", f"It ended its run {_duration(age)} ago; the next one is starting.")
    return _Finding(
        "unhealthy",
        "NOT_RESTARTED",
        f"It ended its run {_duration(age)} ago and no new one has begun.",
        "Check that its DAG is not paused, that its pool has a free slot and that the scheduler is alive.",
    )


def _stalled(heartbeat: Heartbeat, age: float) -> _Finding:
    return _Finding(
        "unhealthy",
        "HEARTBEAT_STALE",
        f"Its last heartbeat is {_duration(age)} old (process {heartbeat.pid} on {heartbeat.host}, "
        f"run {heartbeat.run}).",
        "If its task runs, clear it: it resumes where it was. If it does not, check scheduler and pool.",
    )


def _judge_live(heartbeat: Heartbeat, now: datetime, limits: HealthLimits) -> _Finding:
    running_seconds = _age_seconds(heartbeat.started_at, now)
    if heartbeat.error is not None:
        hint = str(heartbeat.error.get("hint") or "Open its driver log.")
        condition = str(heartbeat.error.get("condition", "ERROR"))
        return _Finding("unhealthy", condition, f"It reports{_reason(heartbeat)}.", hint)
    if heartbeat.state == "starting":
        if running_seconds <= limits.starting_seconds_max:
            return _Finding("starting", "STARTING", f"It started {_duration(running_seconds)} ago.")
        return _Finding(
            "unhealthy",
            "START_SLOW",
            f"It has been starting for {_duration(running_seconds)}.",
            "Open its driver log: the lease may be held by another process, or the cluster has no room.",
        )
    progress_seconds = min(running_seconds, _age_seconds(heartbeat.last_batch_at or heartbeat.started_at, now))
    if (heartbeat.backlog_files or heartbeat.backlog_records) and progress_seconds > limits.stall_seconds:
        return _Finding(
            "unhealthy",
            "NO_PROGRESS",
            f"{_waiting(heartbeat)} and the last batch was completed {_duration(progress_seconds)} ago.",
            "Open the Spark UI and the driver log; clearing the task restarts it where it was.",
        )
    return _suspended(heartbeat, now) or _lost(heartbeat) or _judge_backlog(heartbeat, now, limits)


def _lost(heartbeat: Heartbeat) -> _Finding | None:
    """Files missing between the bucket and the tables, messages nobody could deliver, records that expired."""
    if heartbeat.dead_letters:
        return _Finding(
            "unhealthy",
            "DEAD_LETTERS",
            f"About {heartbeat.dead_letters} messages were delivered too often and lie in the dead-letter queue.",
            f"deltaworks files redrive {heartbeat.pipeline}; its files are not in the log until then.",
        )
    if heartbeat.lost_files:
        return _Finding(
            "unhealthy",
            "FILES_LOST",
            f"{heartbeat.lost_files} objects were never announced, or were gone before they were read, "
            f"such as {', '.join(heartbeat.lost_examples[:3])}.",
            "deltaworks files show, for one of them, says what became of it; see operating.md on lost files.",
        )
    if heartbeat.lost_ranges:
        such = ", ".join(heartbeat.lost_examples[:3])
        detail = f"{heartbeat.lost_ranges} ranges of records expired before they were read, such as {such}."
        return _Finding("unhealthy", "RECORDS_LOST", detail, "Quarantine has a row for each: code records_lost.")
    return None


def _suspended(heartbeat: Heartbeat, now: datetime) -> _Finding | None:
    """Tables whose commits failed. The stream goes on without them; somebody has to mend them."""
    tables = [held for held in heartbeat.held if held.get("reason") == "suspended"]
    if not tables:
        return None
    first = tables[0]
    names = ", ".join(str(held.get("table")) for held in tables)
    suspended_seconds = max(_age_seconds(str(held.get("at")), now) for held in tables)
    return _Finding(
        "unhealthy",
        "TABLE_SUSPENDED",
        f"Held back for {_duration(suspended_seconds)}: {names}. {first.get('table')} since batch "
        f"{first.get('since_batch')}: [{first.get('condition')}] {first.get('message')}",
        f"Mend the table (the condition says how), then `deltaworks tables resume {heartbeat.pipeline} "
        f"{first.get('table')}`. Nothing is lost meanwhile; the other tables go on.",
    )


def _judge_backlog(heartbeat: Heartbeat, now: datetime, limits: HealthLimits) -> _Finding:
    waiting = _waiting(heartbeat)
    if heartbeat.oldest_pending_at is not None:
        waited = _age_seconds(heartbeat.oldest_pending_at, now)
        detail = f"{waiting}, the oldest for {_duration(waited)}; batch {heartbeat.batch_id}."
        if waited > limits.backlog_seconds_max:
            return _Finding(
                "unhealthy",
                "BACKLOG_OLD",
                detail,
                "Give it more cores or larger batches (max_files_per_batch, max_bytes_per_batch) before the "
                "source's retention deletes what waits.",
            )
        if waited > limits.lag_seconds:
            return _Finding("lagging", "BACKLOG", detail)
    return _Finding("healthy", "OK", f"Batch {heartbeat.batch_id}; {waiting}.")


def _waiting(heartbeat: Heartbeat) -> str:
    """What waits, in the source's own measure; Kinesis tells none."""
    if heartbeat.backlog_records is not None:
        return f"{heartbeat.backlog_records} records wait"
    if heartbeat.backlog_files is None and heartbeat.oldest_pending_at is not None:
        return "records wait"
    return f"{heartbeat.backlog_files or 0} files wait"


def _reason(heartbeat: Heartbeat) -> str:
    if heartbeat.error is None:
        return ""
    return f": [{heartbeat.error.get('condition', '?')}] {heartbeat.error.get('message', '')}".rstrip(".")


def _age_seconds(text: str, now: datetime) -> float:
    """Seconds since then; a clock that is ahead of ours counts as now."""
    instant = parse_iso(text)
    return max(0.0, (now - instant).total_seconds()) if instant else float("inf")


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
