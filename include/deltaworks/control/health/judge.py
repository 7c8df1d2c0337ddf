"""Judges relays and streams by what they last said of themselves, not by a green light in a scheduler.

A verdict rests on the age of the heartbeat, on its state and error, on how old the oldest pending file is, and on how
much time is left until the source forgets it. It is a pure function of what was read, so that the health DAG, the
status page and the command line agree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from deltaworks.control.clock import parse_iso
from deltaworks.control.health import dead_streams as health_gone
from deltaworks.control.health.heartbeat import Heartbeat
from deltaworks.control.health.limits import Finding, HealthLimits, State, age_seconds, duration
from deltaworks.control.health.live import live
from deltaworks.control.health.norm import InputNorm
from deltaworks.control.health.retention import is_near, time_left_seconds
from deltaworks.control.health.stop import StopRequest
from deltaworks.errors import DeltaworksError

Kind = Literal["relay", "stream"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a relay or a stream is, why, and what to do about it.

    `since` is when it was first judged so, by state or by cause, as far as earlier verdicts were known.
    `time_left_seconds` is what is left until its source deletes the oldest that waits, where that is known; `loss_near`
    says that it is too little. `last_input_at` is when input was last seen, over its runs.
    """

    kind: Kind
    name: str
    state: State
    cause: str
    detail: str
    next_step: str
    since: datetime
    time_left_seconds: float | None = None
    loss_near: bool = False
    last_input_at: str | None = None

    @property
    def unhealthy(self) -> bool:
        """Whether somebody has to look at it."""
        return self.state == "unhealthy"


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
    norm: InputNorm | None = None,
) -> Verdict:
    """Say how one relay or stream is.

    Args:
        paused: whether the scheduler was told to start it no more; None where that is not known.
        previous: the verdict of the last check, from which `since`, the last input and the grace of one that has never
            written a heartbeat are counted.
        norm: how much input is usual, where that is known.
    """
    limits = limits or HealthLimits()
    if heartbeat is None:
        finding = health_gone.never_started(name, stop, paused, _missing_seconds(previous, now), limits)
        return _verdict(_without_loop(finding, previous, now, limits), kind, name, now, previous)
    is_gone = heartbeat.state in ("ended", "failed") or (
        age_seconds(heartbeat.written_at, now) > limits.stale_seconds(heartbeat.trigger_seconds)
    )
    last_input = _last_input(heartbeat, previous, kind)
    if is_gone or stop is not None:
        finding = _not_running(heartbeat, stop, name, now, paused=paused, limits=limits, is_gone=is_gone)
    else:
        finding = live(heartbeat, now, limits, last_input=last_input, norm=norm)
    left = time_left_seconds(heartbeat, limits, now, gone=is_gone)
    near = is_near(left, heartbeat, limits)
    if near and left is not None and finding.state in ("healthy", "lagging", "starting"):
        finding = _expiring(finding, left)
    found = _verdict(_without_loop(finding, previous, now, limits), kind, name, now, previous)
    return replace(
        found,
        time_left_seconds=left,
        loss_near=near,
        last_input_at=last_input.isoformat() if last_input else None,
    )


def _not_running(
    heartbeat: Heartbeat,
    stop: StopRequest | None,
    name: str,
    now: datetime,
    *,
    paused: bool | None,
    limits: HealthLimits,
    is_gone: bool,
) -> Finding:
    age = age_seconds(heartbeat.written_at, now)
    if stop is not None and not is_gone:
        return Finding("stopping", "STOP_REQUESTED", f"Asked to stop by {stop.by} at {stop.at}; a batch is ending.")
    if stop is not None:
        return health_gone.stopped(stop, name)
    if paused:
        return health_gone.paused_without_run(heartbeat, name, age)
    return health_gone.gone(heartbeat, age, limits)


def _expiring(finding: Finding, left: float) -> Finding:
    passed = f"was over {duration(-left)} ago" if left < 0 else f"is over in {duration(left)}"
    return Finding(
        "unhealthy",
        "SOURCE_EXPIRES",
        f"What the source keeps for the oldest that waits {passed}: {finding.detail}",
        "Raise the source's retention now, then see why the stream is behind.",
    )


def _last_input(heartbeat: Heartbeat, previous: Verdict | None, kind: Kind) -> datetime | None:
    """When a stream last had input. A batch is run only where there is some; a run that has had none yet says
    nothing."""
    if kind == "relay":
        return None
    # What was stopped or paused is not held to what came before.
    before = previous if previous is not None and previous.state not in ("stopped", "stopping", "paused") else None
    known = [
        at
        for text in (heartbeat.last_batch_at, before.last_input_at if before else None)
        if (at := parse_iso(text)) is not None
    ]
    return max(known, default=parse_iso(heartbeat.started_at))


def _verdict(finding: Finding, kind: Kind, name: str, now: datetime, previous: Verdict | None) -> Verdict:
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


def _without_loop(finding: Finding, previous: Verdict | None, now: datetime, limits: HealthLimits) -> Finding:
    """One that starts again and again, each time young, never gets well: seen over several checks it is ill."""
    if finding.state != "starting" or previous is None:
        return finding
    starting_seconds = (now - previous.since).total_seconds()
    if previous.cause == "RESTART_LOOP" or (
        previous.state == "starting" and starting_seconds > limits.starting_seconds_max
    ):
        return Finding(
            "unhealthy",
            "RESTART_LOOP",
            f"It has been starting for {duration(starting_seconds)} without getting well: {finding.detail}",
            "Open the log of its DAG's last failed run: its last lines name the condition.",
        )
    return finding


def unreadable(error: Exception, *, kind: Kind, name: str, now: datetime, previous: Verdict | None = None) -> Verdict:
    """The verdict where the heartbeat itself could not be read."""
    finding = Finding(
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
    finding = Finding("unhealthy", "DECLARED_WRONGLY", error.message, error.hint)
    return _verdict(finding, kind, name, now, previous)


def _missing_seconds(previous: Verdict | None, now: datetime) -> float:
    if previous is None or previous.cause != "NEVER_STARTED":
        return 0.0
    return (now - previous.since).total_seconds()
