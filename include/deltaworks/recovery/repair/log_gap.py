"""Repairs a Delta log with missing commits, in the middle or at the end, without changing later versions.

If the ledger records the missing commit as a batch, the commit is recreated from the prepared batch with the same
actions. Any other missing commit is replaced by an empty one, which makes the log readable. A new commit then restores
the table to the version before the gap and adds the files of all later batches again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.write_turn import write_turn
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.provenance import current_run, user_metadata
from deltaworks.control.records.checkpoint import damaged_files, describe_ledger_gap
from deltaworks.control.records.prepared import PreparedBatch, PreparedTable
from deltaworks.engine.ledger import CommittedBatches, committed_batches, lost_versions, owner_step
from deltaworks.engine.writers import commit_metadata
from deltaworks.errors import ContractError
from deltaworks.events.reasons import QUARANTINE_TABLE
from deltaworks.privacy.erasure.reapply import ErasureReapplier, reapply_step
from deltaworks.recovery.quarantine.replay_commit import exclusive_reread
from deltaworks.recovery.restore.dependents import reject_mutable
from deltaworks.recovery.restore.lost_commits import add_actions, prepared_table
from deltaworks.recovery.restore.plan import TableRestoreRequest
from deltaworks.recovery.restore.restore_points import RestorePoint
from deltaworks.recovery.restore.table_restore import TableRestore, TableRestoreResult
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.dag_ids import dag_id
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import Action, LogFiles, check_log, commit_history, list_log, state_at
from deltaworks.tables.log_writer import commit_info, txn_action, write_commit
from deltaworks.tables.protected_files import Depth, find_damaged_files
from deltaworks.tables.steps import batch_step, read_last_completed

FILL_LOG = "fill_log"
_COMMITS_SEARCHED = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRepair:
    """The repair of one log (in a dry run: the planned repair).

    - `recreated`: batches by the versions that were recreated from them.
    - `filled`: versions that received an empty commit.
    - `restore`: the restore to the version before the filled ones; None if none was needed, or in a dry run.
    """

    pipeline: str
    table: str
    dry_run: bool
    recreated: dict[int, int]
    filled: tuple[int, ...]
    restore: TableRestoreResult | None


def repair_log(
    catalog: Catalog,
    pipeline: str,
    table: str,
    *,
    dry_run: bool = True,
    max_rows: int | None = None,
    fault: Callable[[str], None] = lambda point: None,
) -> LogRepair:
    """Writes the missing commits of a table's log. Idempotent; the stream does not commit to the table meanwhile.

    Args:
        max_rows: reject a restore that removes files with more rows in total.
        fault: test hook, called at `readable`.

    Raises:
        ContractError: TABLE_LOG_LOST, the first commit is missing; TABLE_FEATURE_UNSUPPORTED; RESTORE_MUTABLE; and
            those of a restore.
        ConfigError: RESTORE_UNBOUNDED, RESTORE_TOO_LARGE.
        ConcurrencyError: LEASE_HELD, TURN_NOT_GRANTED.
    """
    reject_mutable(catalog.pipeline(pipeline), table)
    mend = _LogRepairRun(catalog, pipeline, table)
    if dry_run:
        return mend.plan_log(dry_run=True)
    with mend.exclusive():
        done = mend.make_readable()
    fault("readable")
    return mend.restore_before_filled(done, max_rows)


def filled_without_restore(lake: Lake, objects: ObjectStore, key: str) -> int | None:
    """Returns the oldest filled version that no restore has undone yet, or None."""
    newest = list_log(objects, key).newest
    restored_to: list[int] = []
    pending = None
    for commit in commit_history(lake, key, newest=newest or 0, limit=_COMMITS_SEARCHED):
        operation = commit.metadata.get("operation")
        if operation == "restore":
            restored_to.append(int(commit.metadata.get("to_version", 0)))
        elif operation == FILL_LOG and not any(version < commit.version for version in restored_to):
            pending = commit.version
    return pending


class _LogRepairRun:
    def __init__(self, catalog: Catalog, pipeline: str, table: str) -> None:
        self._catalog = catalog
        self._pipeline = pipeline
        self._table = table
        self._key = paths.table(pipeline, table)
        self._lake = Lake(catalog.environment.lake)
        self._objects = open_objects(catalog.environment.lake)
        self._home = PipelineHome(self._objects, pipeline)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Excludes all operations that read landed rows again, and other writers of the table."""
        with (
            exclusive_reread(self._home, rolling_back=True),
            write_turn(self._objects, self._pipeline, self._table, by=current_run()) as turn,
        ):
            turn.check()
            yield

    def plan_log(self, *, dry_run: bool) -> LogRepair:
        """Lists the missing versions, and which of them can be recreated from a batch."""
        log = list_log(self._objects, self._key)
        check_log(self._lake, self._key, log)
        if log.newest is None or (0 not in log.commits and log.checkpoint_up_to(log.newest) is None):
            raise ContractError(
                "TABLE_LOG_LOST",
                f"The log of {self._pipeline}.{self._table} has lost its first commit.",
                hint="Restore `_delta_log` from the storage's versions; or move the table's folder away, without "
                f"deleting it, then `deltaworks recover table {self._pipeline} {self._table}`.",
            )
        missing = log.missing_commits(log.newest)
        before = state_at(self._lake, self._objects, self._key, missing[0] - 1 if missing else None)
        batches = committed_batches(self._lake, self._home, self._table)
        cut_off = [] if missing else lost_versions(batches, before, self._pipeline, self._table)
        recreated, filled = {}, []
        landed = dict(before.transactions)
        for version in (*missing, *cut_off):
            batch = self._recreatable_batch(batches, version, landed)
            if batch is not None:
                recreated[version] = batch[0].batch_id
            elif version < log.newest:
                filled.append(version)
        return LogRepair(
            pipeline=self._pipeline,
            table=self._table,
            dry_run=dry_run,
            recreated=recreated,
            filled=tuple(filled),
            restore=None,
        )

    def make_readable(self) -> LogRepair:
        """Writes the missing commits, oldest first."""
        plan = self.plan_log(dry_run=False)
        batches = committed_batches(self._lake, self._home, self._table)
        for version in sorted((*plan.recreated, *plan.filled)):
            batch = self._recreatable_batch(batches, version, {}) if version in plan.recreated else None
            actions = self._empty_commit(version) if batch is None else _batch_commit(*batch)
            write_commit(self._objects, self._key, version, actions)
        if plan.recreated or plan.filled:
            # The lost commits may include an erasure.
            newest = max((*plan.recreated, *plan.filled))
            step = reapply_step(Step(f"{self._pipeline}/mended/{self._table}", newest))
            ErasureReapplier(self._catalog, self._pipeline).reapply(self._table, step=step, check=lambda: None)
        return plan

    def restore_before_filled(self, done: LogRepair, max_rows: int | None) -> LogRepair:
        """Restores the table to the version before the oldest filled one, including versions that an interrupted call
        filled.
        """
        pending = filled_without_restore(self._lake, self._objects, self._key)
        if pending is None:
            return done
        reason = f"the commit of version {pending} is lost"
        request = TableRestoreRequest(point=RestorePoint(version=pending - 1), max_rows=max_rows, reason=reason)
        restored = TableRestore(self._catalog, self._pipeline, self._table).run(request)
        return replace(done, restore=restored)

    def _recreatable_batch(
        self, batches: CommittedBatches, version: int, landed: dict[str, int]
    ) -> tuple[PreparedBatch, PreparedTable] | None:
        """Returns the batch that committed this version, or None if its prepared batch no longer exists.

        Args:
            landed: transactions before this version; the batch is added to it. A batch that is already included did not
                commit this version: the ledger may list batches of an earlier table with the same name.
        """
        if version not in batches.by_version:
            return None
        generation, number = batches.by_version[version]
        step = batch_step(self._pipeline, generation, self._table, number)
        if landed.get(step.app_id, -1) >= number:
            return None
        batch = self._home.prepared.read(generation, number)
        share = prepared_table(batch.tables, self._table) if batch else None
        if batch is None or share is None or share.writer != "fan_out":
            return None
        landed[step.app_id] = number
        return batch, share

    def _empty_commit(self, version: int) -> list[Action]:
        metadata = user_metadata(pipeline=self._pipeline, batch="none", operation=FILL_LOG)
        now = int(time.time() * 1000)
        return [commit_info("RECOVER", user_metadata=metadata, at_ms=now, read_version=version - 1)]


