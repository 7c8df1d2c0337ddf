"""Reads and evaluates the health of every relay and stream, for the health DAG, the status page and the commands.

Not imported when DAG files are parsed: reading needs an object-store client.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from deltaworks.control import paths
from deltaworks.control.background import map_concurrently
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.health.heartbeat import Heartbeat, StopFlag, StopRequest, group_stop_flag, read_heartbeat
from deltaworks.control.health.limits import (
    Finding,
    HealthLimits,
    InputRate,
    age_seconds,
    format_duration,
    read_input_rate,
)
from deltaworks.control.health.throughput import Throughput, read_with_replays
from deltaworks.control.health.verdicts import (
    SubjectKind,
    Verdict,
    evaluate_health,
    invalid_spec_verdict,
    is_live,
    unreadable_verdict,
)
from deltaworks.control.objects import ObjectStore
from deltaworks.errors import DeltaworksError
from deltaworks.specs.base import shorten_names
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.dag_ids import RULES_DAG, SPARK_CONNECT_DAG, SQL_SERVER_DAG, dag_id
from deltaworks.specs.groups import group_dag_id, group_of
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.shares import RELAY_POOL

#: Causes of verdicts on processes that have no run.
_NOT_STARTING = frozenset({"NEVER_STARTED", "BETWEEN_RUNS", "NOT_RESTARTED"})
#: Seconds of a stream's run after which its tables are measured for the first time.
MEASURED_AFTER_SECONDS: Final = 600.0
#: DAGs of processes that exist once for the complete project, by kind.
_PROJECT_DAGS: Final[Mapping[str, str]] = {
    "rules": RULES_DAG,
    "sql_server": SQL_SERVER_DAG,
    "spark_connect": SPARK_CONNECT_DAG,
}
#: Kinds of processes that are Spark jobs, in the pool of streams.
_SPARK_KINDS: Final = frozenset({"stream", "spark_connect"})
PausedLookup = Callable[[str], bool | None]


@dataclass(frozen=True, slots=True)
class Subject:
    """A relay, stream or other process with its health limits.

    Restarts of a hung process are limited by `restarts_per_hour`. The name of the stream group that shares its driver
    is `group`, empty for a driver of its own.
    """

    kind: SubjectKind
    name: str
    control: str
    limits: HealthLimits
    restarts_per_hour: int = 3
    group: str = ""

    @property
    def key(self) -> str:
        """The key of the subject's verdicts, which does not depend on whether a DAG or a pod runs the subject."""
        return _PROJECT_DAGS.get(self.kind) or dag_id(self.name, self.kind)

    @property
    def argument(self) -> str:
        """The subject's name as argument of `deltaworks stop` and `start`."""
        return self.name if self.kind in ("stream", "relay", *_PROJECT_DAGS) else self.key

    @property
    def dag_id(self) -> str:
        """The DAG that runs the subject."""
        return group_dag_id(self.group) if self.group else self.key


@dataclass(frozen=True, slots=True)
class Report:
    """A subject with its verdict, heartbeat and recent throughput."""

    subject: Subject
    verdict: Verdict
    heartbeat: Heartbeat | None
    throughput: Throughput = field(default_factory=Throughput)

    @property
    def is_running(self) -> bool:
        """Whether a process of the subject writes heartbeats."""
        ended = self.heartbeat is None or self.heartbeat.state in ("ended", "failed")
        return not ended and self.verdict.cause not in ("HEARTBEAT_STALE", "HEARTBEAT_UNREADABLE")


