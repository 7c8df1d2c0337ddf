"""Runs a stream group: one driver process with a query and a session per pipeline.

A failed member is restarted with the same backoff as a stream with its own driver, and parked after too many failures.
A stopped member waits until it is started. The run ends by the group's stop flag, its time limit, or the end of the
JVM; the queries end between two batches if possible. No data is lost in any case: every member resumes from its own
records.

A member uses the same records as a stream with its own driver: lease, owner epoch, heartbeat, checkpoint, progress,
stop flag and failure record. So a pipeline can move between a group and its own driver without loss.

Members are reloaded when a declaration file changes, because a group's driver runs for hours. A pipeline that joins the
group is started, and one that leaves is ended. A pipeline with an invalid declaration waits until it is corrected;
other members are not affected.

The state machine of members consists of pure functions: the caller passes the current `Signals`, and an `Outcome` when
a run has ended. They read no clock and have no side effects. A member is in one of the phases waiting, running, ending,
stopped, parked or removed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from deltaworks.control import paths
from deltaworks.control.backoff import OUTAGE_CONDITIONS, RestartBackoff
from deltaworks.control.health.heartbeat import HeartbeatWriter, StopFlag, group_stop_flag, read_heartbeat
from deltaworks.control.job import as_deltaworks_error
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.engine.driver_host import STOP_FLAG_DELAY_SECONDS, SharedDriver, exit_driver
from deltaworks.engine.runner import IngestRun, RunResult, StreamParts
from deltaworks.errors import ContractError, DeltaworksError, FencedError, TransientError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment import StreamGroupSpec
from deltaworks.specs.groups import StreamGroup, stream_groups
from deltaworks.specs.project_folder import DeclarationState, declaration_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Phase(StrEnum):
    """Phase of a member."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDING = "ending"
    STOPPED = "stopped"
    PARKED = "parked"
    REMOVED = "left"


class Action(StrEnum):
    """Action to take for a member."""

    NOTHING = "nothing"
    START = "start"
    END = "end"
    PARK = "park"


class RunEnd(StrEnum):
    """How a run ended: normally, with all available data processed, because another owner has the pipeline, or by a
    failure.
    """

    NORMAL = "well"
    FINISHED = "finished"
    OTHER_OWNER = "elsewhere"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """Inputs of a member's state machine.

    Attributes:
        is_member: the pipeline is declared in this group.
        stop_requested: its stop flag is set.
        is_parked: it is recorded as parked.
        wait_seconds: remaining backoff after its last failure.
        is_closing: the group's run is ending.
    """

    is_member: bool = True
    stop_requested: bool = False
    is_parked: bool = False
    wait_seconds: float = 0.0
    is_closing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended. `non_outage_failures` counts consecutive failures, this one included, that no outage caused."""

    end: RunEnd
    non_outage_failures: int = 0


@dataclass(frozen=True, slots=True)
class MemberState:
    """State of a member."""

    phase: Phase = Phase.WAITING

    @property
    def is_active(self) -> bool:
        """Whether a run is in progress."""
        return self.phase in (Phase.RUNNING, Phase.ENDING)


def next_state(state: MemberState, signals: Signals) -> tuple[MemberState, Action]:
    """Returns the member's next state, and the action that leads to it, for the current signals.

    A running member is ended by any signal except `wait_seconds`. A removed member starts again once the pipeline is
    declared in the group again.
    """
    idle_phase = _idle_phase(signals)
    if state.phase is Phase.RUNNING:
        if idle_phase in (Phase.REMOVED, Phase.STOPPED):
            return replace(state, phase=Phase.ENDING), Action.END
        return state, Action.NOTHING
    if state.phase is Phase.ENDING:
        return state, Action.NOTHING
    if idle_phase is Phase.RUNNING:
        return replace(state, phase=Phase.RUNNING), Action.START
    return replace(state, phase=idle_phase), Action.NOTHING


def _idle_phase(signals: Signals) -> Phase:
    """Returns the phase of a member without a run; RUNNING means that it is to be started."""
    if signals.is_closing or not signals.is_member:
        return Phase.REMOVED
    if signals.stop_requested:
        return Phase.STOPPED
    if signals.is_parked:
        return Phase.PARKED
    return Phase.WAITING if signals.wait_seconds > 0 else Phase.RUNNING


def state_after_run(state: MemberState, outcome: Outcome, *, max_quick_failures: int) -> tuple[MemberState, Action]:
    """Returns the member's next state and action after its run has ended; parks it after too many failures."""
    if outcome.end is RunEnd.FINISHED:
        return replace(state, phase=Phase.REMOVED), Action.NOTHING
    if outcome.end is RunEnd.FAILED and outcome.non_outage_failures >= max_quick_failures:
        return replace(state, phase=Phase.PARKED), Action.PARK
    return replace(state, phase=Phase.WAITING), Action.NOTHING


