"""The page of a table: its score, file sizes, plan for the next maintenance run, readers of old files, and history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time
from typing import Any

from deltaworks.charts.compact import TimeSeries
from deltaworks.console.page_context import PageContext, PageMissingError, parse_instant
from deltaworks.console.pages.base import Page
from deltaworks.console.paging import read_summary, to_dict
from deltaworks.console.rendering import bytes_text
from deltaworks.control.paths import rule_warnings_summary, tables_summary
from deltaworks.control.summaries.rule_warnings import RuleWarningsSummary
from deltaworks.control.summaries.tables import TablesSummary, TableSummary
from deltaworks.specs.table import TableRuleSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRow:
    """A reader that prevents old files of the table from being deleted. `since` is None if the log no longer has its
    version.
    """

    by: str
    since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRow:
    """A rule of the table. Counts of failed rows exist for rules that warn, and `shares` are those of each day."""

    name: str
    check: str
    on_fail: str
    alert_percent: float | None
    last_hour: Mapping[str, Any] | None = None
    today: Mapping[str, Any] | None = None
    shares: tuple[float, ...] = ()
    since: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    """Content of the table page. File counts by size range are `sizes`; `commands` are commands for the table.

    Declared columns with their types are `columns`.
    If the table has not been measured, `unmeasured` says why, and its facts are empty.
    """

    pipeline: str
    table: Mapping[str, Any]
    at: datetime | None
    costs: tuple[Mapping[str, Any], ...]
    tonight: Mapping[str, Any] | None
    sizes: tuple[tuple[str, int], ...]
    holds: tuple[HoldRow, ...]
    scores: TimeSeries
    bytes: TimeSeries
    last_write_at: datetime | None
    last_optimize_at: datetime | None
    last_vacuum_at: datetime | None
    commands: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...]
    partition_by: tuple[str, ...]
    rules: tuple[RuleRow, ...] = ()
    unmeasured: str = ""

    @property
    def announcement(self) -> str:
        """Text for screen readers, which announce it when it changes."""
        return f"score {self.table['score']}"


def view(context: PageContext) -> TableView:
    """Returns the page of the table in the address."""
    pipeline, name = context.pipeline, context.values["table"]
    stored = read_summary(context, TablesSummary, tables_summary(pipeline))
    summary = stored.summary
    table = next((one for one in summary.tables if one.name == name), None) if summary else None
    unmeasured = ""
    if table is None:
        unmeasured = stored.problem or _missing_message(pipeline, name, is_missing=stored.is_missing)
        spec = context.catalog.pipelines.get(pipeline)
        kind = spec.table_kinds.get(name) if spec else None
        if kind is None:
            raise PageMissingError(unmeasured)
        table = TableSummary(name=name, kind=kind)
    columns, partition_by = _declared(context, pipeline, name)
    nights = [(datetime.combine(_day(point.date), time(), tzinfo=UTC), point) for point in table.nights]
    return TableView(
        pipeline=pipeline,
        table=to_dict(table.replace(costs=(), holds=(), nights=(), next_plan=None)),
        at=parse_instant(summary.at) if summary else None,
        costs=tuple(to_dict(cost) for cost in sorted(table.costs, key=lambda cost: -cost.cost)),
        tonight=None if table.next_plan is None else to_dict(table.next_plan),
        sizes=_sizes(summary.size_bounds, table.size_histogram) if summary else (),
        holds=tuple(HoldRow(by=hold.by, since=parse_instant(hold.since)) for hold in table.holds),
        scores=TimeSeries(name="score", points=tuple((at, point.score) for at, point in nights)),
        bytes=TimeSeries(name="bytes", points=tuple((at, point.bytes) for at, point in nights), unit="bytes"),
        last_write_at=parse_instant(table.last_write_at),
        last_optimize_at=parse_instant(table.last_optimize_at),
        last_vacuum_at=parse_instant(table.last_vacuum_at),
        commands=_commands(pipeline, table),
        columns=columns,
        partition_by=partition_by,
        rules=_rules(context, pipeline, name),
        unmeasured=unmeasured,
    )


def _declared(context: PageContext, pipeline: str, name: str) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Returns the declared columns with their types, and the partition columns; empty for tables without both."""
    spec = context.catalog.pipelines.get(pipeline)
    table = next((one for one in (spec.tables if spec else ()) if one.name == name), None)
    if table is not None:
        return tuple(table.column_types().items()), table.partition_by
    gold = next((one for one in (spec.gold.tables if spec else ()) if one.name == name), None)
    return (), () if gold is None else (gold.partition_by,)