def subjects(catalog: Catalog) -> list[Subject]:
    """Returns all subjects of the catalog: relays, streams, rules and servers if declared, feeds, remediations."""
    relays = [Subject("relay", name, paths.relay_control(name), HealthLimits()) for name in catalog.relays]
    streams = [
        Subject(
            "stream",
            name,
            paths.pipeline_control(name),
            limits_of(spec),
            spec.health.restarts_per_hour,
            spec.stream_group or "",
        )
        for name, spec in catalog.pipelines.items()
    ]
    has_rules = any(spec.rules for spec in catalog.pipelines.values())
    rules = [Subject("rules", paths.RULES_PROCESS, paths.rules_control(), HealthLimits())] if has_rules else []
    if catalog.environment.sql_server is not None:
        rules.append(Subject("sql_server", paths.SQL_SERVER_PROCESS, paths.sql_server_control(), HealthLimits()))
    if catalog.environment.spark_connect is not None:
        name, folder = paths.SPARK_CONNECT_PROCESS, paths.spark_connect_control()
        rules.append(Subject("spark_connect", name, folder, HealthLimits()))
    feeds = [
        Subject("feeds", name, paths.feeds_control(name), HealthLimits())
        for name, spec in catalog.pipelines.items()
        if spec.feeds
    ]
    remediations = [
        Subject("remediation", spec.name, paths.remediation_control(spec.name), HealthLimits())
        for spec in catalog.environment.remediations
    ]
    return relays + streams + rules + feeds + remediations


def limits_of(spec: PipelineSpec) -> HealthLimits:
    """Returns the health limits that a pipeline declares."""
    watch = spec.health
    return HealthLimits(
        stale_seconds_min=watch.stale_seconds,
        grace_seconds=watch.start_seconds,
        stall_seconds=float(spec.stream.stall_seconds),
        backlog_seconds_max=60 * watch.backlog_minutes,
        retention_seconds=None if watch.retention_hours is None else 3600 * watch.retention_hours,
        time_left_seconds_min=None if watch.time_left_hours is None else 3600 * watch.time_left_hours,
        no_input_seconds=None if watch.no_input_minutes is None else 60 * watch.no_input_minutes,
        quarantined_share_max=watch.quarantined_percent / 100,
        quarantined_run_share=watch.quarantined_run_percent / 100,
        quarantined_events_min=watch.quarantined_events_min,
    )


def check_subject(
    subject: Subject,
    objects: ObjectStore,
    *,
    paused: PausedLookup = lambda dag_id: None,
    previous: Mapping[str, Verdict] | None = None,
    now: datetime | None = None,
) -> Report:
    """Reads and evaluates one subject. Unreachable storage is a verdict, not an error."""
    now = now or utc_now()
    return _evaluate_facts(_read(subject, objects, now), paused=paused, previous=previous, now=now)


def check_subjects(
    selected: Iterable[Subject],
    objects: ObjectStore,
    *,
    paused: PausedLookup = lambda dag_id: None,
    previous: Mapping[str, Verdict] | None = None,
    now: datetime | None = None,
) -> list[Report]:
    """Reads several subjects concurrently and evaluates them.

    Args:
        paused: looks up whether a DAG is paused; called from one thread.
    """
    now = now or utc_now()
    all_facts = map_concurrently(lambda subject: _read(subject, objects, now), selected)
    return [_evaluate_facts(facts, paused=paused, previous=previous, now=now) for facts in all_facts]


@dataclass(frozen=True, slots=True)
class _SubjectFacts:
    """The stored records of a subject, or the `error` that reading them raised."""

    subject: Subject
    heartbeat: Heartbeat | None = None
    stop: StopRequest | None = None
    input_rate: InputRate | None = None
    throughput: Throughput = field(default_factory=Throughput)
    error: Exception | None = None


def _read(subject: Subject, objects: ObjectStore, now: datetime) -> _SubjectFacts:
    control, streams = subject.control, subject.kind == "stream"
    try:
        return _SubjectFacts(
            subject,
            heartbeat=read_heartbeat(objects, paths.heartbeat(control)),
            stop=StopFlag(objects, paths.stop_request(control)).read() or _group_stop_request(subject, objects),
            input_rate=read_input_rate(objects, paths.input_rate(control)) if streams else None,
            throughput=read_with_replays(objects, subject.name, subject.limits, now) if streams else Throughput(),
        )
    except Exception as error:
        return _SubjectFacts(subject, error=error)