def is_over(states: dict[str, MemberState], *, is_closing: bool, available_now: bool = False) -> bool:
    """Returns whether the group's run is over: no member is running or will be started.

    Args:
        available_now: each member runs once over the available data; members that still wait have to run.
    """
    if any(state.is_active for state in states.values()):
        return False
    if is_closing:
        return True
    return available_now and all(state.phase is not Phase.WAITING for state in states.values())


log = logging.getLogger(__name__)
#: Files must be unchanged for this long before they are read: a half-written file may be valid YAML, and could lack the
#: line that names its group.
STABLE_SECONDS = 2.0


class GroupMembers:
    """The pipelines that belong to one group, as declared now. Used by one thread."""

    def __init__(self, group: str, catalog: Catalog, *, load: Callable[[], Catalog]) -> None:
        """Starts with the given catalog; `load` returns a new one, without invalid declarations."""
        self._name = group
        self._load = load
        self.catalog = catalog
        # Unknown: the driver has started for seconds since the catalog was loaded, in which files may have changed.
        self._loaded_state: DeclarationState | None = None
        self._last_change = (declaration_state(catalog.root), 0.0)
        #: True while a change is not loaded yet; no member starts with an outdated declaration.
        self.has_unread_change = False

    @property
    def group(self) -> StreamGroup:
        """The group as last loaded; it has no members if no pipeline names it."""
        groups = stream_groups(self.catalog)
        return groups.get(self._name) or StreamGroup(name=self._name, settings=StreamGroupSpec(), members={})

    def reload_if_changed(self) -> bool:
        """Reloads the declarations if files changed and have been stable for a while. Returns whether they were
        reloaded.
        """
        state, now = declaration_state(self.catalog.root), time.monotonic()
        if state != self._last_change[0]:
            self._last_change = (state, now)
        self.has_unread_change = state != self._loaded_state and now - self._last_change[1] < STABLE_SECONDS
        if state == self._loaded_state or self.has_unread_change:
            return False
        self._loaded_state = state
        try:
            self.catalog = self._load()
        except DeltaworksError as error:
            log.warning("group=%s continues with the previous declarations: %s", self._name, error)
            return False
        return True


#: Conditions of a run that ended because another process owns the pipeline.
_OTHER_OWNER_CONDITIONS = frozenset({"LEASE_HELD"})
#: Wait before another attempt to start a pipeline that another process owns.
_OTHER_OWNER_WAIT_SECONDS = 5.0


