"""Plans a reprocess: its input, its tables, and whether it can start now. Writes nothing; needs no Spark."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltaworks import __version__
from deltaworks.control.clock import iso_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import ObjectStore
from deltaworks.control.provenance import current_person, current_run
from deltaworks.control.records.reprocess import ReprocessPlan
from deltaworks.engine.batch_history import BatchHistory
from deltaworks.engine.notifications import notification_tables_by_source
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError
from deltaworks.events.reasons import QUARANTINE_TABLE
from deltaworks.recovery.reprocess.records import RecordResolver, ResolvedRecords
from deltaworks.recovery.reprocess.selection import ObjectResolver, ResolvedObjects, Selection
from deltaworks.specs.base import nearest_names_hint
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.record_sources import RecordSourceSpec
from deltaworks.specs.sources import require_object_source
from deltaworks.specs.spec_change_effects import Effect
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    pass

#: A table that is held during another job's write turn catches up within a batch or two. A suspended table does not.
HELD_WAIT_SECONDS = 60.0
_POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReprocessRequest:
    """The selection to read again and the tables to replace. Without `tables`: all tables, and quarantine."""

    selection: Selection
    tables: tuple[str, ...] = ()
    shadow: bool = False
    allow_missing: bool = False


class ReprocessPlanner:
    """Plans reprocesses of one pipeline. Not thread-safe."""

    def __init__(
        self,
        lake: Lake,
        objects: ObjectStore,
        spec: PipelineSpec,
        *,
        records: RecordResolver | None = None,
        held_wait_seconds: float = HELD_WAIT_SECONDS,
    ) -> None:
        """Creates a planner; `records` resolves the records of a pipeline that reads a stream."""
        self.records = records
        self._held_wait_seconds = held_wait_seconds
        self._lake = lake
        self._objects = objects
        self._home = PipelineHome(objects, spec.pipeline)
        self._spec = spec

    def plan(self, reprocess_id: str, request: ReprocessRequest) -> ReprocessPlan:
        """Plans a new reprocess.

        Raises:
            ConfigError: TABLE_UNKNOWN, REPROCESS_EMPTY, REPROCESS_TOO_FRAGMENTED, REPROCESS_SELECTION_INVALID.
            ContractError: REPROCESS_SPEC_DIFFERS, REPROCESS_MUTABLE.
        """
        check_tables(self._spec, request.tables)
        if not request.shadow:
            reject_mutable(self._spec, request.tables)
            # Checked before batches are resolved: every batch prepared after this uses the present declaration.
            check_running_spec(self._objects, self._spec)
        objects, source_bytes, resolved = self._resolve(request.selection)
        return ReprocessPlan(
            pipeline=self._spec.pipeline,
            id=reprocess_id,
            mode="shadow" if request.shadow else "in_place",
            tables=request.tables or tuple(table.name for table in self._spec.event_tables),
            all_tables=not request.tables,
            selection=request.selection.as_record(),
            through_batch=resolved.through_batch,
            ranges=resolved.ranges.ranges,
            objects=objects,
            source_bytes=source_bytes,
            allow_missing=request.allow_missing,
            spec_fingerprint=self._spec.fingerprint(),
            code_version=__version__,
            by=current_person(),
            run=current_run(),
            at=iso_now(),
            generation=self._home.generations.current(),
        )

    def _resolve(self, selection: Selection) -> tuple[int, int, ResolvedObjects | ResolvedRecords]:
        """Resolves the selection. Returns its number of objects or batches, its bytes if known, and the resolved
        selection.
        """
        if self.records is not None:
            records = self.records.resolve(selection)
            return records.batches, 0, records
        resolved = ObjectResolver(self._lake, self._objects, self._spec).resolve(selection)
        return len(resolved.objects), resolved.bytes, resolved

    def check(self, plan: ReprocessPlan) -> None:
        """Rejects a plan that cannot start or resume now.

        Raises:
            ContractError: REPROCESS_SPEC_DIFFERS, REPROCESS_GENERATION_ENDED.
            ConcurrencyError: REPROCESS_TABLE_HELD.
        """
        generation = self._home.generations.current()
        if plan.generation != generation:
            raise ContractError(
                "REPROCESS_GENERATION_ENDED",
                f"Reprocess {plan.id!r} was planned for generation {plan.generation}; {plan.pipeline!r} has started "
                f"over since, in generation {generation}.",
            )
        if not self._home.specs.produces_same_rows(plan.spec_fingerprint, self._spec):
            raise ContractError(
                "REPROCESS_SPEC_DIFFERS",
                f"Reprocess {plan.id!r} was planned with another pipeline.yaml ({plan.spec_fingerprint}).",
                hint="Put that one back, or begin a new reprocess under another id.",
            )
        if plan.mode == "shadow":
            return
        check_running_spec(self._objects, self._spec)
        deadline = time.monotonic() + self._held_wait_seconds
        while held := self._waiting_tables(plan):
            if time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
                continue
            raise ConcurrencyError(
                "REPROCESS_TABLE_HELD",
                f"{', '.join(held)} of {plan.pipeline!r} waits for rows of batches that are to be read again.",
            )

    def _waiting_tables(self, plan: ReprocessPlan) -> list[str]:
        """Returns the plan's tables that still lack rows of the selected batches. Committed later, these would be
        duplicates.
        """
        batches = BatchHistory(self._lake, self._objects, self._spec).completed(last=plan.through_batch)
        return sorted({table for batch in batches for table in batch.held} & {*plan.tables, QUARANTINE_TABLE})


def open_record_resolver(catalog: Catalog, spec: PipelineSpec, lake: Lake, home: PipelineHome) -> RecordResolver | None:
    """Returns the record resolver of a pipeline that reads a stream; None if the pipeline reads objects.

    Raises:
        ContractError: SOURCE_HAS_NO_OBJECTS, the pipeline reads neither.
    """
    if isinstance(spec.source, RecordSourceSpec):
        return RecordResolver(catalog, spec, lake, home)
    require_object_source(spec.source, pipeline=spec.pipeline, unsupported="there is nothing to read again")
    return None


def check_tables(spec: PipelineSpec, tables: tuple[str, ...]) -> None:
    """Rejects names that are no bronze tables.

    Raises:
        ConfigError: TABLE_UNKNOWN.
    """
    bronze = [table.name for table in spec.event_tables]
    unknown = [name for name in tables if name not in bronze]
    if unknown:
        raise ConfigError(
            "TABLE_UNKNOWN",
            f"Pipeline {spec.pipeline!r} has no bronze table {', '.join(unknown)}.",
            hint=nearest_names_hint(unknown, bronze, prefix="Its bronze tables are"),
        )


def reject_mutable(spec: PipelineSpec, tables: tuple[str, ...]) -> None:
    """Rejects tables whose rows were changed by mutations or announced by notifications; replacing rows would undo
    both.

    Raises:
        ContractError: REPROCESS_MUTABLE.
    """
    announcing = notification_tables_by_source(spec)
    concerned = [table for table in spec.event_tables if not tables or table.name in tables]
    named = [table.name for table in concerned if table.mutable is not None or table.name in announcing]
    if named:
        raise ContractError(
            "REPROCESS_MUTABLE",
            f"{', '.join(named)} of {spec.pipeline!r} holds rows that mutations have changed or that were announced.",
        )


def check_running_spec(objects: ObjectStore, spec: PipelineSpec) -> None:
    """Rejects an in-place reprocess if the running stream uses another declaration.

    Raises:
        ContractError: REPROCESS_SPEC_DIFFERS.
    """
    records = PipelineHome(objects, spec.pipeline).specs
    different = [change.field for change in records.changes(spec) if change.effect is not Effect.SAFE]
    if records.current() is None:
        different = ["no start is on record"]
    if different:
        raise ContractError(
            "REPROCESS_SPEC_DIFFERS",
            f"The stream of {spec.pipeline!r} has not started with this pipeline.yaml: {', '.join(different)}.",
            hint="Restart the stream first, so that new rows follow this declaration too; or use a shadow.",
        )
