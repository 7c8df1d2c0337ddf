"""Selects the partitions that OPTIMIZE rewrites in each table of a pipeline. Needs no JVM.

Reads the Delta logs and the Z-order ledger.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from deltaworks.control import paths
from deltaworks.maintenance.layout import read_layout, select_tables
from deltaworks.maintenance.partition_choice import OptimizePolicy, TableChoice, choose_partitions
from deltaworks.maintenance.table_health.measure import table_health
from deltaworks.maintenance.zorder_ledger import LedgerState, read_ledger
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.lake import Lake


def read_policy(spec: PipelineSpec) -> OptimizePolicy:
    """Returns the policy of a pipeline's daily round."""
    upkeep = spec.maintenance
    closed_after = dt.timedelta(hours=upkeep.closed_after_hours)
    return OptimizePolicy(target_file_bytes=upkeep.target_file_bytes, closed_after=closed_after)


def select_partitions(
    lake: Lake,
    spec: PipelineSpec,
    *,
    policy: OptimizePolicy,
    now: dt.datetime,
    tables: Sequence[str] | None = None,
    ledger_state: LedgerState | None = None,
) -> list[TableChoice]:
    """Returns the partitions to rewrite in each table that OPTIMIZE maintains, with a reason.

    Args:
        tables: names of tables; by default all.
        ledger_state: the Z-order ledger, if already read.

    Raises:
        ConfigError: TABLE_UNKNOWN.
    """
    ledger = read_ledger(lake, spec.pipeline) if ledger_state is None else ledger_state
    return [
        choose_partitions(
            table_health(lake, paths.table(spec.pipeline, table.name), history_commits=0),
            read_layout(lake, spec.pipeline, table),
            ledger=ledger.table_state(table.name),
            now=now,
            policy=policy,
        )
        for table in select_tables(spec, tables).values()
    ]
