"""`deltaworks alerts rules` and `alerts backtest`: current state of rules, and simulation on past data.

`deltaworks remediations` and `remediate` list, hold, resume and run what acts when a rule fires.
"""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from deltaworks.cli.context import OptionalPipelineArgument, PipelineArgument, apply_settings, catalog
from deltaworks.cli.output import CommandOutput, OutputPart, listing_command, print_line
from deltaworks.control.clock import parse_iso, parse_range_end, utc_now
from deltaworks.control.listing import Cell, Listing, count_cell
from deltaworks.control.objects import open_objects
from deltaworks.control.provenance import system_user
from deltaworks.control.records.remediation import RemediationRecords
from deltaworks.errors import ConfigError

if TYPE_CHECKING:
    from deltaworks.rules.backtest import Backtest, Detection
    from deltaworks.rules.stored_state import RuleState


_SETTINGS = typer.Option(None, "--set", help="Override a key, such as fire.above=0.07; repeatable.")
_MAX_LISTED = 200


@listing_command
def rules(
    pipeline: OptionalPipelineArgument = "",
    show_all: bool = typer.Option(False, "--all", help="Also figures that are well; by default only their number."),
) -> Listing:
    """List rules with the state, value and start of each series, and the longest time from an event to a notice."""
    project = catalog()
    objects = open_objects(project.environment.lake)
    from deltaworks.rules.stored_state import read_rule_state
    from deltaworks.specs.notice_delay import notice_delay

    columns = ("pipeline", "rule", "labels", "state", "value", "usual", "since", "judged to", "data to", "problem")
    listing = Listing((*columns, "event to notice"))
    for name, spec in project.pipelines.items():
        if pipeline and name != pipeline:
            continue
        for rule in spec.rules:
            seconds = notice_delay(spec, rule).total_seconds
            rows = _RuleRows(listing, name, rule.name, Cell(seconds, f"{seconds:g} s"))
            rows.add_state(read_rule_state(objects, name, rule.name), show_all=show_all)
    if pipeline:
        project.pipeline(pipeline)
    return listing


@dataclass(frozen=True, slots=True)
class _RuleRows:
    """Adds the rows of one rule to a listing."""

    listing: Listing
    pipeline: str
    rule: str
    notice: Cell

    def add_state(self, state: RuleState | None, *, show_all: bool) -> None:
        """Adds a row for each series that is unhealthy, or each series, and one for the others together."""
        if state is None:
            self._add("", "not evaluated yet", "", "", "", "", "", "")
            return
        evaluated_up_to = (state.last_minute or "", state.data_until, state.problem or ", ".join(state.rule_alerts))
        if state.waiting:
            self._add("", "waiting", "", "", "", *evaluated_up_to)
            if not show_all:
                return
        visible_series = [
            item for item in state.series if show_all or item.phase not in ("ok", "learning") or item.unknown
        ]
        order = ("firing", "recovering", "pending", "ok", "learning")
        for item in sorted(
            visible_series, key=lambda item: (order.index(item.phase), [text or "" for text in item.labels])
        ):
            labels = ", ".join(f"{name}={text or ''}" for name, text in zip(state.labels, item.labels, strict=True))
            phase = f"{item.phase}, unknown" if item.unknown else item.phase
            values = (_value_cell(item.value), _value_cell(item.baseline))
            self._add(labels, phase, *values, item.changed_minute, *evaluated_up_to)
        hidden_count = len(state.series) - len(visible_series)
        if hidden_count or not state.series:
            phases = {item.phase for item in state.series if item not in visible_series}
            phase = "learning" if phases == {"learning"} else "ok" if phases else "no figures"
            self._add(f"{hidden_count} of {len(state.series)}", phase, "", "", "", *evaluated_up_to)

    def _add(self, *cells: Cell | str) -> None:
        self.listing.add(self.pipeline, self.rule, *cells, self.notice)


def _value_cell(value: float | None) -> Cell:
    return Cell(value, "" if value is None else f"{value:.4g}")


