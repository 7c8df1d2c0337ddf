"""Health of collectors, from the heartbeats that they write and from the last check for lost events.

A declared collector that has never run is not reported. A collector writes its heartbeat and hourly counts from a
background thread. Storage failures never stop the collector: the next interval retries, and the health check sees the
age of the heartbeat.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from deltaworks.control import paths
from deltaworks.control.background import BackgroundThread
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.health.limits import Finding, HealthLimits, age_seconds, format_duration
from deltaworks.control.health.report import Report, Subject
from deltaworks.control.health.verdicts import Verdict, unreadable_verdict, verdict_of
from deltaworks.control.objects import ObjectStore
from deltaworks.control.paths import collector_control
from deltaworks.control.records.collector import CollectorHeartbeat, HourCounts, LostEvents, read_collector_heartbeats
from deltaworks.control.records.store import RecordStore
from deltaworks.specs.catalog import Catalog

STALE_SECONDS = 120.0
#: An event may be in the spool for this time in addition to the time for which an object is open.
MAX_PENDING_SECONDS = 900.0
#: A process that ended with an empty spool is ignored after this time.
IGNORE_ENDED_AFTER = timedelta(days=1)
_MAX_RANGES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class CollectorFacts:
    """The stored records of a collector, or the `error` that reading them raised."""

    name: str
    heartbeats: Sequence[CollectorHeartbeat] = ()
    lost_events: LostEvents | None = None
    error: Exception | None = None


def read_collectors(catalog: Catalog, objects: ObjectStore) -> list[CollectorFacts]:
    """Reads the records of all declared collectors. Raises nothing."""
    facts = []
    for name in catalog.collectors:
        try:
            lost_events = RecordStore(objects, LostEvents).read(paths.lost_events(name))
            facts.append(CollectorFacts(name, read_collector_heartbeats(objects, name), lost_events))
        except Exception as error:
            facts.append(CollectorFacts(name, error=error))
    return facts


def collector_reports(
    collectors: Iterable[CollectorFacts], *, previous: Mapping[str, Verdict] | None = None, now: datetime
) -> list[Report]:
    """Returns a report for each collector that has ever run. Unreachable storage is a verdict."""
    reports = []
    for facts in collectors:
        subject = Subject("collector", facts.name, collector_control(facts.name), HealthLimits())
        previous_verdict = (previous or {}).get(subject.key)
        if facts.error is not None:
            verdict_on_error = unreadable_verdict(
                facts.error, kind="collector", name=facts.name, now=now, previous=previous_verdict
            )
            reports.append(Report(subject, verdict_on_error, None))
        elif facts.heartbeats:
            verdict = evaluate_collector(
                facts.name, facts.heartbeats, facts.lost_events, now=now, previous=previous_verdict
            )
            reports.append(Report(subject, verdict, None))
    return reports


def evaluate_collector(
    name: str,
    heartbeats: Sequence[CollectorHeartbeat],
    lost_events: LostEvents | None,
    *,
    now: datetime,
    previous: Verdict | None = None,
) -> Verdict:
    """Evaluates the processes of a collector; the worst finding wins. Pure."""
    current = [beat for beat in heartbeats if not _has_ended(beat, now)]
    findings = [finding for beat in current for finding in _findings(beat, now)]
    if lost_events is not None and lost_events.missing:
        findings.insert(0, _lost_events_finding(lost_events))
    finding = findings[0] if findings else _ok_finding(current)
    return verdict_of(finding, kind="collector", name=name, now=now, previous=previous)


def _has_ended(heartbeat: CollectorHeartbeat, now: datetime) -> bool:
    written = parse_iso(heartbeat.written_at)
    is_old = written is not None and now - written > IGNORE_ENDED_AFTER
    return heartbeat.state == "ended" and heartbeat.oldest_at is None and is_old


def _findings(heartbeat: CollectorHeartbeat, now: datetime) -> Iterable[Finding]:
    """Yields the findings of one process, the worst first."""
    where = f"{heartbeat.id[:8]} on {heartbeat.host}" if heartbeat.host else heartbeat.id[:8]
    age = age_seconds(heartbeat.written_at, now)
    if heartbeat.state != "ended" and age > STALE_SECONDS:
        text = f"{where} wrote its last heartbeat {format_duration(age)} ago."
        yield Finding("unhealthy", "COLLECTOR_STALE", text, "Check its process and log, then restart it.")
    if heartbeat.damaged:
        text = f"{where} has damaged files: {', '.join(heartbeat.damaged[:_MAX_RANGES_SHOWN])}."
        step = "See how-to/collect-over-http.md#a-spool-is-damaged; what could be read was delivered."
        yield Finding("unhealthy", "SPOOL_DAMAGED", text, step)
    if heartbeat.oldest_at is not None and (waited := age_seconds(heartbeat.oldest_at, now)) > MAX_PENDING_SECONDS:
        yield Finding(
            "unhealthy", "SPOOL_OLD", _backlog_detail(heartbeat, where, waited), _backlog_next_step(heartbeat)
        )
    if dead_letters := sum(source.dead_letters for source in heartbeat.sources.values()):
        text = f"{where} has {dead_letters} events that its sink cannot accept."
        yield Finding(
            "unhealthy", "EVENTS_UNDELIVERABLE", text, "See how-to/collect-over-http.md#fix-an-unhealthy-collector."
        )


def _backlog_detail(heartbeat: CollectorHeartbeat, where: str, waited: float) -> str:
    share = 100 * heartbeat.spool_bytes / max(1, heartbeat.spool_max_bytes)
    problems = "; ".join(f"{name}: {source.problem}" for name, source in heartbeat.sources.items() if source.problem)
    return f"{where}: oldest event {format_duration(waited)} old, spool {share:.0f} % full. {problems}"


def _backlog_next_step(heartbeat: CollectorHeartbeat) -> str:
    if heartbeat.state == "ended":
        return "Start a collector with this spool folder: it delivers the remaining events."
    failing = [name for name, source in heartbeat.sources.items() if source.problem]
    return (
        f"Fix the sink of {', '.join(failing)}."
        if failing
        else "The sink is slower than the input: increase its capacity."
    )


def _lost_events_finding(lost_events: LostEvents) -> Finding:
    events = sum(missing.events for missing in lost_events.missing)
    ranges = [
        f"{missing.id[:8]}: {missing.first}-{missing.last}" for missing in lost_events.missing[:_MAX_RANGES_SHOWN]
    ]
    omitted_text = (
        f" and {len(lost_events.missing) - _MAX_RANGES_SHOWN} more ranges"
        if len(lost_events.missing) > _MAX_RANGES_SHOWN
        else ""
    )
    text = f"{events} acknowledged events are neither in a table nor in quarantine: {', '.join(ranges)}{omitted_text}."
    return Finding("unhealthy", "EVENTS_LOST", text, "See how-to/collect-over-http.md#events-are-lost.")


def _ok_finding(heartbeats: Sequence[CollectorHeartbeat]) -> Finding:
    running = [heartbeat for heartbeat in heartbeats if heartbeat.state != "ended"]
    if not running:
        return Finding("stopped", "OK", "Ended; its spool is empty.")
    waiting = sum(heartbeat.spool_bytes for heartbeat in running)
    delivered = sum(source.delivered for beat in running for source in beat.sources.values())
    return Finding(
        "healthy", "OK", f"{len(running)} processes, {delivered:,} events delivered, {waiting / 2**20:.0f} MiB spooled."
    )


log = logging.getLogger(__name__)
#: Events by source and response, since the process started.
EventCounts = Mapping[str, Mapping[str, int]]


class CollectorHeartbeatWriter(BackgroundThread):
    """Writes the heartbeat and the hourly counts at each interval, and once more when it is stopped.

    Args:
        heartbeat: returns the current heartbeat; called by the thread.
        event_counts: returns the events accepted since the process started, by source and response; called by the
            thread.
    """

    def __init__(
        self,
        objects: ObjectStore,
        heartbeat: Callable[[], CollectorHeartbeat],
        event_counts: Callable[[], EventCounts],
        *,
        interval_seconds: float = 10.0,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        super().__init__(name="collector-beats")
        self._objects = objects
        self._heartbeat = heartbeat
        self._event_counts = event_counts
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._counts: HourCounts | None = None
        self._last_event_counts: EventCounts = {}

    def write(self) -> None:
        """Writes the heartbeat and the counts once. Called by one thread.

        Raises:
            TransientError: the storage does not answer.
        """
        heartbeat = self._heartbeat()
        self._objects.put(paths.collector_heartbeat(heartbeat.collector, heartbeat.id), heartbeat.encode())
        self._write_counts(heartbeat)

    def _write_counts(self, heartbeat: CollectorHeartbeat) -> None:
        hour = self._clock().strftime("%Y-%m-%dT%H")
        event_counts = {source: dict(verdicts) for source, verdicts in self._event_counts().items()}
        counts = self._counts or self._stored_counts(heartbeat, hour)
        added = _sum(counts.sources, _difference(event_counts, self._last_event_counts))
        current = counts.replace(next_seq=heartbeat.next_seq, sources=added, is_complete=counts.hour != hour)
        if current != counts or self._counts is None:
            self._objects.put(paths.collector_counts(heartbeat.collector, heartbeat.id, counts.hour), current.encode())
        if counts.hour != hour:
            current = HourCounts(id=heartbeat.id, hour=hour, first_seq=heartbeat.next_seq, next_seq=heartbeat.next_seq)
            self._objects.put(paths.collector_counts(heartbeat.collector, heartbeat.id, hour), current.encode())
        self._counts, self._last_event_counts = current, event_counts

    def _stored_counts(self, heartbeat: CollectorHeartbeat, hour: str) -> HourCounts:
        """Returns the counts that an earlier process with this spool stored for this hour, or new ones."""
        stored = RecordStore(self._objects, HourCounts).read(
            paths.collector_counts(heartbeat.collector, heartbeat.id, hour)
        )
        if stored is not None:
            return stored
        return HourCounts(id=heartbeat.id, hour=hour, first_seq=heartbeat.next_seq, next_seq=heartbeat.next_seq)

    def _run(self) -> None:
        silent = False
        while True:
            ended = self._stopping.is_set()
            try:
                self.write()
                silent = False
            except Exception as error:
                if not silent:
                    log.warning("the collector's heartbeat is not written: %s", error)
                silent = True
            if ended:
                return
            self._stopping.wait(self._interval_seconds)


def _difference(current: EventCounts, previous: EventCounts) -> EventCounts:
    return {
        source: {verdict: count - previous.get(source, {}).get(verdict, 0) for verdict, count in verdicts.items()}
        for source, verdicts in current.items()
    }


def _sum(left_counts: EventCounts, right_counts: EventCounts) -> dict[str, dict[str, int]]:
    total = {source: dict(verdicts) for source, verdicts in left_counts.items()}
    for source, verdicts in right_counts.items():
        source_counts = total.setdefault(source, {})
        for verdict, count in verdicts.items():
            if count:
                source_counts[verdict] = source_counts.get(verdict, 0) + count
    return {source: verdicts for source, verdicts in total.items() if verdicts}
