"""`deltaworks status`: relays, streams, collectors, held tables, open alerts, and an overall exit code.

For people it is a summary: a verdict, what needs a person, and one line for each stream. `--all` shows everything.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import typer

from deltaworks.alerts.raising import Alert, alerts
from deltaworks.cli.alerts import alert_listing
from deltaworks.cli.context import apply_settings, require_reachable
from deltaworks.cli.output import (
    CommandOutput,
    OutputPart,
    clear_screen,
    listing_command,
    print_line,
    print_parts,
)
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.health.heartbeat import Heartbeat
from deltaworks.control.health.limits import age_seconds, format_duration
from deltaworks.control.health.processes import channel_warning, process_reports
from deltaworks.control.health.report import (
    Report,
    check_subject,
    invalid_spec_reports,
    read_verdicts,
    subjects,
    verdict_to_record,
    with_waiting_causes,
)
from deltaworks.control.health.verdicts import describe_backlog
from deltaworks.control.listing import Cell, Listing, count_cell
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.records.held_tables import HeldTableRecords
from deltaworks.errors import ConfigError, conditions
from deltaworks.specs.base import nearest_names_hint
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog

#: Exit code if something is unhealthy. For unreachable storage the exit code is 21, as in other commands.
UNHEALTHY_EXIT_CODE = 1
WATCH = typer.Option(False, "--watch", help="Show it again every few seconds, until it is interrupted.")
INTERVAL = typer.Option(5.0, min=1.0, help="Seconds between two readings with --watch.")
ALL = typer.Option(False, "--all", help="Show every process with its cause and detail, instead of a summary.")
_PAUSED_CAUSES = ("PAUSED", "PAUSED_WITHOUT_STOP", "PAUSED_WHILE_RUNNING")
#: Open alerts that are shown with their text; of the others the subject is shown.
_MAX_ALERTS_SHOWN = 8


@listing_command
def status(watch: bool = WATCH, interval_seconds: float = INTERVAL, show_all: bool = ALL) -> CommandOutput:
    """Show what needs a person, and the streams. Exit code: 0 healthy, 1 unhealthy, 21 storage unreachable."""
    return show_status(lake_status, watch=watch, interval_seconds=interval_seconds, show_all=show_all)


def show_status(
    read: Callable[[], CommandOutput], *, watch: bool, interval_seconds: float, show_all: bool
) -> CommandOutput:
    """Returns the status; with `watch` prints it repeatedly until an interrupt."""
    output = read()
    try:
        while watch:
            clear_screen()
            print_line(f"{utc_now():%Y-%m-%d %H:%M:%S} UTC; Ctrl+C ends it.")
            print_parts(output.parts if show_all else output.summary or output.parts)
            time.sleep(interval_seconds)
            output = read()
    except KeyboardInterrupt:
        # The last reading stays on the screen.
        return CommandOutput([], exit_code=output.exit_code)
    return dataclasses.replace(output, summary=()) if show_all else output


@listing_command
def explain(code: str = typer.Argument(help="The code, such as SPEC_CHANGE_UNSAFE.")) -> CommandOutput:
    """Explain a condition, a cause of a verdict or an alert: its meaning, next step and runbook."""
    codes = conditions.catalog()
    name = code.strip().upper().replace("-", "_")
    entries = [
        (kind, entry)
        for kind, rows in (
            ("condition", codes.conditions),
            ("cause of a verdict", codes.health_causes),
            ("alert", codes.alerts),
        )
        if (entry := rows.get(name)) is not None
    ]
    if not entries:
        names = sorted({*codes.conditions, *codes.health_causes, *codes.alerts})
        hint = nearest_names_hint([name], names, prefix="docs/reference/conditions.md lists all, such as")
        raise ConfigError("CONDITION_UNKNOWN", f"There is no condition, cause or alert {name!r}.", hint=hint)
    parts: list[OutputPart] = []
    for kind, entry in entries:
        facts = {"code": name, "kind": kind, "meaning": entry.meaning, "next step": entry.next_step or "none"}
        facts |= {"runbook": f"docs/{entry.runbook}"} if entry.runbook else {}
        listing = Listing(tuple(facts), layout="blocks", title=kind)
        listing.add(*facts.values())
        parts.append(listing)
    return CommandOutput(parts)


def lake_status() -> CommandOutput:
    """Reads the state of all processes, held tables and alerts from the lake.

    Raises:
        ConfigError: the environment is invalid. Errors of pipelines are part of the output.
        TransientError: STORAGE_UNREACHABLE.
    """
    apply_settings()
    catalog = load_catalog(skip_invalid=True)
    require_reachable(catalog.environment, "lake")
    objects = open_objects(catalog.environment.lake)
    now = utc_now()
    reports = _reports(catalog, objects, now)
    held, suspended = _held_listing(catalog, objects)
    open_alerts = [alert for alert in alerts(objects) if alert.state.is_open]
    parts: list[OutputPart] = [_stream_listing(reports, now)]
    parts += [
        f"{item.subject.kind} {item.subject.name}: {item.verdict.next_step}"
        for item in reports
        if item.verdict.is_unhealthy
    ]
    parts += [held] if held.cells else ["No table is held.", held]
    parts += [alert_listing(open_alerts)] if open_alerts else ["No alert is open.", alert_listing(())]
    # A missing alert channel does not change the exit code: the processes are healthy, and a person reads this output.
    parts += [warning] if (warning := channel_warning(catalog.environment.alerts)) else []
    is_healthy = not (suspended or open_alerts or any(item.verdict.is_unhealthy for item in reports))
    summary: list[OutputPart] = [
        _verdict_line(reports, open_alerts, held, is_healthy=is_healthy),
        *_troubles(reports, open_alerts, now),
        *([held] if held.cells else []),
        "",
        *_summary_listing(reports, now),
        *([warning] if warning else []),
    ]
    return CommandOutput(parts, exit_code=0 if is_healthy else UNHEALTHY_EXIT_CODE, summary=summary)


def _verdict_line(reports: Sequence[Report], open_alerts: Sequence[Alert], held: Listing, *, is_healthy: bool) -> str:
    sentences = []
    for noun, plural, items in (
        ("stream", "streams", [item for item in reports if item.subject.kind == "stream"]),
        ("other process", "other processes", [item for item in reports if item.subject.kind != "stream"]),
    ):
        states = Counter(item.verdict.state for item in items)
        counts = ", ".join(f"{count} {state}" for state, count in states.most_common())
        sentences += [f"{len(items)} {noun if len(items) == 1 else plural}: {counts}."] if items else []
    tables, raised = len(held.cells), len(open_alerts)
    sentences.append(f"{tables} table{'s are' if tables > 1 else ' is'} held." if tables else "No table is held.")
    sentences.append(f"{raised} alert{'s are' if raised > 1 else ' is'} open." if raised else "No alert is open.")
    return " ".join(["Healthy." if is_healthy else "Not healthy.", *sentences])


def _troubles(reports: Iterable[Report], open_alerts: Sequence[Alert], now: datetime) -> Iterator[str]:
    """Yields what needs a person as paragraphs: unhealthy processes, then alerts about anything else."""
    unhealthy = [item for item in reports if item.verdict.is_unhealthy]
    for item in unhealthy:
        verdict = item.verdict
        heading = f"{item.subject.kind} {item.subject.name} is unhealthy {_since(verdict.since, now)}: {verdict.cause}"
        yield from ("", heading, f"    {verdict.detail}")
        yield from [f"    Next: {verdict.next_step}"] if verdict.next_step else []
    shown = {f"{item.subject.kind} {name}" for item in unhealthy for name in (item.subject.name, item.subject.argument)}
    repeated = conditions.verdict_alerts()
    rest = sorted(
        (alert for alert in open_alerts if not (alert.cause in repeated and alert.subject in shown)),
        key=lambda alert: (alert.state.severity, alert.cause, alert.subject),
    )
    for alert in rest[:_MAX_ALERTS_SHOWN]:
        text, _, next_step = alert.summary.partition(" Next: ")
        heading = f"{alert.state.severity} {alert.subject}: {alert.cause} {_since(alert.state.since, now)}".rstrip()
        yield from ("", heading, f"    {text}")
        yield from [f"    Next: {next_step}"] if next_step else []
    if further := rest[_MAX_ALERTS_SHOWN:]:
        names = ", ".join(f"{alert.cause} {alert.subject}" for alert in further)
        yield from ("", f"{len(further)} more, see `deltaworks alerts show`: {names}")


def _since(at: datetime | None, now: datetime) -> str:
    if at is None:
        return ""
    return f"since {at:%Y-%m-%d %H:%M} ({format_duration(max(0.0, (now - at).total_seconds()))})"


def _summary_listing(reports: Iterable[Report], now: datetime) -> Iterator[OutputPart]:
    """Yields one line for each stream, and for other processes that are not healthy."""
    listing = Listing(
        ("stream", "state", "rows in the last hour", "quarantined", "waiting"),
        minor=("quarantined", "rows in the last hour"),
    )
    healthy = 0
    for item in reports:
        if item.subject.kind != "stream" and item.verdict.state == "healthy":
            healthy += 1
            continue
        name = item.subject.name if item.subject.kind == "stream" else f"{item.subject.kind} {item.subject.name}"
        rows, quarantined, _ = _facts(item, now).values()
        waiting = _waiting(item.heartbeat, now) if item.subject.kind == "stream" and item.heartbeat else ""
        listing.add(name, item.verdict.state, rows, quarantined, waiting)
    if listing.cells:
        yield listing
    if healthy:
        yield f"{healthy} other {'process is' if healthy == 1 else 'processes are'} healthy; --all lists them."


def _waiting(heartbeat: Heartbeat, now: datetime) -> str:
    """Describes the backlog in a few characters, for one line of a stream."""
    backlog = describe_backlog(heartbeat)
    if parse_iso(heartbeat.oldest_pending_at) is None:
        return backlog
    seconds = age_seconds(heartbeat.oldest_pending_at, now)
    return f"{backlog.removesuffix(' wait').removesuffix(' waits')}, {format_duration(seconds)}"


def _reports(catalog: Catalog, objects: ObjectStore, now: datetime) -> list[Report]:
    """Evaluates all subjects. The start of a verdict and the paused DAGs are read from the health check's records."""
    previous = read_verdicts(objects)
    paused_keys = {key for key, verdict in previous.items() if verdict.cause in _PAUSED_CAUSES}
    reports = [
        check_subject(
            subject,
            objects,
            paused={subject.dag_id: subject.key in paused_keys or None}.get,
            previous=previous,
            now=now,
        )
        for subject in subjects(catalog)
    ]
    reports = with_waiting_causes(catalog, reports)
    invalid = invalid_spec_reports(catalog, objects, previous=previous, now=now)
    return reports + invalid + process_reports(catalog, objects, previous=previous, now=now)