class Member:
    """One pipeline of a group. The group's thread calls the methods; each run has its own thread."""

    def __init__(
        self,
        pipeline: str,
        objects: ObjectStore,
        *,
        parts: StreamParts,
        new_session: Callable[[], SparkSession],
        is_driver_alive: Callable[[], bool],
        exit_driver: Callable[[TransientError], None],
        available_now: bool = False,
    ) -> None:
        """Creates the member without starting a run.

        Args:
            parts: see `IngestRun`.
            new_session: creates a session of the shared Spark application; called once.
            is_driver_alive: whether the JVM is alive. If it is not, failures are not counted against the member.
            available_now: runs end once the available data is processed.
        """
        self.pipeline = pipeline
        self._objects = objects
        self._parts = parts
        self._new_session = new_session
        self._spark: SparkSession | None = None
        self._is_driver_alive = is_driver_alive
        self._exit_driver = exit_driver
        self._available_now = available_now
        control = paths.pipeline_control(pipeline)
        self._stop = StopFlag(objects, paths.stop_request(control))
        self._heartbeat_key = paths.heartbeat(control)
        self.backoff = RestartBackoff(objects, paths.failures(control))
        self._host: SharedDriver | None = None
        self._run: IngestRun | None = None
        self._thread: threading.Thread | None = None
        self._outcome: Outcome | None = None
        self._trigger_seconds = 60.0
        self._not_before = 0.0
        self.batches = 0
        self.rows = 0
        self.last_error: DeltaworksError | None = None

    def signals(self, *, is_member: bool, is_closing: bool) -> Signals:
        """Reads the member's stop flag and failure record. If the storage is unreachable, the member waits.

        The storage is not read if the member has to end anyway.
        """
        if is_closing or not is_member:
            return Signals(is_member=is_member, is_closing=is_closing)
        try:
            record, stop = self.backoff.read(), self._stop.read()
            backoff_seconds = self.backoff.remaining_seconds()
        except Exception as error:
            log.warning("pipeline=%s waits for its records: %s", self.pipeline, error)
            return Signals(is_member=is_member, wait_seconds=1.0)
        wait_seconds = max(backoff_seconds, self._not_before - time.monotonic())
        return Signals(
            stop_requested=stop is not None, is_parked=bool(record.parked_condition), wait_seconds=wait_seconds
        )

    @property
    def has_completed_batch(self) -> bool:
        """Whether any of its runs has completed a batch."""
        return self.batches > 0 or (self._run is not None and self._run.batches > 0)

    def start(self, catalog: Catalog, *, trigger_seconds: float) -> None:
        """Starts a run with the given catalog."""
        from pyspark import InheritableThread

        self._outcome, self._run = None, None
        self._host = SharedDriver(self.pipeline, exit_driver=self._exit_driver)
        self.backoff.start_run()
        self._trigger_seconds = trigger_seconds
        self._thread = InheritableThread(target=self._run_stream, args=(catalog, self._host))
        self._thread.name, self._thread.daemon = f"stream-{self.pipeline}", True
        self._thread.start()

    def request_end(self, reason: str) -> None:
        """Ends the run after its current batch."""
        if self._host is not None:
            self._host.request_end(reason)

    def poll_outcome(self) -> Outcome | None:
        """Returns the outcome of a run once, after the run has ended; None before and afterwards."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread = None
        return self._outcome or Outcome(end=RunEnd.FAILED)

    def park(self) -> None:
        """Parks the member after repeated failures, in its failure record and its heartbeat. Only an operator can
        restart it.
        """
        error = self.last_error
        condition = error.condition if error is not None else "STREAM_FAILED"
        self.backoff.park(condition)
        parked = ContractError(
            "STREAM_PARKED",
            f"{self.pipeline!r} failed {self.backoff.read().non_outage_failures} times in a row soon after its start, "
            f"and is excluded from its group. Last failure: {error}",
            hint=(
                f"Fix the cause, then run `deltaworks start {self.pipeline}`. The other pipelines of the group "
                "continue."
            ),
        )
        log.error("pipeline=%s is parked: %s", self.pipeline, parked)
        last = read_heartbeat(self._objects, self._heartbeat_key)
        writer = HeartbeatWriter(
            self._objects, self._heartbeat_key, pipeline=self.pipeline, trigger_seconds=self._trigger_seconds
        )
        if last is not None:
            # Keeps the backlog and the source's retention, which health checks use.
            writer.update(**dict(last))
        writer.start()
        writer.close(state="failed", error=parked.as_record())

    def _run_stream(self, catalog: Catalog, host: SharedDriver) -> None:
        try:
            if self._spark is None:
                self._spark = self._new_session()
            run = self._run = IngestRun(
                self._spark,
                catalog,
                self.pipeline,
                parts=self._parts,
                available_now=self._available_now,
                host=host,
            )
            result = run.run()
        except BaseException as error:
            self._outcome = self._record_failure(error)
            return
        finally:
            if self._run is not None:
                self.batches += self._run.batches
                self._run = None
        self.rows += result.rows
        log.warning("pipeline=%s ended by %s after %d batches", self.pipeline, result.ended_by, result.batches)
        self._reset_failures()
        self._outcome = Outcome(end=RunEnd.FINISHED if result.ended_by == "available now" else RunEnd.NORMAL)

    def _record_failure(self, error: BaseException) -> Outcome:
        mapped = self.last_error = as_deltaworks_error(error)
        log.error("pipeline=%s failed: %s", self.pipeline, mapped, exc_info=mapped.condition == "JOB_FAILED")
        if (
            mapped.condition in _OTHER_OWNER_CONDITIONS
            or isinstance(mapped, FencedError)
            or not self._is_driver_alive()
        ):
            self._not_before = time.monotonic() + _OTHER_OWNER_WAIT_SECONDS
            return Outcome(end=RunEnd.OTHER_OWNER)
        try:
            self.backoff.record_failure(retryable=mapped.retryable, is_outage=mapped.condition in OUTAGE_CONDITIONS)
            return Outcome(end=RunEnd.FAILED, non_outage_failures=self.backoff.read().non_outage_failures)
        except Exception as problem:
            log.warning("pipeline=%s: its failure could not be recorded: %s", self.pipeline, problem)
            return Outcome(end=RunEnd.FAILED)

    def _reset_failures(self) -> None:
        try:
            self.backoff.reset()
        except Exception as problem:
            log.warning("pipeline=%s: its failures could not be reset: %s", self.pipeline, problem)


POLL_SECONDS = 1.0
#: Interval of checking idle members and declarations.
UPDATE_SECONDS = 5.0
#: Maximum wait for all members at the end of a run. Each member waits for its own batch and keyed tables.
CLOSE_SECONDS = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult(RunResult):
    """Result of a group's run: why it ended, the totals of its members, and the parked members."""

    parked: tuple[str, ...] = ()