def _evaluate_facts(
    facts: _SubjectFacts, *, paused: PausedLookup, previous: Mapping[str, Verdict] | None, now: datetime
) -> Report:
    subject, previous_verdict = facts.subject, (previous or {}).get(facts.subject.key)
    if facts.error is not None:
        verdict_on_error = unreadable_verdict(
            facts.error, kind=subject.kind, name=subject.name, now=now, previous=previous_verdict
        )
        return Report(subject, verdict_on_error, None)
    verdict = evaluate_health(
        facts.heartbeat,
        facts.stop,
        kind=subject.kind,
        name=subject.argument,
        now=now,
        dag=subject.dag_id,
        paused=paused(subject.dag_id),
        previous=previous_verdict,
        limits=subject.limits,
        input_rate=facts.input_rate,
        throughput=facts.throughput,
    )
    return Report(subject, verdict, facts.heartbeat, facts.throughput)


@dataclass(frozen=True, slots=True)
class SlotUse:
    """The use of an Airflow pool by continuous processes: its slots, and the DAGs whose process is alive."""

    pool: str
    slots: int
    running: tuple[str, ...]

    @property
    def is_full(self) -> bool:
        """Whether a further process has to wait."""
        return len(self.running) >= self.slots

    def describe(self, dag: str) -> str:
        """Describes why a process waits."""
        names = shorten_names(self.running)
        return f"{dag} waits for a slot: {len(self.running)} of {self.slots} of pool {self.pool!r} are used by {names}."

    @property
    def next_step(self) -> str:
        """The next step for a waiting process."""
        return (
            "Let small streams share a driver (`stream_group` in pipeline.yaml), stop another process, or raise "
            f"`slots` of {self.pool!r} under `shares` of the environment if the machine has memory for it."
        )


def slot_use(catalog: Catalog, subject: Subject, heartbeats: Iterable[tuple[Subject, Heartbeat | None]]) -> SlotUse:
    """Returns the use of a subject's pool by other processes. A group of streams has one slot."""
    now, shares = utc_now(), catalog.environment.shares
    pool_of = {True: shares.of("stream").pool, False: shares.relay.pool or RELAY_POOL}
    pool = pool_of[subject.kind in _SPARK_KINDS]
    running = {
        other.dag_id
        for other, heartbeat in heartbeats
        if pool_of[other.kind in _SPARK_KINDS] == pool
        and other.dag_id != subject.dag_id
        and heartbeat is not None
        and is_live(heartbeat, other.limits, now)
    }
    return SlotUse(pool, shares.pools()[pool].slots, tuple(sorted(running)))


def with_waiting_causes(catalog: Catalog, reports: Sequence[Report]) -> list[Report]:
    """Names the cause of processes that do not start because their pool has no free slot."""
    if catalog.environment.kubernetes is not None:
        return list(reports)
    heartbeats = [(item.subject, item.heartbeat) for item in reports]
    return [_with_waiting_cause(catalog, item, heartbeats) for item in reports]


def _with_waiting_cause(
    catalog: Catalog, item: Report, heartbeats: Sequence[tuple[Subject, Heartbeat | None]]
) -> Report:
    if item.verdict.cause not in _NOT_STARTING or item.verdict.state not in ("starting", "unhealthy"):
        return item
    use = slot_use(catalog, item.subject, heartbeats)
    if not use.is_full:
        return item
    finding = Finding("unhealthy", "WAITS_FOR_SLOT", use.describe(item.subject.dag_id), use.next_step)
    return dataclasses.replace(item, verdict=dataclasses.replace(item.verdict, **dataclasses.asdict(finding)))


def unmeasured_pipelines(reports: Iterable[Report], objects: ObjectStore, *, now: datetime) -> list[str]:
    """Returns the pipelines without a snapshot of their tables whose stream has run and landed for a while."""
    return [
        item.subject.name
        for item in reports
        if item.subject.kind == "stream"
        and item.heartbeat is not None
        and item.heartbeat.batch_id is not None
        and age_seconds(item.heartbeat.started_at, now) >= MEASURED_AFTER_SECONDS
        and objects.etag(paths.tables_summary(item.subject.name)) is None
    ]