def _batch_commit(batch: PreparedBatch, share: PreparedTable) -> list[Action]:
    """Builds the batch's original commit: its step, owner and files."""
    now = int(time.time() * 1000)
    step = batch_step(batch.pipeline, batch.generation, share.table, batch.batch_id)
    info = commit_info("WRITE", user_metadata=commit_metadata(batch, step, "append"), at_ms=now, read_version=None)
    adds = [{"add": added} for added in add_actions(share.files).values()]
    owner = owner_step(batch.pipeline, batch.owner_epoch)
    return [info, txn_action(step, now), txn_action(owner, now), *adds]


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


def check_pipeline(catalog: Catalog, pipeline: str, *, table: str = "", depth: Depth = "size") -> list[Damage]:
    """Returns the damage of a pipeline, or of one of its tables.

    Args:
        depth: how thoroughly data files are checked, see `find_damaged_files`.
    """
    spec = catalog.pipeline(pipeline)
    lake, home = Lake(catalog.environment.lake), PipelineHome.open(catalog.environment.lake, pipeline)
    bronze = [*(declared.name for declared in spec.tables), QUARANTINE_TABLE]
    rebuilds = _rebuild_instructions(spec)
    damages: list[Damage] = []
    for name in (*bronze, *rebuilds):
        if table in ("", name):
            damages += _check_table(lake, home, name, rebuild=rebuilds.get(name, ""), depth=depth)
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


