"""Judges relays and streams by their heartbeats, not by the state of a task in a scheduler.

A verdict rests on the age of the heartbeat, on its state and error, on the age of the oldest pending file, and on the
time left until the source deletes it. It is a pure function of what was read, so that the health DAG, the status page
and the command line agree.
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
#: A cause of verdicts, and the alert on it.
ROWS_QUARANTINED = "ROWS_QUARANTINED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The state of a relay or a stream, its cause, and what to do about it.

    `since` is when it was first judged so, by state or by cause, as far as earlier verdicts were available.
    `time_left_seconds` is what is left until its source deletes the oldest that waits, where that is known; `loss_near`
    says that it is too little. `last_input_at` is when input was last seen, over all its runs. `rejection` says of a
    stream that too much of what it reads goes to quarantine, whatever else its state is.
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
        """Whether someone has to look at it."""
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
    """Judge one relay or stream.

    Args:
        paused: whether its DAG is paused; None where that is not known.
        previous: the verdict of the last check, from which `since`, the last input and the grace of one that has never
            written a heartbeat are counted.
        norm: the usual input by hour of the day, where that is known.
        throughput: what a stream has read lately, where that is known.
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
    # One that starts is not well yet: a loop of starts must show as one.
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
    """Whether a process writes it: its last one has not said that it ended, and is not too old."""
    age = age_seconds(heartbeat.written_at, now)
    return heartbeat.state not in ("ended", "failed") and age <= limits.stale_seconds(heartbeat.trigger_seconds)


def quarantine_next_step(name: str) -> str:
    """What to do about too many rows in quarantine."""
    return (
        f"`deltaworks quarantine list {name}`, and show: mend what sends, or pipeline.yaml; then "
        f"`deltaworks quarantine replay {name}` lands what was kept. See reference/alerts.md#too-much-goes-to-quarantine."
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
        return Finding("stopping", "STOP_REQUESTED", f"Asked to stop by {stop.by} at {stop.at}; a batch is ending.")
    if stop is not None:
        return finding_of_stopped(stop, name)
    if paused:
        return finding_of_paused(heartbeat, name, age)
    return finding_of_dead(heartbeat, age, limits)


def _expiring(finding: Finding, left_seconds: float) -> Finding:
    end = (
        f"was over {format_duration(-left_seconds)} ago"
        if left_seconds < 0
        else f"is over in {format_duration(left_seconds)}"
    )
    return Finding(
        "unhealthy",
        "SOURCE_EXPIRES",
        f"What the source keeps for the oldest that waits {end}: {finding.detail}",
        "Raise the source's retention now, then see why the stream is behind.",
    )


def _last_input(heartbeat: Heartbeat, previous: Verdict | None, kind: SubjectKind) -> datetime | None:
    """When a stream last had input: its last batch, since batches run only on input, or else the start of its run."""
    if kind != "stream":
        return None
    # Input is not expected of a stream that was stopped or paused.
    before = previous if previous is not None and previous.state not in ("stopped", "stopping", "paused") else None
    instants = [
        at
        for text in (heartbeat.last_batch_at, before.last_input_at if before else None)
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
    """The finding, or RESTART_LOOP where several checks in a row found it starting: each run is young, none works."""
    if finding.state != "starting" or previous is None:
        return finding
    starting_seconds = (now - previous.since).total_seconds()
    if previous.cause == "RESTART_LOOP" or (
        previous.state == "starting" and starting_seconds > limits.starting_seconds_max
    ):
        return Finding(
            "unhealthy",
            "RESTART_LOOP",
            f"It has been starting for {format_duration(starting_seconds)} without getting well: {finding.detail}",
            "Open the log of its DAG's last failed run: its last lines name the condition.",
        )
    return finding


def verdict_of(
    finding: Finding, *, kind: SubjectKind, name: str, now: datetime, previous: Verdict | None = None
) -> Verdict:
    """The verdict on something without input of its own, such as a collector or a vault.

    It holds since `previous` as long as neither the state nor the cause has changed. Of a relay or a stream one of the
    two is enough, since its cause may change while it stays unhealthy.
    """
    is_unchanged = previous is not None and (previous.state, previous.cause) == (finding.state, finding.cause)
    return _as_verdict(finding, kind, name, since=previous.since if previous is not None and is_unchanged else now)


def unreadable_verdict(
    error: Exception, *, kind: SubjectKind, name: str, now: datetime, previous: Verdict | None = None
) -> Verdict:
    """The verdict where the heartbeat itself could not be read."""
    finding = Finding(
        "unhealthy",
        "HEARTBEAT_UNREADABLE",
        f"{type(error).__name__}: {error}",
        "Check that the lake's storage answers and that its keys in the environment are right.",
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
    """The verdict where the declaration is wrong: a run under way continues, and no other is started."""
    limits = limits or HealthLimits()
    is_running = heartbeat is not None and is_live(heartbeat, limits, now)
    under_way = " Its run under way goes on, as it was declared when it started." if is_running else " It does not run."
    finding = Finding("unhealthy", "INVALID_DECLARATION", error.message + under_way, error.hint)
    return _verdict(finding, kind, name, now, previous)


def _missing_seconds(previous: Verdict | None, now: datetime) -> float:
    if previous is None or previous.cause != "NEVER_STARTED":
        return 0.0
    return (now - previous.since).total_seconds()