def _rules(context: PageContext, pipeline: str, name: str) -> tuple[RuleRow, ...]:
    """Returns the declared rules of a table, with the rows that failed those that warn."""
    spec = context.catalog.pipelines.get(pipeline)
    table = next((one for one in (spec.tables if spec else ()) if one.name == name), None)
    if table is None or not table.rules:
        return ()
    summary = None
    if any(rule.on_fail == "warn" for rule in table.rules):
        summary = read_summary(context, RuleWarningsSummary, rule_warnings_summary(pipeline)).summary
    return tuple(_rule_row(rule, name, summary, context.now) for rule in table.rules)


def _rule_row(rule: TableRuleSpec, table: str, summary: RuleWarningsSummary | None, now: datetime) -> RuleRow:
    row = RuleRow(name=rule.name, check=rule.check, on_fail=rule.on_fail, alert_percent=rule.alert_percent)
    counts = summary.of_rule(table, rule.name) if summary is not None and rule.on_fail == "warn" else None
    if counts is None or not counts.days:
        return row
    return replace(
        row,
        last_hour=to_dict(counts.last_hour(now)),
        today=next((to_dict(one) for one in counts.days if one.at == now.date().isoformat()), None),
        shares=tuple(one.share for one in counts.days),
        since=counts.days[0].at,
    )


def _missing_message(pipeline: str, name: str, *, is_missing: bool) -> str:
    if is_missing:
        return (
            f"No snapshot of {pipeline} has been taken yet. Maintenance takes one each night; "
            f"`deltaworks tables snapshot {pipeline}` takes one now."
        )
    return f"{pipeline} has no table {name!r}, or it had not been created when the last snapshot was taken."


def _sizes(bounds: Sequence[int], counts: Sequence[int]) -> tuple[tuple[str, int], ...]:
    """Returns file counts by size range; the last range has no upper bound."""
    names = [f"below {bytes_text(bound)}" for bound in bounds] + [
        f"{bytes_text(bound)} or more" for bound in bounds[-1:]
    ]
    return tuple(zip(names, counts, strict=False))


def _day(text: str) -> datetime:
    at = parse_instant(text)
    return at if at is not None else datetime(1970, 1, 1, tzinfo=UTC)


def _commands(pipeline: str, table: TableSummary) -> tuple[tuple[str, str], ...]:
    """Returns the commands for a table of its kind, dry runs first."""
    name = table.name
    if table.kind == "control":
        return (("merge the engine's small files", f"deltaworks tables compact-control {pipeline}"),)
    commands = [("measure it now", f"deltaworks tables show {pipeline} {name}")]
    if table.kind in ("bronze", "keyed"):
        commands.append(("show what OPTIMIZE would rewrite", f"deltaworks optimize {pipeline} --tables {name}"))
        commands.append(("show what VACUUM would delete", f"deltaworks vacuum {pipeline} --tables {name}"))
    if table.kind in ("bronze", "quarantine"):
        commands.append(("restore it (dry run)", f"deltaworks restore {pipeline} {name} --to-version VERSION"))
    if table.kind == "gold":
        commands.append(("rebuild it in a shadow", f"deltaworks gold refresh {pipeline} {name}"))
    return tuple(commands)


PAGE = Page(name="table", route="/tables/{pipeline}/{table}", title="{pipeline}.{table}", view=view)
