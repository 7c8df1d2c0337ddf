"""Reports the health and score of every table, and what OPTIMIZE would do.

Reads logs and Z-order ledgers only, without a JVM. Errors are reported per table.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from deltaworks.maintenance.layout import optimized_tables, read_layout
from deltaworks.maintenance.partition_choice import ROW_GROUP_BYTES, TableChoice, choose_partitions
from deltaworks.maintenance.select_partitions import read_policy
from deltaworks.maintenance.table_health.catalog_tables import (
    COMMITS_PER_TABLE,
    DeclaredTable,
    declared_tables,
    describe_error,
    map_tables,
)
from deltaworks.maintenance.table_health.measure import TableHealth, table_health
from deltaworks.maintenance.table_health.score import Score, score
from deltaworks.maintenance.zorder_ledger import LedgerState, ZOrderState, read_ledger
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.table import TableSpec
from deltaworks.tables.lake import Lake
from deltaworks.tables.unreferenced import UnreferencedFiles, count_unreferenced

#: Kinds of tables that OPTIMIZE maintains.
_OPTIMIZED_KINDS = ("bronze", "keyed", "live", "gold", "quarantine", "archive")
#: Commits read when reporting a single table.
COMMITS_FOR_ONE_TABLE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReport:
    """The report of a table. `health` and `score` are None if the table does not exist or has an `error`.

    - `choice`: what OPTIMIZE would do.
    - `unordered_share`: the unordered share of bytes, for a table with Z-order columns.
    - `unreferenced`: None if it was not requested, or the table is too large to list.
    """

    owner: str
    name: str
    kind: str
    key: str
    health: TableHealth | None = None
    score: Score | None = None
    choice: TableChoice | None = None
    unordered_share: float | None = None
    unreferenced: UnreferencedFiles | None = None
    error: str = ""


def report_tables(
    catalog: Catalog,
    *,
    pipeline: str = "",
    control: bool = False,
    list_folders: bool = False,
    now: dt.datetime,
) -> list[TableReport]:
    """Reports every declared table, in parallel. Read-only.

    Args:
        pipeline: only this pipeline's tables.
        control: include control tables.
        list_folders: also count unreferenced files, which requires listing every table's folder.
    """
    tables = declared_tables(catalog, pipeline=pipeline, control=control)
    return _reports(catalog, tables, list_folders=list_folders, history_commits=COMMITS_PER_TABLE, now=now)


def report_table(
    catalog: Catalog, pipeline: str, table: str, *, list_folder: bool = False, now: dt.datetime
) -> TableReport | None:
    """Reports one table with more history than `report_tables`; None if it is not declared."""
    tables = [declared for declared in declared_tables(catalog, pipeline=pipeline) if declared.name == table]
    reports = _reports(catalog, tables[:1], list_folders=list_folder, history_commits=COMMITS_FOR_ONE_TABLE, now=now)
    return reports[0] if reports else None


def _reports(
    catalog: Catalog, tables: Sequence[DeclaredTable], *, list_folders: bool, history_commits: int, now: dt.datetime
) -> list[TableReport]:
    storage = catalog.environment.lake
    owners = sorted({table.owner for table in tables if table.kind in _OPTIMIZED_KINDS})
    ledgers = dict(map_tables(storage, owners, _read_ledger))
    reader = _ReportReader(catalog, ledgers, list_folders=list_folders, history_commits=history_commits, now=now)
    return list(map_tables(storage, tables, reader.report))


def _read_ledger(lake: Lake, pipeline: str) -> tuple[str, LedgerState | Exception]:
    try:
        return pipeline, read_ledger(lake, pipeline)
    except Exception as problem:  # reported with each table of the pipeline
        return pipeline, problem


class _ReportReader:
    """Reads reports of single tables. Thread-safe."""

    def __init__(
        self,
        catalog: Catalog,
        ledgers: Mapping[str, LedgerState | Exception],
        *,
        list_folders: bool,
        history_commits: int,
        now: dt.datetime,
    ) -> None:
        self._catalog = catalog
        self._ledgers = ledgers
        self._optimized = {owner: optimized_tables(catalog.pipeline(owner)) for owner in ledgers}
        self._list_folders = list_folders
        self._history_commits = history_commits
        self._now = now

    def report(self, lake: Lake, table: DeclaredTable) -> TableReport:
        """Reports one table. Never raises."""
        report = TableReport(owner=table.owner, name=table.name, kind=table.kind, key=table.key)
        try:
            health = table_health(lake, table.key, history_commits=self._history_commits)
            if health is None:
                return report
            report = _with_score(self._with_choice(lake, replace(report, health=health), health), health)
            if self._list_folders:
                report = _with_score(replace(report, unreferenced=count_unreferenced(lake, table.key)), health)
            return report
        except Exception as problem:  # any error of a damaged log is reported for the table
            return replace(report, error=describe_error(problem))

    def _with_choice(self, lake: Lake, report: TableReport, health: TableHealth) -> TableReport:
        ledger_state = self._ledgers.get(report.owner) if report.kind in _OPTIMIZED_KINDS else None
        if ledger_state is None:
            return report
        if isinstance(ledger_state, Exception):
            return replace(
                report, error=f"the Z-order ledger of {report.owner} cannot be read: {describe_error(ledger_state)}"
            )
        table, ledger = self._optimized[report.owner][report.name], ledger_state.table_state(report.name)
        policy = read_policy(self._catalog.pipeline(report.owner))
        layout = read_layout(lake, report.owner, table)
        choice = choose_partitions(health, layout, ledger=ledger, now=self._now, policy=policy)
        share = None if table.declared is None else unordered_share(health, table.declared, ledger)
        return replace(report, choice=choice, unordered_share=share)


def _with_score(report: TableReport, health: TableHealth) -> TableReport:
    unneeded = report.unreferenced.bytes if report.unreferenced is not None else None
    return replace(report, score=score(health, unordered_share=report.unordered_share, unreferenced_bytes=unneeded))


def unordered_share(health: TableHealth, declared: TableSpec, ledger: ZOrderState) -> float | None:
    """Returns the approximate share of bytes that are not in Z-order; None if no order is declared.

    Partitions with one file or a single row group count as ordered.
    """
    if not declared.zorder_by:
        return None
    unordered = 0.0
    for part in health.partition_health:
        entry = ledger.ordered.get(part.partition)
        if part.files > 1 and part.bytes > ROW_GROUP_BYTES:
            in_this_order = entry is not None and entry.columns == declared.zorder_by
            unordered += part.bytes * (entry.unordered_share(part) if in_this_order and entry is not None else 1.0)
    return unordered / health.bytes if health.bytes else 0.0
