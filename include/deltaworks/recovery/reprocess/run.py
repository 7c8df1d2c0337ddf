"""Reads landed objects or records again under the present declaration and replaces their rows, in place or in shadow
tables.

A reprocess has four phases: plan (selection and last batch), stage (one pass writes files), commit (one Delta commit
per table) and complete. Each phase is recorded as an object that is created once, so an interrupted run resumes under
its id. In place, all rows of the selected objects are removed and the new rows added: no event is lost or duplicated,
and repeating a reprocess changes nothing. The stream keeps running, and does not write to a table during its commit.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from deltalake import Schema

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.write_turn import Turn, TurnFactory, uncontested_turn, write_turn
from deltaworks.control.provenance import current_run, user_metadata
from deltaworks.control.records.reprocess import ReprocessPlan, ReprocessRecords, StagedFiles, StagedTable
from deltaworks.errors import ConfigError
from deltaworks.events.reasons import QUARANTINE_PARTITION, QUARANTINE_SCHEMA, QUARANTINE_TABLE
from deltaworks.recovery.quarantine.open_rows import landed_seqs, record_reprocessed
from deltaworks.recovery.quarantine.replay_commit import complete_prepared_replay, exclusive_reread
from deltaworks.recovery.reprocess.plan import ReprocessPlanner, ReprocessRequest, open_record_resolver
from deltaworks.recovery.reprocess.replace_rows import (
    MAX_DIRECT_BYTES,
    DirectReplacer,
    ReplaceResult,
    SparkRowReplacer,
    committed_version,
)
from deltaworks.recovery.reprocess.reread import open_landing
from deltaworks.recovery.reprocess.selection import SeqRanges
from deltaworks.recovery.reprocess.staging import ObjectReread, RecordReread, RereadPlan, Stager, staging_folder
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
from deltaworks.tables.variant import delta_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
OPERATION = "reprocess"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReprocessResult:
    """The result for one table: the number of removed (`rows_out`) and added rows (`rows_in`) of the selected
    objects."""

    table: str
    target: str
    outcome: str
    rows_out: int
    rows_in: int
    dates: tuple[str, ...]
    version: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReprocessResult:
    """The result of a reprocess.

    If the source is a stream, `objects` counts batches and `origins` lists the ranges of records by where they were
    read from. `spark_work_count` is 0, since the run uses Spark itself if needed.
    """

    id: str
    objects: int
    bytes: int
    missing_keys: tuple[str, ...]
    unmatched: int
    still_quarantined: int
    tables: tuple[TableReprocessResult, ...]
    seconds: float
    origins: Mapping[str, int] = field(default_factory=dict)
    spark_work_count: int = 0


class Reprocess:
    """One reprocess of a pipeline, new or resumed. Call `run` once.

    Small amounts are processed in this process; Spark is used only beyond `direct_bytes`.

    Args:
        spark: returns the session when first needed; may raise.
        direct_bytes: maximum bytes of objects, staged files and rewritten files that are processed without Spark.
        get_turn: returns the turn of a table during its commit; the stream's write turn by default.
        fault: test hook, called at `planned`, `staged`, `committed:<table>` and `committed`.
    """

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        catalog: Catalog,
        pipeline: str,
        *,
        get_turn: TurnFactory | None = None,
        direct_bytes: int = MAX_DIRECT_BYTES,
        fault: Callable[[str], None] = lambda point: None,
    ) -> None:
        self._spark = spark
        self._direct_bytes = direct_bytes
        self._catalog = catalog
        self._spec = catalog.pipeline(pipeline)
        self._lake = Lake(catalog.environment.lake)
        self._home = PipelineHome.open(catalog.environment.lake, pipeline)
        self._objects = self._home.objects
        self._resolver = open_record_resolver(catalog, self._spec, self._lake, self._home)
        self._get_turn = get_turn or self._write_turn
        self._fault = fault

    def _write_turn(self, table: str) -> AbstractContextManager[Turn]:
        return write_turn(self._objects, self._spec.pipeline, table, by=current_run(), reason="reprocess")

    def run(self, reprocess_id: str, request: ReprocessRequest | None = None) -> ReprocessResult:
        """Runs the reprocess with this id to completion, from its plan if it was planned before. Idempotent.

        Args:
            request: the selection and tables; required for a new id, ignored if a plan exists.

        Raises:
            ConfigError: REPROCESS_UNKNOWN, REPROCESS_ID_INVALID, and those of planning.
            ContractError: REPROCESS_SPEC_DIFFERS, REPROCESS_GENERATION_ENDED, REPROCESS_OBJECTS_MISSING,
                REPROCESS_RECORDS_EXPIRED, REPROCESS_RECORDS_MISSING, REPROCESS_STOPPED, START_OVER_UNFINISHED.
            ConcurrencyError: LEASE_HELD, REPROCESS_TABLE_HELD, TURN_NOT_GRANTED, TURN_LOST, DELTA_CONFLICT,
                COMMIT_CONTENDED.
        """
        started = time.monotonic()
        pipeline = self._spec.pipeline
        with exclusive_reread(self._home):
            complete_prepared_replay(self._spec, self._lake, self._home)
            records = ReprocessRecords(self._objects, pipeline, reprocess_id)
            plan = self._load_or_create_plan(records, request)
            self._fault("planned")
            staged = self._load_or_stage(records, plan)
            self._fault("staged")
            done = [self._commit(plan, table) for table in staged.tables]
            self._void_replays(plan, staged)
            self._fault("committed")
            records.record_completion([asdict(table) for table in done])
            self._remove_staging(plan)
        return ReprocessResult(
            id=plan.id,
            objects=plan.objects,
            bytes=plan.source_bytes,
            missing_keys=staged.missing,
            unmatched=staged.unmatched_events,
            still_quarantined=staged.still_quarantined,
            origins=staged.origins,
            tables=tuple(done),
            seconds=time.monotonic() - started,
        )

    def _void_replays(self, plan: ReprocessPlan, staged: StagedFiles) -> None:
        """Voids earlier replays of these objects, because their rows were replaced in tables and quarantine."""
        if plan.mode != "in_place" or not plan.all_tables:
            return
        ranges = SeqRanges(next(table.ranges for table in staged.tables if table.table == QUARANTINE_TABLE))
        landed = [seq for seq in landed_seqs(self._lake, plan.pipeline) if seq in ranges]
        record_reprocessed(
            self._lake, plan.pipeline, landed, reprocess_id=plan.id, fingerprint=self._spec.fingerprint()
        )

    def _load_or_create_plan(self, records: ReprocessRecords, request: ReprocessRequest | None) -> ReprocessPlan:
        planner = ReprocessPlanner(self._lake, self._objects, self._spec, records=self._resolver)
        plan = records.plan()
        if plan is None:
            if request is None:
                raise ConfigError(
                    "REPROCESS_UNKNOWN", f"There is no reprocess {records.id!r} of {self._spec.pipeline!r} to resume."
                )
            plan = records.get_or_create_plan(planner.plan(records.id, request))
        if records.completion() is None:
            planner.check(plan)
        return plan

    def _load_or_stage(self, records: ReprocessRecords, plan: ReprocessPlan) -> StagedFiles:
        staged = records.files()
        if staged is not None:
            return staged
        again: RereadPlan
        if self._resolver is not None:
            again = RecordReread(self._spark(), self._lake, self._spec, self._resolver)
        else:
            opener = open_landing(self._catalog.environment, self._spec)
            stores = (self._lake, self._objects, self._spec)
            again = ObjectReread(self._spark, *stores, opener, direct_bytes=self._direct_bytes)
        return records.get_or_create_files(Stager(self._lake, self._spec).stage(plan, again))

    def _commit(self, plan: ReprocessPlan, staged: StagedTable) -> TableReprocessResult:
        started = time.monotonic()
        target = staged.table if plan.mode == "in_place" else f"{staged.table}__{plan.id}"
        step = Step(f"{plan.pipeline}/reprocess/{plan.id}/{staged.table}", 1)
        key = paths.table(plan.pipeline, target)
        metadata = user_metadata(
            pipeline=plan.pipeline,
            batch=plan.id,
            operation=OPERATION,
            step=step.app_id,
            step_version=step.version,
            through_batch=plan.through_batch,
        )
        if plan.mode == "shadow":
            self._ensure_shadow(staged.table, key, metadata)
        landed = committed_version(self._lake, key, step)
        if landed is not None:
            done = ReplaceResult(outcome="already_committed", rows_out=0, rows_in=staged.rows, dates=(), version=landed)
        else:
            with self._turn(plan, target) as turn:
                done = self._replace_rows(
                    plan, staged, key, step=step, user_metadata=metadata, before_commit=turn.check
                )
        self._fault(f"committed:{staged.table}")
        log.warning("reprocess=%s table=%s %s", plan.id, target, done)
        seconds = time.monotonic() - started
        return TableReprocessResult(table=staged.table, target=target, seconds=seconds, **asdict(done))

    def _replace_rows(self, plan: ReprocessPlan, staged: StagedTable, key: str, **commit: Any) -> ReplaceResult:
        ranges = SeqRanges(staged.ranges)
        files = [f"{staging_folder(plan, staged.table)}/{path}" for path in staged.files]
        if self._direct_bytes:
            direct = DirectReplacer(self._lake, self._objects, key, max_bytes=self._direct_bytes)
            if (done := direct.replace(ranges, files, **commit)) is not None:
                return done
        addresses = [self._lake.storage.spark_uri(file) for file in files]
        return SparkRowReplacer(self._spark(), self._lake, key).replace(ranges, addresses, **commit)

    def _turn(self, plan: ReprocessPlan, table: str) -> AbstractContextManager[Turn]:
        return self._get_turn(table) if plan.mode == "in_place" else uncontested_turn(table)

    def _ensure_shadow(self, table: str, key: str, metadata: str) -> None:
        spec = None if table == QUARANTINE_TABLE else self._spec.table(table)
        schema = QUARANTINE_SCHEMA if spec is None else arrow_schema(spec.column_types())
        partition_by = QUARANTINE_PARTITION if spec is None else spec.partition_by
        fields = delta_schema(schema).fields
        present = self._lake.open(paths.table(self._spec.pipeline, table))
        if present is not None:
            # Include columns that schema evolution added to the table.
            names = {field.name for field in fields}
            fields = [*fields, *(field for field in present.schema().fields if field.name not in names)]
        properties = self._spec.maintenance.table_properties()
        self._lake.ensure(key, Schema(fields), user_metadata=metadata, partition_by=partition_by, properties=properties)

    def _remove_staging(self, plan: ReprocessPlan) -> None:
        # A failure is ignored, since staged files that remain only cost space.
        with contextlib.suppress(Exception):
            for key in self._objects.list(paths.reprocess_staging(plan.pipeline, plan.id)):
                self._objects.delete(key)
