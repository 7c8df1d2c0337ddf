"""Surveys the tables of a pipeline by their logs, and chooses what OPTIMIZE should do with each. Needs no JVM."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from deltaworks.control import paths
from deltaworks.maintenance.choice import Choice, OptimizePolicy, choose
from deltaworks.maintenance.layout import layout_of, selected_tables
from deltaworks.maintenance.table_health.measure import table_health
from deltaworks.maintenance.zorder_ledger import PipelineOrder, read_order
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.lake import Lake


def policy_of(spec: PipelineSpec) -> OptimizePolicy:
    """The policy of a pipeline's daily round."""
    upkeep = spec.maintenance
    closed_after = dt.timedelta(hours=upkeep.closed_after_hours)
    return OptimizePolicy(target_file_bytes=upkeep.target_file_bytes, closed_after=closed_after)


def survey(
    lake: Lake,
    spec: PipelineSpec,
    *,
    policy: OptimizePolicy,
    now: dt.datetime,
    tables: Sequence[str] | None = None,
    order: PipelineOrder | None = None,
) -> list[Choice]:
    """What OPTIMIZE should do now with each table it maintains in a pipeline, with a reason for every one.

    Args:
        tables: names of tables; by default all.
        order: the contents of the Z-order ledger, where it has been read already.

    Raises:
        ConfigError: TABLE_UNKNOWN.
    """
    ledger = read_order(lake, spec.pipeline) if order is None else order
    return [
        choose(
            table_health(lake, paths.table(spec.pipeline, table.name), history_commits=0),
            layout_of(lake, spec.pipeline, table),
            ledger=ledger.of(table.name),
            now=now,
            policy=policy,
        )
        for table in selected_tables(spec, tables).values()
    ]
