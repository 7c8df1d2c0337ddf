"""Reports the health and score of every table, and what OPTIMIZE would do.

Reads logs and Z-order ledgers only, without a JVM. Errors are reported per table.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from deltaworks.maintenance.layout import optimized_tables, read_layout
from deltaworks.maintenance.optimize_night import read_policy
from deltaworks.maintenance.partition_choice import ORDERED_ROW_GROUP_BYTES, TableChoice, choose_partitions
from deltaworks.maintenance.table_health.catalog_tables import (
    COMMITS_PER_TABLE,
    DeclaredTable,
    declared_tables,
    describe_error,
    map_tables,
)
from deltaworks.maintenance.table_health.measure import TableHealth, table_health
from deltaworks.maintenance.zorder_ledger import LedgerState, ZOrderState, read_ledger
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.table import TableSpec
from deltaworks.tables.lake import Lake
from deltaworks.tables.vacuum_candidates import UnreferencedFiles, count_unreferenced

#: The maximum cost of each part.
WEIGHTS = {
    "small_files": 30,
    "order": 20,
    "deletion_vectors": 15,
    "log": 15,
    "partitions": 10,
    "unreferenced": 10,
}
#: Number of small files that costs the full weight; fewer files cost proportionally less.
MANY_SMALL_FILES = 50
#: Share of rows marked as deleted that costs the full weight.
WORST_DELETED_SHARE = 0.2
#: Commits since the last checkpoint, which readers replay; checkpoints are written every 50 to 100 commits.
FEW_COMMITS, WORST_COMMITS = 100, 500
#: Average partition size below which many partitions reduce the score.
SMALL_PARTITION_BYTES = 1 << 20
FEW_PARTITIONS, MANY_PARTITIONS = 100, 1_000
#: Skew costs up to a third of the weight, for tables above this size.
WORST_SKEW, SKEW_FROM_BYTES = 50.0, 1 << 30
#: Share of unreferenced bytes that costs the full weight.
WORST_UNREFERENCED_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePart:
    """The points deducted for one part, with the reason."""

    name: str
    weight: int
    cost: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score: 100 minus the costs of `parts`, rounded."""

    value: int
    parts: tuple[ScorePart, ...]

    @property
    def costly(self) -> tuple[ScorePart, ...]:
        """The parts with costs, highest first."""
        return tuple(sorted((part for part in self.parts if part.cost > 0), key=lambda part: -part.cost))


def score(health: TableHealth, *, unordered_share: float | None = None, unreferenced_bytes: int | None = None) -> Score:
    """Scores the health of a table. Pure.

    Args:
        unordered_share: share of bytes not in Z-order; None if no order is declared or the share is unknown.
        unreferenced_bytes: bytes that no retained version needs; None if not measured.
    """
    costs = {
        "small_files": _small_file_cost(health),
        "order": _order_cost(unordered_share),
        "deletion_vectors": _deletion_vector_cost(health),
        "log": _log_cost(health),
        "partitions": _partition_cost(health),
        "unreferenced": _unreferenced_cost(health, unreferenced_bytes),
    }
    parts = tuple(
        ScorePart(
            name=name, weight=weight, cost=round(weight * min(1.0, max(0.0, costs[name][0])), 1), reason=costs[name][1]
        )
        for name, weight in WEIGHTS.items()
    )
    return Score(value=round(100 - sum(part.cost for part in parts)), parts=parts)


def _small_file_cost(health: TableHealth) -> tuple[float, str]:
    bad = health.small_file_share * min(1.0, health.small_files / MANY_SMALL_FILES)
    return bad, f"{health.small_files:,} of {health.files:,} files could be merged"


def _order_cost(unordered_share: float | None) -> tuple[float, str]:
    if unordered_share is None:
        return 0.0, "no order declared, or unknown"
    return unordered_share, f"{unordered_share:.0%} of the bytes are not in Z-order"


def _deletion_vector_cost(health: TableHealth) -> tuple[float, str]:
    share = health.deletion_vector_share
    if share is None:
        return 0.0, "the number of deleted rows is unknown"
    return share / WORST_DELETED_SHARE, f"{share:.1%} of the rows are marked as deleted but still read"


def _log_cost(health: TableHealth) -> tuple[float, str]:
    commits = health.commits_since_checkpoint
    return (commits - FEW_COMMITS) / (WORST_COMMITS - FEW_COMMITS), f"{commits:,} commits since the last checkpoint"


def _partition_cost(health: TableHealth) -> tuple[float, str]:
    average = health.bytes / health.partitions if health.partitions else 0.0
    crowd = min(1.0, max(0.0, (health.partitions - FEW_PARTITIONS) / (MANY_PARTITIONS - FEW_PARTITIONS)))
    tiny = max(0.0, 1.0 - average / SMALL_PARTITION_BYTES) * crowd
    skewed = min(1.0, health.skew / WORST_SKEW) if health.largest_partition_bytes >= SKEW_FROM_BYTES else 0.0
    average_text = (
        f"{health.partitions:,} partition{'' if health.partitions == 1 else 's'} of {average / (1 << 20):,.1f} MiB"
    )
    reason = f"{average_text} on average, the largest {health.skew:,.1f} x the median"
    return tiny + skewed / 3, reason


def _unreferenced_cost(health: TableHealth, unreferenced_bytes: int | None) -> tuple[float, str]:
    if unreferenced_bytes is None:
        return 0.0, "not measured"
    stored = health.bytes + unreferenced_bytes
    share = unreferenced_bytes / stored if stored else 0.0
    return share / WORST_UNREFERENCED_SHARE, f"{share:.0%} of the bytes on storage are needed by no version"


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
        share = None
        if table.declared is not None:
            share = unordered_share(health, table.declared, ledger, zorder_from_bytes=policy.zorder_from_bytes)
        return replace(report, choice=choice, unordered_share=share)


def _with_score(report: TableReport, health: TableHealth) -> TableReport:
    unneeded = report.unreferenced.bytes if report.unreferenced is not None else None
    return replace(report, score=score(health, unordered_share=report.unordered_share, unreferenced_bytes=unneeded))


def unordered_share(
    health: TableHealth, declared: TableSpec, ledger: ZOrderState, *, zorder_from_bytes: int
) -> float | None:
    """Returns the approximate share of bytes that are not in Z-order; None if no order is declared.

    Partitions below `zorder_from_bytes`, or of one file that Z-order would not rewrite, count as ordered.
    """
    if not declared.zorder_by:
        return None
    unordered = 0.0
    for part in health.partition_health:
        entry = ledger.ordered.get(part.partition)
        is_ordered_later = part.files > 1 or part.bytes > ORDERED_ROW_GROUP_BYTES
        if is_ordered_later and part.bytes >= zorder_from_bytes:
            in_this_order = entry is not None and entry.columns == declared.zorder_by
            unordered += part.bytes * (entry.unordered_share(part) if in_this_order and entry is not None else 1.0)
    return unordered / health.bytes if health.bytes else 0.0
