"""Evaluates the health of relays and streams from their heartbeats, not from task states of the scheduler.

A verdict depends on the age, state and error of the heartbeat, on the age of the oldest pending input and on the time
left until the source deletes it. It is a pure function of its input, so the health DAG, the status page and the
commands agree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from deltaworks.control.clock import parse_iso
from deltaworks.control.health.findings import (
    finding_of_dead,
    finding_of_live,
    finding_of_paused,
    finding_of_stopped,
    finding_of_unstarted,
)
from deltaworks.control.health.heartbeat import Heartbeat
from deltaworks.control.health.limits import (
    Finding,
    HealthLimits,
    HealthState,
    InputRate,
    age_seconds,
    format_duration,
    is_loss_near,
    time_left_seconds,
)
from deltaworks.control.health.stop import StopRequest
from deltaworks.control.health.throughput import Throughput, describe_quarantine_excess
from deltaworks.errors import DeltaworksError

SubjectKind = Literal["relay", "stream", "rules", "feeds", "remediation", "collector", "vault"]
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
    paused: bool | None = None,
    previous: Verdict | None = None,
    limits: HealthLimits | None = None,
    input_rate: InputRate | None = None,
    throughput: Throughput | None = None,
) -> Verdict:
    """Evaluates one relay or stream.

    Args:
        paused: whether its DAG is paused; None if unknown.
        previous: the verdict of the last check, for `since`, the last input, and the grace period before the first
            heartbeat.
        input_rate: usual input by hour of the day, if known.
        throughput: recent throughput of the stream, if known.
    """
    limits = limits or HealthLimits()
    if heartbeat is None:
        finding = finding_of_unstarted(name, stop, paused, _missing_seconds(previous, now), limits)
        return _verdict(_detect_restart_loop(finding, previous, now, limits), kind, name, now, previous)
    is_dead = not is_live(heartbeat, limits, now)
    last_input = _last_input(heartbeat, previous, kind)
    if is_dead or stop is not None:
        finding = _not_running(heartbeat, stop, name, now, paused=paused, limits=limits, is_dead=is_dead)
    else:
        finding = finding_of_live(heartbeat, now, limits, last_input=last_input, input_rate=input_rate)
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
    paused: bool | None,
    limits: HealthLimits,
    is_dead: bool,
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
    return finding_of_dead(heartbeat, age, limits)


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


def _missing_seconds(previous: Verdict | None, now: datetime) -> float:
    if previous is None or previous.cause != "NEVER_STARTED":
        return 0.0
    return (now - previous.since).total_seconds()
