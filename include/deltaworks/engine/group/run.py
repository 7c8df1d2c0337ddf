"""Runs a stream group: one driver process with a query and a session per pipeline.

A failed member is restarted with the same backoff as a stream with its own driver, and parked after too many failures.
A stopped member waits until it is started. The run ends by the group's stop flag, its time limit, or the end of the
JVM; the queries end between two batches if possible. No data is lost in any case: every member resumes from its own
records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltaworks.control.health.groups import group_stop_flag
from deltaworks.control.objects import open_objects
from deltaworks.engine.driver_host import STOP_FLAG_DELAY_SECONDS, exit_driver
from deltaworks.engine.group.group_members import GroupMembers
from deltaworks.engine.group.member import Member
from deltaworks.engine.group.supervision import (
    Action,
    MemberState,
    Phase,
    Signals,
    is_over,
    next_state,
    state_after_run,
)
from deltaworks.engine.runner import RunResult, StreamParts
from deltaworks.errors import TransientError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.groups import StreamGroup

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
POLL_SECONDS = 0.5
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
