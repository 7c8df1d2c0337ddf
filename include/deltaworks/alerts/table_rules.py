"""Alerts of table rules with `on_fail: warn`: more rows of the last hour fail a rule than it declares."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from deltaworks.alerts.raising import open_subjects, raise_alert, resolve_alert
from deltaworks.control.background import map_concurrently
from deltaworks.control.objects import ObjectStore
from deltaworks.control.paths import rule_warnings_summary
from deltaworks.control.summaries.base import read_summary
from deltaworks.control.summaries.rule_warnings import RowCount, RuleWarningsSummary
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import TableRuleSpec, TableSpec

CAUSE = "ROWS_FAIL_RULE"


def alert_on_table_rules(objects: ObjectStore, catalog: Catalog, *, now: datetime) -> list[str]:
    """Raises and resolves ROWS_FAIL_RULE of all rules with `alert_percent`; returns the subjects that fail.

    An alert resolves once landed rows keep the rule, or the rule no longer declares a share; without rows it stays.
    """
    before = open_subjects(objects, CAUSE)
    declared = [spec for spec in catalog.pipelines.values() if any(_rules_of(spec))]
    if not before and not declared:
        return []
    failing, unknown = set[str](), {f"{name}." for name in catalog.invalid_pipelines()}

    def check_pipeline(spec: PipelineSpec) -> set[str]:
        """Returns the rules for which nothing changes: those that fail, and those without enough rows."""
        summary, _ = read_summary(RuleWarningsSummary, objects, rule_warnings_summary(spec.pipeline))
        undecided = set()
        for table, rule in _rules_of(spec):
            subject = f"{spec.pipeline}.{table.name}.{rule.name}"
            counts = summary.of_rule(table.name, rule.name).last_hour(now) if summary is not None else None
            if counts is None or not counts.rows:
                undecided.add(subject)
            elif 100 * counts.share > (rule.alert_percent or 0):
                if counts.rows >= rule.alert_rows_min:
                    _raise(objects, spec.pipeline, subject, rule, counts, now=now)
                    failing.add(subject)
                undecided.add(subject)
        return undecided

    unchanged = set().union(*map_concurrently(check_pipeline, declared))
    for subject in sorted(before - unchanged):
        if not subject.startswith(tuple(unknown)):
            summary = "No more rows fail the rule than it declares, or it declares no share."
            resolve_alert(objects, cause=CAUSE, subject=subject, summary=summary, now=now)
    return sorted(failing)


def _rules_of(spec: PipelineSpec) -> Iterator[tuple[TableSpec, TableRuleSpec]]:
    return ((table, rule) for table in spec.tables for rule in table.rules if rule.alert_percent is not None)


def _raise(
    objects: ObjectStore, pipeline: str, subject: str, rule: TableRuleSpec, counts: RowCount, *, now: datetime
) -> None:
    table = subject.rpartition(".")[0]
    raise_alert(
        objects,
        cause=CAUSE,
        subject=subject,
        summary=f"{100 * counts.share:.1f} % of {counts.rows:,} rows of the last hour fail the rule {rule.name} of "
        f"{table} ({rule.check}); {rule.alert_percent:g} % may.",
        detail={
            "pipeline": pipeline,
            "rows": counts.rows,
            "failed": counts.failed,
            "alert_percent": rule.alert_percent,
            "since": counts.at,
            "next_step": f"See them: SELECT * FROM {table} WHERE NOT ({rule.check}) LIMIT 20. Fix the producer, "
            "the path or the rule.",
        },
        now=now,
    )