def invalid_spec_reports(
    catalog: Catalog,
    objects: ObjectStore,
    *,
    previous: Mapping[str, Verdict] | None = None,
    now: datetime | None = None,
) -> list[Report]:
    """Returns a report for each relay and pipeline with an invalid spec.

    A process that already runs continues with its valid spec, but no new one can start.
    """
    now = now or utc_now()
    reports = []
    for subject, error in subjects_with_invalid_spec(catalog):
        heartbeat = _heartbeat(subject, objects)
        verdict = invalid_spec_verdict(
            error,
            kind=subject.kind,
            name=subject.name,
            now=now,
            previous=(previous or {}).get(subject.key),
            heartbeat=heartbeat,
            limits=subject.limits,
        )
        reports.append(Report(subject, verdict, heartbeat))
    return reports


def subjects_with_invalid_spec(catalog: Catalog) -> list[tuple[Subject, DeltaworksError]]:
    """Returns every relay and stream with an invalid spec, with its error."""
    invalid: list[tuple[Subject, DeltaworksError]] = []
    for (spec_kind, name), error in catalog.broken.items():
        if spec_kind == "relay":
            invalid.append((Subject("relay", name, paths.relay_control(name), HealthLimits()), error))
        elif spec_kind == "pipeline":
            group = group_of(catalog, name) or ""
            invalid.append((Subject("stream", name, paths.pipeline_control(name), HealthLimits(), group=group), error))
    return invalid


def _group_stop_request(subject: Subject, objects: ObjectStore) -> StopRequest | None:
    """Returns the request that stops the subject's group, if there is one."""
    request = group_stop_flag(objects, subject.group).read() if subject.group else None
    return None if request is None else request.replace(group=subject.group)


def _heartbeat(subject: Subject, objects: ObjectStore) -> Heartbeat | None:
    """Reads the last heartbeat; None if the storage does not answer, which other reports show."""
    try:
        return read_heartbeat(objects, paths.heartbeat(subject.control))
    except Exception:
        return None


def format_reports(reports: Iterable[Report]) -> str:
    """Formats reports as text, one line each, unhealthy ones first and with their next step.

    The column LEFT is the time until the source deletes its oldest unread input.
    """
    rows = [("", "NAME", "STATE", "CAUSE", "SINCE", "LEFT", "DETAIL")]
    ordered = sorted(reports, key=lambda report: (not report.verdict.is_unhealthy, report.subject.key))
    for item in ordered:
        verdict = item.verdict
        since = verdict.since.strftime("%m-%d %H:%M")
        marker = "!" if verdict.is_unhealthy else ""
        remaining_time = (
            "" if verdict.time_left_seconds is None else format_duration(max(0.0, verdict.time_left_seconds))
        )
        rows.append((marker, item.subject.key, verdict.state, verdict.cause, since, remaining_time, verdict.detail))
        if verdict.is_unhealthy:
            rows.append(("", "", "", "", "next", "", verdict.next_step))
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    return "\n".join(
        " ".join((*(cell.ljust(width) for cell, width in zip(row[:6], widths, strict=True)), row[6])).rstrip()
        for row in rows
    )


def write_verdicts(objects: ObjectStore, records: Mapping[str, Mapping[str, Any]], *, now: datetime) -> None:
    """Stores the verdicts of the health check (records of `verdict_to_record`, by subject) for readers without
    Airflow."""
    objects.put(paths.health_verdicts(), json.dumps({"written_at": now.isoformat(), "verdicts": records}).encode())


def read_verdicts(objects: ObjectStore) -> dict[str, Verdict]:
    """Reads the verdicts of the last health check, by subject; empty if they are missing or unreadable."""
    item = objects.get(paths.health_verdicts())
    return decode_verdicts(item.data) if item else {}


def decode_verdicts(data: bytes) -> dict[str, Verdict]:
    """Parses stored verdicts, by subject; empty if they are damaged."""
    try:
        records = json.loads(data)["verdicts"]
        return {key: verdict_from_record(record) for key, record in records.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def verdict_to_record(verdict: Verdict) -> dict[str, Any]:
    """Converts a verdict to plain data."""
    return {**dataclasses.asdict(verdict), "since": verdict.since.isoformat()}


def verdict_from_record(record: Mapping[str, Any]) -> Verdict:
    """Parses a record of `verdict_to_record`."""
    return Verdict(**{**record, "since": parse_iso(record["since"]) or utc_now()})
