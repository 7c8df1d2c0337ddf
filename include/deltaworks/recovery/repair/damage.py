"""Detects damage in a pipeline's tables, ledger and checkpoint, and names the command that repairs it. Read-only.

Checks that each Delta log has no missing commit, that all its files exist, and that it contains all batches of the
ledger. Lists each log once. Lists data files only of tables with many files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from deltaworks.control.home import PipelineHome
from deltaworks.control.records.checkpoint import damaged_files, describe_ledger_gap
from deltaworks.engine.ledger import committed_batches, lost_versions
from deltaworks.erasure.reapply import ErasureReapplier
from deltaworks.events.reasons import QUARANTINE_TABLE
from deltaworks.recovery.repair.log_gap import filled_without_restore
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.dag_ids import dag_id
from deltaworks.specs.keyed import KeyedTable
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import list_log, state_at
from deltaworks.tables.protected_files import find_missing_files
from deltaworks.tables.steps import read_last_completed

_NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Damage of one table, ledger or checkpoint, with the command that repairs it. The command is a dry run by
    default."""

    pipeline: str
    subject: str
    kind: str
    description: str
    repair: str


def check_pipeline(catalog: Catalog, pipeline: str, *, table: str = "") -> list[Damage]:
    """Returns the damage of a pipeline, or of one of its tables."""
    spec = catalog.pipeline(pipeline)
    lake, home = Lake(catalog.environment.lake), PipelineHome.open(catalog.environment.lake, pipeline)
    bronze = [*(declared.name for declared in spec.tables), QUARANTINE_TABLE]
    followed = [*(live.name for live in spec.aggregation_tables), *(gold.name for gold in spec.gold.tables)]
    rebuilds = dict.fromkeys(followed, f"run {dag_id(pipeline, 'gold')} with `full`")
    rebuilds |= {
        keyed.name: _rebuild_instruction(pipeline, keyed) for keyed in (*spec.keyed_tables, *spec.latest_tables)
    }
    damages: list[Damage] = []
    for name in (*bronze, *rebuilds):
        if table in ("", name):
            damages += _check_table(lake, home, name, rebuild=rebuilds.get(name, ""))
    # An unreadable log has to be repaired before rows can be checked.
    if not damages and spec.privacy is not None:
        gold = {declared.name: rebuilds[declared.name] for declared in spec.gold.tables}
        damages += _check_erased_rows(catalog, pipeline, table=table, gold=gold)
    if not table:
        damages += _check_control_records(lake, home)
    return damages


def _check_erased_rows(catalog: Catalog, pipeline: str, *, table: str, gold: Mapping[str, str]) -> Iterator[Damage]:
    reapplier = ErasureReapplier(catalog, pipeline)
    for back in reapplier.find_reappeared_rows(
        [name for name in (*reapplier.erasable_tables, *gold) if table in ("", name)]
    ):
        yield Damage(
            pipeline=pipeline,
            subject=back.table,
            kind="erased_rows_back",
            description=f"{back.rows:,} rows of erased people, of {_abbreviate(back.dates)}",
            repair=gold.get(back.table, f"deltaworks privacy reapply {pipeline}"),
        )


def _rebuild_instruction(pipeline: str, keyed: KeyedTable) -> str:
    return f"move its folder away and restart the stream of {pipeline}, which rebuilds it from {keyed.history!r}"


def _check_table(lake: Lake, home: PipelineHome, name: str, *, rebuild: str) -> Iterator[Damage]:
    objects, pipeline, key = home.objects, home.pipeline, home.table(name)
    log = list_log(objects, key)
    batches = committed_batches(lake, home, name)

    def damage(kind: str, description: str, command: str) -> Damage:
        repair = rebuild or f"deltaworks recover {command} {pipeline} {name}"
        return Damage(pipeline=pipeline, subject=name, kind=kind, description=description, repair=repair)

    if log.newest is None:
        if batches:
            yield damage("dropped", f"the ledger has {batches.rows} rows of it, and it has no log", "table")
        return
    missing = log.missing_commits(log.newest)
    if missing:
        yield damage("log_gap", f"its log lacks the commit of version {_abbreviate(missing)}", "log")
        return
    state = state_at(lake, objects, key)
    if behind := lost_versions(batches, state, pipeline, name):
        yield damage(
            "log_cut", f"its log ends at {log.newest}, and the ledger has version {_abbreviate(behind)}", "log"
        )
    elif (filled := filled_without_restore(lake, objects, key)) is not None:
        yield damage(
            "log_gap", f"version {filled} was filled, and the table is not restored to the version before it yet", "log"
        )
    missing_files = find_missing_files(lake, key, state.files)
    if missing_files:
        description = f"{len(missing_files)} files its log names are missing: {_abbreviate(missing_files)}"
        yield damage("files_absent", description, "files")


def _check_control_records(lake: Lake, home: PipelineHome) -> Iterator[Damage]:
    pipeline, generations = home.pipeline, home.generations.read()
    generation = home.generations.current()
    last = read_last_completed(lake, pipeline, generation)
    repair = f"deltaworks checkpoint repair {pipeline}"
    if evidence := describe_ledger_gap(home, generations, generation=generation, last_completed=last):
        yield Damage(pipeline=pipeline, subject="the ledger", kind="ledger", description=evidence, repair=repair)
    in_use = generations if generations and not generations.current.retired else None
    for file in damaged_files(home, in_use) if in_use else ():
        description = f"{file.key}: {file.problem}"
        yield Damage(
            pipeline=pipeline, subject="Spark's checkpoint", kind="checkpoint", description=description, repair=repair
        )
    unfinished = home.rollbacks.unfinished()
    if unfinished is not None:
        repair = f"deltaworks restore {pipeline} {unfinished.table} --no-dry-run"
        description = f"its rollback to version {unfinished.to_version} was interrupted"
        yield Damage(
            pipeline=pipeline, subject=unfinished.table, kind="rollback", description=description, repair=repair
        )


def _abbreviate(values: Sequence[object]) -> str:
    rest = len(values) - _NAMES_SHOWN
    return ", ".join(map(str, values[:_NAMES_SHOWN])) + (f" and {rest} more" if rest > 0 else "")
