"""Judges collectors by their heartbeats, and by what a look for lost events has found.

A collector that was declared and has never run is no subject: nothing says that anybody means to run it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from deltaworks.control.clock import parse_iso
from deltaworks.control.collector_paths import collector_control
from deltaworks.control.health.judge import Verdict, unreadable, verdict_of
from deltaworks.control.health.limits import Finding, HealthLimits, age_seconds, duration
from deltaworks.control.health.report import Report, Subject
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.collector import CollectorBeat, Losses, losses_key, read_beats
from deltaworks.control.records.store import RecordStore
from deltaworks.specs.catalog import Catalog

STALE_SECONDS = 120.0
#: For so long an event may wait on a collector's disk, beside the time for which an object is open.
OLD_SECONDS = 900.0
#: A process that has ended with an empty spool is nobody's concern after this.
FORGOTTEN_AFTER = timedelta(days=1)
_MOST_RANGES = 3


@dataclass(frozen=True, slots=True)
class CollectorFacts:
    """What is on record of a collector: nothing of one that never ran; `error` where it could not be read."""

    name: str
    beats: Sequence[CollectorBeat] = ()
    losses: Losses | None = None
    error: Exception | None = None


def read_collectors(catalog: Catalog, objects: ObjectStore) -> list[CollectorFacts]:
    """What is on record of every collector that is declared. Raises nothing."""
    facts = []
    for name in catalog.collectors:
        try:
            losses = RecordStore(objects, Losses).read(losses_key(name))
            facts.append(CollectorFacts(name, read_beats(objects, name), losses))
        except Exception as error:
            facts.append(CollectorFacts(name, error=error))
    return facts


def collector_reports(
    collectors: Iterable[CollectorFacts], *, previous: Mapping[str, Verdict] | None = None, now: datetime
) -> list[Report]:
    """A report for every collector that has ever run. A storage that does not answer is a verdict."""
    reports = []
    for facts in collectors:
        subject = Subject("collector", facts.name, collector_control(facts.name), HealthLimits())
        before = (previous or {}).get(subject.key)
        if facts.error is not None:
            wrong = unreadable(facts.error, kind="collector", name=facts.name, now=now, previous=before)
            reports.append(Report(subject, wrong, None))
        elif facts.beats:
            verdict = judge_collector(facts.name, facts.beats, facts.losses, now=now, previous=before)
            reports.append(Report(subject, verdict, None))
    return reports


def judge_collector(
    name: str,
    beats: Sequence[CollectorBeat],
    losses: Losses | None,
    *,
    now: datetime,
    previous: Verdict | None = None,
) -> Verdict:
    """The worst of what the processes of a collector show: a pure function of what was read."""
    current = [beat for beat in beats if not _is_over(beat, now)]
    findings = [finding for beat in current for finding in _findings(beat, now)]
    if losses is not None and losses.missing:
        findings.insert(0, _lost(losses))
    finding = findings[0] if findings else _well(current)
    return verdict_of(finding, kind="collector", name=name, now=now, previous=previous)


def _is_over(beat: CollectorBeat, now: datetime) -> bool:
    written = parse_iso(beat.written_at)
    gone = written is not None and now - written > FORGOTTEN_AFTER
    return beat.state == "ended" and beat.oldest_at is None and gone


def _findings(beat: CollectorBeat, now: datetime) -> Iterable[Finding]:
    """What is wrong with one process, the worst first."""
    where = f"{beat.id[:8]} on {beat.host}" if beat.host else beat.id[:8]
    age = age_seconds(beat.written_at, now)
    if beat.state != "ended" and age > STALE_SECONDS:
        text = f"{where} wrote its last heartbeat {duration(age)} ago."
        yield Finding("unhealthy", "COLLECTOR_STALE", text, "Look at its process and its log, and start it again.")
    if beat.damaged:
        text = f"{where} has damaged files: {', '.join(beat.damaged[:_MOST_RANGES])}."
        step = "See how-to/collect-over-http.md#a-spool-is-damaged; what could be read was delivered."
        yield Finding("unhealthy", "SPOOL_DAMAGED", text, step)
    if beat.oldest_at is not None and (waited := age_seconds(beat.oldest_at, now)) > OLD_SECONDS:
        yield Finding("unhealthy", "SPOOL_OLD", _old(beat, where, waited), _next_of_old(beat))
    if aside := sum(source.set_aside for source in beat.sources.values()):
        text = f"{where} has set {aside} events aside that its sink never takes."
        yield Finding("unhealthy", "EVENTS_SET_ASIDE", text, "See how-to/collect-over-http.md#when-something-is-wrong.")


def _old(beat: CollectorBeat, where: str, waited: float) -> str:
    share = 100 * beat.spool_bytes / max(1, beat.spool_max_bytes)
    troubles = "; ".join(f"{name}: {source.trouble}" for name, source in beat.sources.items() if source.trouble)
    return f"{where}: the oldest event has waited for {duration(waited)}, the spool is {share:.0f} % full. {troubles}"


def _next_of_old(beat: CollectorBeat) -> str:
    if beat.state == "ended":
        return "Start a collector with this spool: it delivers what is there, whatever else it does."
    troubled = [name for name, source in beat.sources.items() if source.trouble]
    return (
        f"Mend the sink of {', '.join(troubled)}." if troubled else "The sink is slower than what comes in: widen it."
    )


def _lost(losses: Losses) -> Finding:
    events = sum(missing.events for missing in losses.missing)
    named = [f"{missing.id[:8]}: {missing.first}-{missing.last}" for missing in losses.missing[:_MOST_RANGES]]
    more = f" and {len(losses.missing) - _MOST_RANGES} ranges more" if len(losses.missing) > _MOST_RANGES else ""
    text = f"{events} acknowledged events are in no table and not in quarantine: {', '.join(named)}{more}."
    return Finding("unhealthy", "EVENTS_LOST", text, "See how-to/collect-over-http.md#events-are-lost.")


def _well(beats: Sequence[CollectorBeat]) -> Finding:
    running = [beat for beat in beats if beat.state != "ended"]
    if not running:
        return Finding("stopped", "OK", "It has ended, and nothing is left on its disk.")
    waiting = sum(beat.spool_bytes for beat in running)
    delivered = sum(source.delivered for beat in running for source in beat.sources.values())
    return Finding(
        "healthy", "OK", f"{len(running)} processes, {delivered:,} events delivered, {waiting / 2**20:.0f} MiB spooled."
    )