@listing_command
def backtest(
    pipeline: PipelineArgument,
    rule: str = typer.Argument(help="The rule."),
    since: str = typer.Option(..., "--from", help="Start, as a date or time in UTC."),
    until: str = typer.Option("", "--to", help="Last date (included), or end as a time in UTC; by default now."),
    settings: list[str] = _SETTINGS,
    incidents: Path | None = typer.Option(
        None, "--incidents", help=("CSV file of incidents with from, to, and labels.")
    ),
    point_in_time: bool = typer.Option(False, "--point-in-time", help="Read the tables as of each evaluated minute."),
    html: Path | None = typer.Option(None, "--html", help="HTML file for a chart."),
) -> CommandOutput:
    """Evaluate a rule on past data: episodes, notifications, detection delay and false positives."""
    project = catalog()
    spec = project.pipeline(pipeline)
    from deltaworks.specs.catalog import find_by_name

    rule_spec = find_by_name(rule, {item.name: item for item in spec.rules}, "rule")
    start, end = _parse_span(since, until)
    from deltaworks.rules.backtest import backtest as run
    from deltaworks.rules.backtest import read_incidents, with_overrides

    candidate = with_overrides(rule_spec, settings or ())
    recorded_incidents = read_incidents(incidents) if incidents is not None else None
    started_at = time.monotonic()
    result = run(
        project, pipeline, candidate, since=start, until=end, point_in_time=point_in_time, keep_points=html is not None
    )
    seconds = time.monotonic() - started_at
    parts: list[OutputPart] = [_episode_listing(result), _notification_listing(result)]
    if recorded_incidents is not None:
        from deltaworks.rules.backtest import detections

        detected, false_positives = detections(result, recorded_incidents)
        parts += [
            _detection_listing(detected),
            f"{len(false_positives)} episodes of no incident: {len(false_positives) / result.days:.2f} a day.",
        ]
    parts += _summary_lines(result, point_in_time=point_in_time, seconds=seconds)
    if html is not None:
        from deltaworks.cli.backtest_chart import backtest_page

        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(backtest_page(pipeline, result, start, end), encoding="utf-8")
        parts.append(f"Written to {html}.")
    return CommandOutput(parts)


def _parse_span(since: str, until: str) -> tuple[dt.datetime, dt.datetime]:
    times = []
    for text, parse in ((since, parse_iso), (until, parse_range_end)):
        try:
            times.append(parse(text.strip()) or utc_now())
        except ValueError:
            raise _span_error(f"{text!r} is neither a date nor a time.") from None
    if times[0] >= times[1]:
        raise _span_error(f"{times[0]:%Y-%m-%d %H:%M} is not before {times[1]:%Y-%m-%d %H:%M} UTC.")
    return times[0], times[1]


def _span_error(message: str) -> ConfigError:
    hint = "Write dates as YYYY-MM-DD and times as YYYY-MM-DDTHH:MM, in UTC, with the earlier one as --from."
    return ConfigError("BACKTEST_SPAN_INVALID", message, hint=hint)


def _episode_listing(result: Backtest) -> Listing:
    from deltaworks.rules.evaluation import minute_text
    from deltaworks.rules.messages import labels_text

    listing = Listing(
        ("labels", "began", "fired", "notified", "ended", "minutes", "worst", "inhibited by"), title="episodes"
    )
    for episode in sorted(result.episodes, key=lambda item: item.fired)[:_MAX_LISTED]:
        end = result.last + result.rule.step_minutes if episode.ended is None else episode.ended
        listing.add(
            labels_text(result.rule, episode.labels),
            minute_text(episode.began),
            minute_text(episode.fired),
            f"{result.evaluated_at(episode.fired):%Y-%m-%dT%H:%M:%SZ}",
            "lasts" if episode.ended is None else minute_text(episode.ended),
            count_cell(end - episode.began),
            _value_cell(episode.worst),
            episode.inhibited_by,
        )
    return listing


def _notification_listing(result: Backtest) -> Listing:
    listing = Listing(("at", "kind", "subject"), title="notifications")
    for notification in result.notifications[:_MAX_LISTED]:
        listing.add(f"{notification.at:%Y-%m-%dT%H:%M:%SZ}", notification.kind, notification.subject)
    return listing


