"""`deltaworks status`: relays, streams, collectors, held tables, open alerts, and an overall exit code."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import typer

from deltaworks.alerts.raising import alerts
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
_PAUSED_CAUSES = ("PAUSED", "PAUSED_WITHOUT_STOP", "PAUSED_WHILE_RUNNING")


@listing_command
def status(
    watch: bool = typer.Option(False, "--watch", help="Show it again every few seconds, until it is interrupted."),
    interval_seconds: float = typer.Option(5.0, min=1.0, help="Seconds between two readings with --watch."),
) -> CommandOutput:
    """Show relays, streams, collectors, held tables and alerts. Exit code: 0 healthy, 1 unhealthy, 21 storage
    unreachable.
    """
    output = lake_status()
    try:
        while watch:
            clear_screen()
            print_line(f"{utc_now():%Y-%m-%d %H:%M:%S} UTC; Ctrl+C ends it.")
            print_parts(output.parts)
            time.sleep(interval_seconds)
            output = lake_status()
    except KeyboardInterrupt:
        # The last reading stays on the screen.
        return CommandOutput([], exit_code=output.exit_code)
    return output


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
    parts += [f"{item.subject.key}: {item.verdict.next_step}" for item in reports if item.verdict.is_unhealthy]
    parts += [held] if held.cells else ["No table is held.", held]
    parts += [alert_listing(open_alerts)] if open_alerts else ["No alert is open.", alert_listing(())]
    # A missing alert channel does not change the exit code: the processes are healthy, and a person reads this output.
    parts += [warning] if (warning := channel_warning(catalog.environment.alerts)) else []
    is_healthy = not (suspended or open_alerts or any(item.verdict.is_unhealthy for item in reports))
    return CommandOutput(parts, exit_code=0 if is_healthy else UNHEALTHY_EXIT_CODE)


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
    listing = Listing(names, records=records, title="relays and streams")
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
    listing = Listing(("pipeline", "table", "held", "since", "from batch", "why"), title="tables held")
    suspended = False
    for pipeline in catalog.pipelines:
        for table, record in sorted(HeldTableRecords(objects, pipeline).read().items()):
            suspended = suspended or record.reason == "suspended"
            why = f"[{record.condition}] {record.message}" if record.condition else record.by
            listing.add(pipeline, table, record.reason, record.at, record.since_batch, why)
    return listing, suspended
