"""Mends a Delta log that has lost commits, in the middle or at its end: none of the versions that follow changes.

A commit that the ledger knows as a batch's is made anew from the prepared batch, action for action. One that nobody
knows is filled in without any change, which makes the log readable; the table then goes back to the version before it
in a commit on top, in which all batches since come back with the files they had written.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.turn import WriteTurn, write_turn
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.provenance import current_run, user_metadata
from deltaworks.control.records.prepared import PreparedBatch, PreparedTable
from deltaworks.engine.ledger import LandedBatches, landed_batches, owner_step, versions_cut_off
from deltaworks.engine.writers import commit_metadata
from deltaworks.errors import ContractError
from deltaworks.rework.quarantine.replay import rereading
from deltaworks.rework.restore.lost import added_files
from deltaworks.rework.restore.one_table import TableRestore, TableRestoreResult
from deltaworks.rework.restore.points import RestorePoint
from deltaworks.rework.restore.refusals import refuse_mutable
from deltaworks.rework.restore.table_plan import TableRestoreRequest
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import Action, commit_history, list_log, state_at
from deltaworks.tables.restore import RestoreCommit, commit_info, put_commit, txn
from deltaworks.tables.steps import batch_step, rollback_step

FILLED, MADE_ANEW = "fill_log", "mend_log"
_COMMITS_LOOKED_AT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMend:
    """What was done to a log, or would be: versions made anew with their batches, versions filled in without change,
    and how the table went back behind those, None where it need not or in a dry run.
    """

    pipeline: str
    table: str
    dry_run: bool
    made_anew: dict[int, int]
    filled: tuple[int, ...]
    restore: TableRestoreResult | None


def mend_log(
    catalog: Catalog,
    pipeline: str,
    table: str,
    *,
    dry_run: bool = True,
    max_rows: int | None = None,
    fault: Callable[[str], None] = lambda point: None,
) -> LogMend:
    """Have every commit of a table's log again. Idempotent; the stream holds the table meanwhile.

    Args:
        max_rows: take no files of more rows out, where the table has to go back.
        fault: called at `readable`, by tests.

    Raises:
        ContractError: TABLE_LOG_LOST, its very first commit is gone; RESTORE_MUTABLE; what a restore raises.
        ConfigError: RESTORE_UNBOUNDED, RESTORE_TOO_LARGE.
        ConcurrencyError: LEASE_HELD, TURN_NOT_GRANTED.
    """
    refuse_mutable(catalog.pipeline(pipeline), table)
    mend = _Mend(catalog, pipeline, table)
    if dry_run:
        return mend.result(dry_run=True)
    with rereading(catalog, pipeline, rolling_back=True), mend.turn() as turn:
        turn.check()
        done = mend.make_readable()
    fault("readable")
    return mend.go_back(done, max_rows)


def filled_without_restore(lake: Lake, objects: ObjectStore, key: str) -> int | None:
    """The oldest version that was filled in and behind which the table has not gone back since."""
    newest = list_log(objects, key).newest
    went_back: list[int] = []
    pending = None
    for commit in commit_history(lake, key, newest=newest or 0, limit=_COMMITS_LOOKED_AT):
        operation = commit.metadata.get("operation")
        if operation == "restore":
            went_back.append(int(commit.metadata.get("to_version", 0)))
        elif operation == FILLED and not any(version < commit.version for version in went_back):
            pending = commit.version
    return pending


class _Mend:
    def __init__(self, catalog: Catalog, pipeline: str, table: str) -> None:
        self._catalog = catalog
        self._pipeline = pipeline
        self._table = table
        self._key = paths.table(pipeline, table)
        self._lake = Lake(catalog.environment.lake)
        self._objects = open_objects(catalog.environment.lake)
        self._home = PipelineHome(self._objects, pipeline)

    def turn(self) -> AbstractContextManager[WriteTurn]:
        """The table to oneself."""
        return write_turn(self._objects, self._pipeline, self._table, by=current_run())

    def result(self, *, dry_run: bool) -> LogMend:
        """What is missing, and how each version is had again."""
        log = list_log(self._objects, self._key)
        if log.newest is None or (0 not in log.commits and log.checkpoint_up_to(log.newest) is None):
            raise ContractError(
                "TABLE_LOG_LOST",
                f"The log of {self._pipeline}.{self._table} has lost its very beginning.",
                hint="Restore `_delta_log` from the storage's versions; or remove what is left of the table's folder, "
                f"then `deltaworks recover table {self._pipeline} {self._table}`.",
            )
        missing = log.missing(log.newest)
        before = state_at(self._lake, self._objects, self._key, missing[0] - 1 if missing else None)
        known = landed_batches(self._lake, self._home, self._table)
        cut_off = [] if missing else versions_cut_off(known, before, self._pipeline, self._table)
        made, filled = {}, []
        landed = dict(before.transactions)
        for version in (*missing, *cut_off):
            batch = self._batch(known, version, landed)
            if batch is not None:
                made[version] = batch[0].batch_id
            elif version < log.newest:
                filled.append(version)
        return LogMend(
            pipeline=self._pipeline,
            table=self._table,
            dry_run=dry_run,
            made_anew=made,
            filled=tuple(filled),
            restore=None,
        )

    def make_readable(self) -> LogMend:
        """Write the missing commits, oldest first."""
        found = self.result(dry_run=False)
        known = landed_batches(self._lake, self._home, self._table)
        for version in sorted((*found.made_anew, *found.filled)):
            batch = self._batch(known, version, {}) if version in found.made_anew else None
            put_commit(self._objects, self._key, version, self._empty(version) if batch is None else _anew(*batch))
        return found

    def go_back(self, done: LogMend, max_rows: int | None) -> LogMend:
        """Behind what was filled in, if anything was, now or by one that was broken off here."""
        pending = filled_without_restore(self._lake, self._objects, self._key)
        if pending is None:
            return done
        reason = f"the commit of version {pending} is lost"
        request = TableRestoreRequest(point=RestorePoint(version=pending - 1), max_rows=max_rows, reason=reason)
        restored = TableRestore(self._catalog, self._pipeline, self._table).run(request)
        return LogMend(
            pipeline=done.pipeline,
            table=done.table,
            dry_run=False,
            made_anew=done.made_anew,
            filled=done.filled,
            restore=restored,
        )

    def _batch(
        self, known: LandedBatches, version: int, landed: dict[str, int]
    ) -> tuple[PreparedBatch, PreparedTable] | None:
        """The batch whose commit this version was, where it can be made anew from its prepared object.

        Args:
            landed: the transactions before it, which are gone on with. A batch that is among them is not it: the ledger
                may tell of a table that was there before this one.
        """
        if version not in known.by_version:
            return None
        generation, number = known.by_version[version]
        step = batch_step(self._pipeline, generation, self._table, number)
        if landed.get(step.app_id, -1) >= number:
            return None
        batch = self._home.prepared.read(generation, number)
        share = next((each for each in batch.tables if each.table == self._table), None) if batch else None
        if batch is None or share is None or share.writer != "fan_out":
            return None
        landed[step.app_id] = number
        return batch, share

    def _empty(self, version: int) -> list[Action]:
        made = user_metadata(pipeline=self._pipeline, batch="none", operation=FILLED)
        step = rollback_step(self._pipeline, self._table, 0)
        commit = RestoreCommit(step=step, user_metadata=made, operation="RECOVER")
        return [commit_info(commit, read_version=version - 1, at_ms=int(time.time() * 1000))]


def _anew(batch: PreparedBatch, share: PreparedTable) -> list[Action]:
    """A batch's commit as it was: its step, its owner, its files."""
    now = int(time.time() * 1000)
    step = batch_step(batch.pipeline, batch.generation, share.table, batch.batch_id)
    info = RestoreCommit(step=step, user_metadata=commit_metadata(batch, step, "append"), operation="WRITE")
    adds = [{"add": added} for added in added_files(share.files).values()]
    owner = owner_step(batch.pipeline, batch.owner_epoch)
    return [commit_info(info, read_version=None, at_ms=now), txn(step, now), txn(owner, now), *adds]
