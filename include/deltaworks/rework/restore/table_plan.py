"""Plans how one table goes back: to which version, what it loses by that, and of which files it is made then.

Nothing is written here. The same plan is made from a record, by whoever goes on with a rollback that was broken off.
"""

from __future__ import annotations

import getpass
from dataclasses import dataclass

from deltaworks import __version__
from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import open_objects
from deltaworks.control.provenance import current_run
from deltaworks.control.records.rollback import LostShare, Repair, Rollback
from deltaworks.rework.restore.lost import Lost, LostShares, added_files
from deltaworks.rework.restore.points import (
    RestorePoint,
    changes_since,
    completion_of,
    told,
    version_at_batch,
    version_at_time,
)
from deltaworks.rework.restore.refusals import refuse_columns_apart, refuse_unprepared
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import TableState, state_at
from deltaworks.tables.needed_files import absent_files
from deltaworks.tables.restore import Difference, Target, refuse_unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRestoreRequest:
    """What somebody asks for: where to, and what becomes of rows that landed since.

    `leave_out` are files of that version which are gone for good, and `reread` the batches that had rows in them:
    with `repair="source"` they count as lost too.
    """

    point: RestorePoint
    repair: Repair = "prepared"
    max_rows: int | None = None
    reason: str = ""
    leave_out: tuple[str, ...] = ()
    reread: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Planned:
    """A rollback and what it comes to, with the table as it is now."""

    record: Rollback
    now: TableState
    target: Target
    unprepared: tuple[int, ...]
    absent: tuple[str, ...]

    @property
    def difference(self) -> Difference:
        """What goes and what comes."""
        return Difference.between(self.now, self.target)


class TablePlanner:
    """Plans rollbacks of one table. Used by one thread."""

    def __init__(self, catalog: Catalog, pipeline: str, table: str) -> None:
        self._catalog = catalog
        self._pipeline = pipeline
        self._table = table
        self._key = paths.table(pipeline, table)
        self._lake = Lake(catalog.environment.lake)
        self._objects = open_objects(catalog.environment.lake)
        self._home = PipelineHome(self._objects, pipeline)

    def again(self, record: Rollback) -> Planned:
        """What a record says, with the table as it is now: what has landed since it was fixed stays, whatever it says.

        Raises:
            ContractError: RESTORE_UNPREPARED.
        """
        then, now = state_at(self._lake, self._objects, self._key, record.to_version), self._state()
        return Planned(record, now, self._target(record, then, now, self._lost(then, now)), (), ())

    def plan(self, request: TableRestoreRequest) -> Planned:
        """A new rollback, and what it comes to.

        Raises:
            ConfigError: BATCH_UNKNOWN.
            ContractError: RESTORE_UNSUPPORTED, RESTORE_GENERATION_OVER, RESTORE_COLUMNS_DIFFER, and what reading the
                log raises.
        """
        now = self._state()
        refuse_unsupported(now)
        then = state_at(self._lake, self._objects, self._key, self._version(request.point, now))
        lost = self._lost(then, now)
        refuse_columns_apart(then, now, repair=request.repair)
        record = Rollback(
            pipeline=self._pipeline,
            ordinal=self._home.rollbacks.newest() + 1,
            table=self._table,
            generation=self._home.generations.current(),
            from_version=now.version,
            to_version=then.version,
            repair=request.repair,
            lost=(*(each.share for each in lost), *self._partly_lost(request.reread, lost)),
            undone=self._undone(then.version, now.version),
            dropped_files=request.leave_out,
            by=getpass.getuser(),
            reason=request.reason,
            run=current_run(),
            at=iso_now(),
            code_version=__version__,
        )
        target = self._target(record, then, now, lost)
        back = {name: each for name, each in target.files.items() if name not in now.files}
        gone = absent_files(self._lake, self._key, back)
        return Planned(record, now, target, *self._told_apart(gone, lost, request.repair))

    @staticmethod
    def _told_apart(gone: list[str], lost: list[Lost], repair: Repair) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Lost batches without their files, and other files that are gone."""
        if repair != "prepared":
            return (), tuple(gone)
        paths_gone = set(gone)
        unprepared = {
            each.share.number
            for each in lost
            if each.files is None or any(path in paths_gone for path, _ in each.files)
        }
        of_batches = {path for each in lost for path, _ in each.files or ()}
        return tuple(sorted(unprepared)), tuple(path for path in gone if path not in of_batches)

    def _partly_lost(self, batches: tuple[int, ...], lost: list[Lost]) -> list[LostShare]:
        """Batches some rows of which went with files that are gone. How many, nobody knows before they are read."""
        wholly = {each.share.number for each in lost if each.share.kind == "batch"}
        generation = self._home.generations.current()
        return [
            LostShare(kind="batch", generation=generation, number=number, rows=0, files=0)
            for number in batches
            if number not in wholly
        ]

    def _state(self) -> TableState:
        return state_at(self._lake, self._objects, self._key)

    def _version(self, point: RestorePoint, now: TableState) -> int:
        if point.version is not None:
            return point.version
        if point.time is not None:
            return version_at_time(self._lake, self._key, point.time, newest=now.version)
        assert point.batch is not None
        completed_at = completion_of(self._catalog, self._pipeline, point.batch)
        return version_at_batch(
            self._lake,
            self._key,
            pipeline=self._pipeline,
            table=self._table,
            newest=now.version,
            batch=point.batch,
            completed_at=completed_at,
        )

    def _lost(self, then: TableState, now: TableState) -> list[Lost]:
        generation = self._home.generations.current()
        found = LostShares(self._lake, self._home, self._table, generation=generation)
        return found.between(then, now)

    def _undone(self, after: int, newest: int) -> tuple[str, ...]:
        ours = {f"{self._pipeline}/replay/{self._table}"}
        commits = [
            commit
            for commit in changes_since(self._lake, self._key, after=after, newest=newest)
            if commit.metadata.get("operation") != "append" and commit.metadata.get("step") not in ours
        ]
        return told(commits)

    def _target(self, record: Rollback, then: TableState, now: TableState, lost: list[Lost]) -> Target:
        left_out = set(record.dropped_files)
        files = {name: each for name, each in then.files.items() if name[0] not in left_out}
        named = {(share.kind, share.number) for share in record.lost}
        for each in lost:
            planned = (each.share.kind, each.share.number) in named
            if planned and record.repair != "prepared":
                continue
            if each.files is None and not planned:
                # Landed after the record was fixed, when a crash had given the table back to the stream.
                refuse_unprepared(self._pipeline, self._table, (each.share.number,), repair="prepared")
            files |= {name: now.files.get(name, added) for name, added in (each.files or {}).items()}
        staged = self._home.rollbacks.staged(record.ordinal)
        files |= {} if staged is None else added_files(staged.files)
        if record.repair != "none":
            return Target(files)
        columns = {name: then.metadata[name] for name in ("schemaString", "partitionColumns")}
        return Target(files, {**now.metadata, **columns})