class GroupRun:
    """One run of a group; `run` may be called once.

    Args:
        load: reloads the catalog without invalid declarations.
        parts: see `IngestRun`.
        available_now: members process the available data and end; the run ends with the last one.
    """

    def __init__(
        self,
        spark: SparkSession,
        group: str,
        catalog: Catalog,
        *,
        load: Callable[[], Catalog],
        parts: StreamParts,
        available_now: bool = False,
    ) -> None:
        self._spark = spark
        self._name = group
        self._group_members = GroupMembers(group, catalog, load=load)
        self._objects = open_objects(catalog.environment.lake)
        self._stop = group_stop_flag(self._objects, group)
        self._parts = parts
        self._available_now = available_now
        self._members: dict[str, Member] = {}
        self._states: dict[str, MemberState] = {}
        self._started = time.monotonic()
        self._first_batch: float | None = None
        self._updated_at = float("-inf")
        self._closing_since: float | None = None
        self._stopped_since: float | None = None
        self._reason = ""

    def run(self) -> GroupResult:
        """Runs the members until the run ends.

        Raises:
            TransientError: SPARK_APPLICATION_ENDED, the JVM or the application has ended.
        """
        try:
            return self._run()
        finally:
            # Closed here because the process may continue, for example in tests.
            for member in self._members.values():
                member.request_end("the driver ends")

    def _run(self) -> GroupResult:
        if self._stop.read() is not None:
            # A DAG that is not paused starts the next run immediately: limits that to one per interval.
            time.sleep(STOP_FLAG_DELAY_SECONDS)
        while True:
            self._check_driver()
            self._collect_outcomes()
            now = time.monotonic()
            if now - self._updated_at >= UPDATE_SECONDS:
                self._updated_at = now
                self._update_members(now)
            closing = self._closing_since is not None
            if is_over(
                self._states, is_closing=closing, available_now=self._available_now
            ) or self._has_close_timed_out(now):
                return self._result()
            time.sleep(POLL_SECONDS)

    def _check_driver(self) -> None:
        if not self._is_driver_alive():
            raise TransientError(
                "SPARK_APPLICATION_ENDED",
                f"The Spark application of group {self._name!r} has ended, with all its streams.",
            )

    def _is_driver_alive(self) -> bool:
        try:
            return not self._spark.sparkContext._jsc.sc().isStopped()
        except Exception:  # py4j raises various errors once the JVM has ended
            return False

    def _collect_outcomes(self) -> None:
        """Handles runs that have ended."""
        for name, member in self._members.items():
            outcome = member.poll_outcome() if self._states[name].is_active else None
            if self._first_batch is None and member.has_completed_batch:
                self._first_batch = time.monotonic()
            if outcome is None:
                continue
            max_quick_failures = self._group_members.group.settings.non_outage_failures
            self._states[name], action = state_after_run(
                self._states[name], outcome, max_quick_failures=max_quick_failures
            )
            self._updated_at = float("-inf")
            if action is Action.PARK:
                self._park(member)

    def _park(self, member: Member) -> None:
        try:
            member.park()
        except Exception as error:  # parking failed: the member is restarted, and parked after its next failure
            log.warning("pipeline=%s could not be parked: %s", member.pipeline, error)

    def _update_members(self, now: float) -> None:
        """Reads the signals of all members, and starts, ends or parks them accordingly."""
        self._group_members.reload_if_changed()
        group = self._group_members.group
        self._close_if_due(group, now)
        if self._group_members.has_unread_change and self._closing_since is None:
            self._updated_at = now - UPDATE_SECONDS + POLL_SECONDS
            return
        for name in group.members:
            if name not in self._members:
                self._members[name], self._states[name] = self._new_member(name), MemberState()
        for name, member in self._members.items():
            signals = self._signals(group, name, member)
            self._states[name], action = next_state(self._states[name], signals)
            if action is Action.START:
                member.start(self._group_members.catalog, trigger_seconds=group.members[name].stream.trigger_seconds)
            elif action is Action.END:
                member.request_end(self._reason or "the pipeline left the group")

    def _close_if_due(self, group: StreamGroup, now: float) -> None:
        if self._closing_since is not None:
            return
        limit_seconds = group.max_run_seconds
        if self._stop.read() is not None:
            self._reason = "stop flag"
        elif now - (self._first_batch or now) >= limit_seconds:
            self._reason = "max_run_seconds"
        elif now - self._started >= 2 * limit_seconds:
            self._reason = "max_run_seconds without a batch"
        elif self._is_idle(now):
            self._reason = "every member is stopped"
        elif not group.members and not group.invalid_members:
            self._reason = "no pipeline names the group"
        if self._reason:
            self._closing_since = now

    def _is_idle(self, now: float) -> bool:
        """Returns whether all members have been stopped for a while, so that the driver can end."""
        stopped = bool(self._states) and all(state.phase is Phase.STOPPED for state in self._states.values())
        if not stopped:
            self._stopped_since = None
            return False
        self._stopped_since = self._stopped_since or now
        return now - self._stopped_since >= STOP_FLAG_DELAY_SECONDS

    def _signals(self, group: StreamGroup, name: str, member: Member) -> Signals:
        closing, state = self._closing_since is not None, self._states[name]
        # A running member keeps the declaration it was started with, even if the current one is invalid.
        belongs = name in group.members or (state.is_active and name in group.invalid_members)
        if self._available_now and state.phase is Phase.REMOVED:
            belongs = False
        if state.is_active:
            return Signals(is_member=belongs, is_closing=closing)
        return member.signals(is_member=belongs, is_closing=closing)

    def _new_member(self, name: str) -> Member:
        return Member(
            name,
            self._objects,
            parts=self._parts,
            new_session=self._spark.newSession,
            is_driver_alive=self._is_driver_alive,
            exit_driver=exit_driver,
            available_now=self._available_now,
        )

    def _has_close_timed_out(self, now: float) -> bool:
        """Returns whether the members have exceeded the time for ending. The next run resumes their batches."""
        if self._closing_since is None or now - self._closing_since < CLOSE_SECONDS:
            return False
        running = sorted(name for name, state in self._states.items() if state.is_active)
        log.warning("group=%s ends while members are still running: %s", self._name, ", ".join(running))
        return True

    def _result(self) -> GroupResult:
        return GroupResult(
            ended_by=self._reason or "available now",
            batches=sum(member.batches for member in self._members.values()),
            rows=sum(member.rows for member in self._members.values()),
            seconds=time.monotonic() - self._started,
            parked=tuple(sorted(name for name, state in self._states.items() if state.phase is Phase.PARKED)),
        )
