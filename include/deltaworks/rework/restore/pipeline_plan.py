"""Plans how a whole pipeline goes back to one batch: which version of each table that is, and what each gives up.

Batches after it land again from the source, in a new generation, so what they brought simply goes: rows, quarantined
ones among them, and columns. Nothing is written here.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import open_objects
from deltaworks.control.records.start_over import GivenUp, StartOver
from deltaworks.engine.history import BatchHistory
from deltaworks.errors import ConfigError, ContractError
from deltaworks.events.reasons import QUARANTINE
from deltaworks.rework.restore.points import RestorePoint, version_at_batch
from deltaworks.rework.restore.refusals import concerned_by_mutations, refuse_absent
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import TableState, commit_history, state_at
from deltaworks.tables.needed_files import absent_files
from deltaworks.tables.restore import Difference, Target, refuse_unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePoint:
    """The last batch that stays, and the offset of the source at which the next generation begins."""

    batch: int
    start: dict[str, Any]
    completed_at: dt.datetime | None


class PipelinePlanner:
    """Plans rollbacks of one pipeline. Used by one thread."""

    def __init__(self, catalog: Catalog, spec: PipelineSpec) -> None:
        self._spec = spec
        self._pipeline = spec.pipeline
        self._lake = Lake(catalog.environment.lake)
        self._objects = open_objects(catalog.environment.lake)
        self._home = PipelineHome(self._objects, spec.pipeline)

    def point(self, wanted: RestorePoint) -> PipelinePoint:
        """The batch that is meant.

        Raises:
            ConfigError: RESTORE_POINT for a version, which is one table's; BATCH_UNKNOWN.
            ContractError: RESTORE_MUTABLE; RESTORE_GENERATION_OVER, the batch was given up; LEDGER_WITHOUT_OFFSET.
        """
        named = concerned_by_mutations(self._spec)
        if named:
            raise ContractError(
                "RESTORE_MUTABLE",
                f"{', '.join(named)} of {self._pipeline!r} hold rows that mutations change, or others are told of.",
                hint=f"`deltaworks pipelines start-over {self._pipeline}` applies all requests anew.",
            )
        history = BatchHistory(self._lake, self._objects, self._spec)
        summary = history.detail(self._batch(wanted, history)).summary
        current = self._home.generations.current()
        survives = self._home.start_overs.surviving_batches(summary.generation, current=current)
        if survives is not None and summary.batch_id > survives:
            raise ContractError(
                "RESTORE_GENERATION_OVER",
                f"Batch {summary.batch_id} of {self._pipeline!r} was given up; its generation ended with {survives}.",
                hint=f"`deltaworks batches {self._pipeline}` lists what can be gone back to.",
            )
        if summary.end_offset is None:
            raise ContractError(
                "LEDGER_WITHOUT_OFFSET",
                f"The ledger of {self._pipeline!r} does not say where batch {summary.batch_id} ended.",
                hint="Go back to another batch.",
            )
        return PipelinePoint(batch=summary.batch_id, start=dict(summary.end_offset), completed_at=summary.completed_at)

    def _batch(self, wanted: RestorePoint, history: BatchHistory) -> int:
        if wanted.batch is not None:
            return wanted.batch
        if wanted.time is None:
            raise ConfigError(
                "RESTORE_POINT",
                "A version is one table's: all tables of a pipeline go back to a batch or a time.",
                hint="Give --to-batch or --to-time, or name the table.",
            )
        done = [each for each in history.complete() if each.completed_at and each.completed_at <= wanted.time]
        if not done:
            raise ConfigError(
                "BATCH_UNKNOWN",
                f"No batch of {self._pipeline!r} was complete at {wanted.time.isoformat()}.",
                hint=f"`deltaworks batches {self._pipeline}` lists them; `deltaworks pipelines start-over` is for all.",
            )
        return done[-1].batch_id

    def tables(self, point: PipelinePoint, *, refuse: bool) -> Iterator[GivenUp]:
        """Each bronze table and quarantine with its version at that point, and what goes.

        Args:
            refuse: refuse where files of such a version are gone.

        Raises:
            ContractError: RESTORE_FILES_GONE, RESTORE_UNSUPPORTED, and what reading a log raises.
        """
        for name in (*(table.name for table in self._spec.tables), QUARANTINE):
            key = paths.table(self._pipeline, name)
            if self._lake.open(key) is None:
                continue
            now = state_at(self._lake, self._objects, key)
            refuse_unsupported(now)
            version = version_at_batch(
                self._lake,
                key,
                pipeline=self._pipeline,
                table=name,
                newest=now.version,
                batch=point.batch,
                completed_at=point.completed_at,
            )
            target = target_of(state_at(self._lake, self._objects, key, version), now)
            if refuse:
                back = {file: each for file, each in target.files.items() if file not in now.files}
                refuse_absent(key, absent_files(self._lake, key, back))
            counts = Difference.between(now, target)
            yield GivenUp(
                table=name,
                version=now.version,
                rows=counts.rows_out,
                files=counts.files_out,
                bytes=counts.bytes_out,
                restore_to=version,
            )


def target_of(then: TableState, now: TableState) -> Target:
    """A table as it was, its columns with it; its properties stay as they are."""
    columns = {name: then.metadata[name] for name in ("schemaString", "partitionColumns")}
    return Target(then.files, {**now.metadata, **columns})


def restored_versions(lake: Lake, begun: StartOver) -> dict[str, int]:
    """As which version each table was put back, by what its commits say; without those that were made anew."""
    found = {}
    for each in begun.tables:
        key = paths.table(begun.pipeline, each.table)
        table = lake.open(key)
        if each.restore_to is None or table is None:
            continue
        step = (f"{begun.pipeline}/start_over/{each.table}", begun.generation)
        for commit in commit_history(lake, key, newest=table.version(), limit=table.version() - each.version):
            if (commit.metadata.get("step"), commit.metadata.get("step_version")) == step:
                found[each.table] = commit.version
    return found