def _detection_listing(detected: Sequence[Detection]) -> Listing:
    listing = Listing(("incident from", "to", "labels", "detected after minutes"), title="incidents")
    for item in detected:
        labels = ", ".join(f"{name}={value}" for name, value in item.incident.labels.items())
        delay = Cell(item.delay_minutes, "never" if item.delay_minutes is None else f"{item.delay_minutes:.1f}")
        times = (f"{at:%Y-%m-%dT%H:%MZ}" for at in (item.incident.since, item.incident.until))
        listing.add(*times, labels, delay)
    return listing


def _summary_lines(result: Backtest, *, point_in_time: bool, seconds: float) -> list[str]:
    kinds = Counter(notification.kind for notification in result.notifications)
    notifications = ", ".join(f"{number} {kind}" for kind, number in kinds.items()) or "none"
    span = result.days * 86_400 / max(seconds, 1e-9)
    lines = [
        f"{len(result.episodes)} episodes, {len(result.episodes) / result.days:.2f} a day; "
        f"notifications: {notifications}.",
        f"{result.minutes:,} minutes evaluated in {seconds:.1f} s, {span:,.0f} times real time. Nothing was written.",
    ]
    if not point_in_time:
        lines.append(
            "The current tables include late rows, so this is optimistic; --point-in-time reads them as of each minute."
        )
    elif result.optimistic_until is not None:
        at = f"{result.optimistic_until:%Y-%m-%d %H:%M}"
        lines.append(
            f"Before {at} UTC the logs have no history, and the current tables were used: that part is optimistic."
        )
    return lines


remediations_app = typer.Typer(no_args_is_help=True)
_NAME = typer.Argument(help="Name of the remediation in the environment.")


@remediations_app.command("list")
@listing_command
def list_remediations(
    limit: int = typer.Option(20, help="Maximum notifications per remediation, newest first."),
) -> list[Listing]:
    """List remediations, their holds, and their last actions."""
    project = catalog()
    records = RemediationRecords(open_objects(project.environment.lake))
    remediations = Listing(("remediation", "on", "targets", "step", "floor", "dry_run", "held"), title="remediations")
    actions = Listing(("at", "remediation", "state", "from", "to", "reason", "notification"), title="actions")
    for spec in project.environment.remediations:
        held = records.hold_reason(spec.name) or ""
        remediations.add(spec.name, spec.rule, ", ".join(spec.targets), spec.step, spec.floor, spec.dry_run, held)
        for record in list(records.all(spec.name))[: -limit - 1 : -1]:
            at = Cell(record.at, record.at[:16].replace("T", " "))
            actions.add(
                at, record.remediation, record.state, record.source, record.target, record.reason, record.notification
            )
    return [remediations, actions]


@remediations_app.command()
def hold(
    name: str = _NAME,
    reason: str = typer.Option("held by hand", help="Reason, shown in listings."),
) -> None:
    """Hold a remediation: it stops planning actions. Open actions are still verified."""
    records = _records(name)
    records.hold(name, by=system_user(), reason=reason)
    print_line(f"{name} is held. Resume it with `deltaworks remediations resume {name}`.")


@remediations_app.command()
def resume(name: str = _NAME) -> None:
    """Resume a held remediation, and resolve the alerts that ask for a person."""
    from deltaworks.remediation.notifications import resolve_hold_alerts

    was_held = _records(name).resume(name)
    resolve_hold_alerts(open_objects(catalog().environment.lake), name)
    print_line(f"{name} is resumed." if was_held else f"{name} was not held.")


def remediate(name: str = _NAME) -> None:
    """Run a remediation until it is stopped, as Airflow does: read its queue, act, verify, roll back."""
    from deltaworks.remediation.__main__ import main

    apply_settings()
    code = main(["--remediation", name, "--early-failure-wait-seconds", "0"])
    if code:
        raise typer.Exit(code)


def _records(name: str) -> RemediationRecords:
    from deltaworks.remediation.process import find_remediation

    project = catalog()
    find_remediation(project, name)
    return RemediationRecords(open_objects(project.environment.lake))