def _stream_listing(reports: Iterable[Report], now: datetime) -> Listing:
    rows = [(item, _facts(item, now)) for item in reports]
    records = [
        {
            "kind": item.subject.kind,
            "name": item.subject.name,
            **verdict_to_record(item.verdict),
            "heartbeat": item.heartbeat.model_dump() if item.heartbeat else None,
            **{name: cell.value if isinstance(cell, Cell) else cell for name, cell in facts.items()},
        }
        for item, facts in rows
    ]
    names = ("kind", "name", "state", "cause", "since", "rows in the last hour", "quarantined", "lag", "detail")
    listing = Listing(
        names, records=records, title="relays and streams", details=("detail",), minor=("since", "quarantined")
    )
    for item, facts in rows:
        verdict = item.verdict
        since = Cell(verdict.since.isoformat(), f"{verdict.since:%Y-%m-%d %H:%M}")
        listing.add(
            item.subject.kind, item.subject.name, verdict.state, verdict.cause, since, *facts.values(), verdict.detail
        )
    return listing


def _facts(item: Report, now: datetime) -> dict[str, Any]:
    """Returns the input of the last hour and the lag, as cells of the listing."""
    hour = item.throughput.last_hour(now)
    is_stream = item.subject.kind == "stream"
    return {
        "rows_in_the_last_hour": count_cell(hour.rows) if is_stream else None,
        "quarantined_in_the_last_hour": count_cell(hour.quarantined) if is_stream else None,
        "lag": _lag(item.heartbeat, now) if is_stream and item.heartbeat is not None else None,
    }


def _lag(heartbeat: Heartbeat, now: datetime) -> Cell:
    """Returns the age of the oldest unread input; seconds in the output for programs."""
    if parse_iso(heartbeat.oldest_pending_at) is None:
        return Cell(0.0, describe_backlog(heartbeat))
    seconds = age_seconds(heartbeat.oldest_pending_at, now)
    return Cell(seconds, f"{describe_backlog(heartbeat)}, the oldest for {format_duration(seconds)}")


def _held_listing(catalog: Catalog, objects: ObjectStore) -> tuple[Listing, bool]:
    """Returns a listing of held tables, and whether any is suspended."""
    listing = Listing(
        ("pipeline", "table", "held", "since", "from batch", "why"), title="tables held", details=("why",)
    )
    suspended = False
    for pipeline in catalog.pipelines:
        for table, record in sorted(HeldTableRecords(objects, pipeline).read().items()):
            suspended = suspended or record.reason == "suspended"
            why = f"[{record.condition}] {record.message}" if record.condition else record.by
            listing.add(pipeline, table, record.reason, record.at, record.since_batch, why)
    return listing, suspended