def _rebuild_instructions(spec: PipelineSpec) -> dict[str, str]:
    """Returns how each table that is computed from others, or from a file, is written again."""
    pipeline, gold_dag = spec.pipeline, dag_id(spec.pipeline, "gold")
    followed = [*(live.name for live in spec.aggregation_tables), *(gold.name for gold in spec.gold.tables)]
    rebuilds = dict.fromkeys(followed, f"run {gold_dag} with `full`")
    rebuilds |= {
        keyed.name: f"move its folder away and restart the stream of {pipeline}, which rebuilds it from "
        f"{keyed.history!r}"
        for keyed in (*spec.keyed_tables, *spec.latest_tables)
    }
    loaded = [*(reference.name for reference in spec.references), *(model.name for model in spec.models)]
    return rebuilds | dict.fromkeys(loaded, f"move its folder away and run {gold_dag}, which loads it again")


def file_repair(spec: PipelineSpec, table: str) -> str:
    """Returns the next step for a table with a missing or damaged data file."""
    if (rebuild := _rebuild_instructions(spec).get(table)) is not None:
        return f"{rebuild[0].upper()}{rebuild[1:]}."
    if table == QUARANTINE_TABLE or spec.table_kinds.get(table) == "bronze":
        return (
            f"Run `deltaworks recover files {spec.pipeline} {table}`, which counts the rows and reads them again from "
            "their objects."
        )
    return "Restore the file from the storage's versions of the object: no command reads its rows again."


def _check_table(lake: Lake, home: PipelineHome, name: str, *, rebuild: str, depth: Depth) -> Iterator[Damage]:
    """Yields the damage of one table. A log that cannot be read here is reported by name, with nothing concluded from
    it.
    """
    log = list_log(home.objects, home.table(name))
    try:
        yield from _table_damages(lake, home, name, log, rebuild=rebuild, depth=depth)
    except ContractError as error:
        yield Damage(
            pipeline=home.pipeline, subject=name, kind="unreadable", description=error.message, repair=error.hint
        )


def _table_damages(
    lake: Lake, home: PipelineHome, name: str, log: LogFiles, *, rebuild: str, depth: Depth
) -> Iterator[Damage]:
    objects, pipeline, key = home.objects, home.pipeline, home.table(name)
    batches = committed_batches(lake, home, name)

    def damage(kind: str, description: str, command: str, flag: str = "") -> Damage:
        repair = rebuild or f"deltaworks recover {command} {pipeline} {name}{flag}"
        return Damage(pipeline=pipeline, subject=name, kind=kind, description=description, repair=repair)

    if log.newest is None:
        if batches:
            yield damage("dropped", f"the ledger has {batches.rows} rows of it, and it has no log", "table")
        return
    missing = log.missing_commits(log.newest)
    if missing:
        check_log(lake, key, log)
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
    damaged = find_damaged_files(lake, key, state.files, depth=depth)
    if damaged:
        described = [f"{path} ({problem})" for path, problem in damaged.items()]
        flag = " --full" if depth == "rows" and not rebuild else ""
        yield damage(
            "files_damaged",
            f"{len(damaged)} of {len(state.files)} data files are missing or unreadable: {_abbreviate(described)}",
            "files",
            flag,
        )


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
