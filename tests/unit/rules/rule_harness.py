"""A pipeline with a minute table and rules, in a local lake written by delta-rs, with its own clock."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from deltaworks.alerts.notification import Notification
from deltaworks.alerts.raising import alerts
from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.rules.inputs import RuleTables
from deltaworks.rules.process import PipelineEvaluator
from deltaworks.rules.stored_state import RuleState, read_rule_state
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from tests.unit.maintenance.table_data import ORDERS, SHOP, project

START = dt.datetime(2026, 3, 2, 10, 0, tzinfo=dt.UTC)
GOLD = """\
gold:
  tables: [{name: errors_minute, sql: gold/errors_minute.sql, reads: [orders], partition_by: event_date}]
"""
GOLD_SQL = """\
SELECT event_date, date_trunc('MINUTE', event_time) AS minute, event_name AS cdn, 0.0 AS rate, count(*) AS requests
FROM orders GROUP BY event_date, minute, cdn
"""
RATE_SQL = """\
SELECT minute, cdn, rate AS value, requests AS samples
FROM errors_minute
WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
"""
RATE = (
    "{name: rate, reads: [errors_minute], sql: rules/rate.sql, labels: [cdn], fire: {above: 0.1}, clear: {above: 0.09}}"
)
SCHEMA = pa.schema(
    {
        "event_date": pa.date32(),
        "minute": pa.timestamp("us", tz="UTC"),
        "cdn": pa.string(),
        "rate": pa.float64(),
        "requests": pa.int64(),
    }
)


def rules_project(folder: Path, *rules: str, more: str = "", tables: str = ORDERS, **sql: str) -> Catalog:
    """Returns a project whose pipeline `shop` declares these rules; `sql` are their files, in addition to `rate`."""
    files = {"gold/errors_minute.sql": GOLD_SQL, "rules/rate.sql": RATE_SQL}
    files |= {f"rules/{name}.sql": text for name, text in sql.items()}
    listed = "".join(f"  - {rule}\n" for rule in rules or (RATE,))
    return project(folder, sql=files, shop=SHOP + tables + GOLD + more + f"rules:\n{listed}")


def minute_row(minute: int, rate: float, cdn: str | None = "a", requests: int = 1000) -> dict[str, Any]:
    """Returns a row of `errors_minute` some minutes after START."""
    at = START + dt.timedelta(minutes=minute)
    return {"event_date": at.date(), "minute": at, "cdn": cdn, "rate": rate, "requests": requests}


@dataclass
class RuleHarness:
    """The rules of a project, evaluated on request by a controllable clock."""

    catalog: Catalog
    pipeline: str = "shop"
    objects: ObjectStore = field(init=False)

    def __post_init__(self) -> None:
        self.objects = open_objects(self.catalog.environment.lake)
        self.evaluator = self.new_evaluator()

    def new_evaluator(self) -> PipelineEvaluator:
        """Returns an evaluator that starts from stored state."""
        lake = Lake(self.catalog.environment.lake)
        return PipelineEvaluator(self.catalog, self.pipeline, self.objects, RuleTables(lake))

    def append_rows(self, rows: Iterable[Mapping[str, Any]], table: str = "errors_minute") -> None:
        """Appends rows to a table."""
        uri = self.catalog.environment.lake.uri(paths.table(self.pipeline, table))
        data = pa.Table.from_pylist([dict(row) for row in rows], schema=SCHEMA if table == "errors_minute" else None)
        write_deltalake(uri, data, mode="append")

    def append_rates(self, rates: Sequence[float | None], *, first: int = 0, cdn: str | None = "a") -> None:
        """Appends a rate per minute from `first`; None omits a minute."""
        self.append_rows(minute_row(first + at, rate, cdn) for at, rate in enumerate(rates) if rate is not None)

    def evaluate_at(self, minute: float, evaluator: PipelineEvaluator | None = None) -> int:
        """Evaluates as of some minutes after START; returns the number of rules that advanced."""
        evaluator = evaluator or self.evaluator
        evaluator._tables.mark_stale()
        return evaluator.evaluate(START + dt.timedelta(minutes=minute))

    def state(self, rule: str = "rate") -> RuleState:
        """Returns the stored state of a rule."""
        state = read_rule_state(self.objects, self.pipeline, rule)
        assert state is not None
        return state

    def phases(self, rule: str = "rate") -> dict[str, str]:
        """Returns the phase of each label set."""
        return {",".join(text or "-" for text in item.labels): item.phase for item in self.state(rule).series}

    def notifications(self, cause: str = "RULE_FIRING") -> list[Notification]:
        """Returns all notifications of a cause, in order."""
        keys = self.objects.list(paths.alerts("spool/")) or self.objects.list(paths.alerts(""))
        decoded = []
        for key in keys:
            item = self.objects.get(key)
            if item is not None and "/state/" not in key:
                try:
                    notification = Notification.decode(item.data)
                except (ValueError, TypeError):
                    continue
                if notification.cause == cause:
                    decoded.append(notification)
        return sorted(decoded, key=lambda notification: notification.id)

    def sent(self, cause: str = "RULE_FIRING") -> list[tuple[str, str]]:
        """Returns kind and subject of all notifications of a cause."""
        return [(notification.kind, notification.subject) for notification in self.notifications(cause)]

    def open_subjects(self, cause: str = "RULE_FIRING") -> list[str]:
        """Returns the subjects with an open alert of a cause."""
        return sorted(alert.subject for alert in alerts(self.objects) if alert.cause == cause and alert.state.is_open)
