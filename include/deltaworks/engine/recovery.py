"""Starts or resumes a run: acquires the lease, opens tables and ledger, and finds the checkpoint to continue from."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.lease import Lease
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.checkpoint import reject_damaged_checkpoint, reject_lost_ledger
from deltaworks.control.records.generations import Generations
from deltaworks.engine.batches import BatchProcessor, Ownership
from deltaworks.engine.commit import BatchStores
from deltaworks.engine.ledger import Ledger, committed_batches, max_owner_epoch, owner_step, tables_with_rows
from deltaworks.engine.table_set import TableSet
from deltaworks.errors import ContractError
from deltaworks.events.reasons import QUARANTINE_TABLE
from deltaworks.events.source_fields import pin_databases
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.spec_change_effects import Effect
from deltaworks.specs.spec_diff import unsafe_changes
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import list_log
from deltaworks.tables.steps import read_last_completed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_LEDGER_READS = 3
_LEDGER_READ_SECONDS = 1.0


def check_spec(lake: Lake, home: PipelineHome, spec: PipelineSpec) -> bool:
    """Returns whether the pipeline must start over before its stream starts with `spec`.

    An unsafe edit damages rows, so it is safe while there are none: the pipeline starts over, abandons nothing and
    reads its source from the beginning. If only quarantine has rows, other meanings of bronze rows are safe too: a
    replay parses the quarantined events with the new spec.

    Raises:
        ContractError: SPEC_CHANGE_UNSAFE for an unsafe change that was not accepted.
    """
    try:
        home.specs.check(spec)
    except ContractError as error:
        changes = unsafe_changes(home.specs.changes(spec))
        if error.condition != "SPEC_CHANGE_UNSAFE" or any(change.effect is Effect.REFUSED for change in changes):
            raise
        tables = tables_with_rows(lake, home)
        if not tables:
            return True
        # The offsets behind the quarantined rows would be invalid for another source.
        changes_rows_only = all(
            change.effect is Effect.MIXED_ROWS and not change.field.startswith("source") for change in changes
        )
        if tables != {QUARANTINE_TABLE} or not changes_rows_only:
            raise
    return False


def stream_lease(lake: Lake, home: PipelineHome, spec: PipelineSpec) -> Lease:
    """Returns the lease of a pipeline's stream without acquiring it. Its epoch is at least the highest one in the
    tables.
    """
    return Lease(
        home.objects,
        paths.stream_lease(spec.pipeline),
        ttl_seconds=spec.stream.lease_ttl_seconds,
        name=spec.pipeline,
        known_epoch=lambda: max_owner_epoch(lake, spec.pipeline),
    )


def open_batch_processor(
    spark: SparkSession | None,
    catalog: Catalog,
    spec: PipelineSpec,
    objects: ObjectStore,
    *,
    lease: Lease,
    epoch: int,
    check_ledger: bool = True,
    check_dropped_tables: bool = True,
    predecessor_crashed: bool = False,
) -> tuple[BatchProcessor, Ledger]:
    """Opens and fences the tables and ledger of a pipeline whose lease the caller holds.

    Args:
        spark: None if only prepared batches are to be completed.
        check_ledger: raise if the ledger has lost batches.
        check_dropped_tables: report a missing table that had rows as a problem, instead of creating an empty one.
        predecessor_crashed: whether the previous run was killed.

    Raises:
        ConfigError: ENRICHMENT_UNREADABLE, an enrichment database is missing or damaged.
        ContractError: LEDGER_BEHIND, START_OVER_UNFINISHED, or quarantine cannot be opened.
        FencedError: a successor has taken over.
    """
    lake = Lake(catalog.environment.lake)
    if spark is not None:  # completing a prepared batch needs no enrichment databases
        pin_databases(spec, lake.storage)
    owner = owner_step(spec.pipeline, epoch)
    home = PipelineHome(objects, spec.pipeline)
    home.start_overs.reject_unfinished()
    generations = home.generations.effective()
    if check_ledger:
        # Checked before a missing ledger is created empty.
        _check_ledger(lake, home, generations.generation)

    def had_rows(table: str) -> bool:
        # The table's log is checked first: it nearly always exists, and reading the ledger takes longer.
        if not check_dropped_tables or list_log(objects, home.table(table)).newest is not None:
            return False
        return bool(committed_batches(Lake(lake.storage), home, table))

    tables = TableSet(lake, spec, spark=spark, had_rows=had_rows)
    tables.open()
    tables.fence(owner)
    ledger = Ledger(lake, spec.pipeline, generations.generation)
    processor = BatchProcessor(
        spark,
        spec,
        BatchStores(lake=lake, objects=objects, ledger=ledger, tables=tables),
        generations=generations,
        ownership=Ownership(owner=lease.owner, step=owner),
        predecessor_crashed=predecessor_crashed,
    )
    return processor, ledger


def _check_ledger(lake: Lake, home: PipelineHome, generation: int) -> None:
    """Raises if the ledger has lost batches. Retries first, because a former owner may be completing its last batch."""
    for attempt in range(1, _LEDGER_READS + 1):
        last = read_last_completed(lake, home.pipeline, generation)
        generations = home.generations.read()
        try:
            return reject_lost_ledger(home, generations, generation=generation, last_completed=last)
        except ContractError:
            if attempt == _LEDGER_READS:
                raise
            time.sleep(_LEDGER_READ_SECONDS)


def current_checkpoint(home: PipelineHome, ledger: Ledger) -> Generations:
    """Returns the checkpoint to use: the recorded one, or a new one that starts after the ledger's last batch.

    Call it after `complete_prepared`.

    Raises:
        ContractError: CHECKPOINT_DAMAGED, LEDGER_WITHOUT_OFFSET, GENERATIONS_UNREADABLE.
    """
    last = ledger.last_completed()
    end = ledger.end_offset(last) if last is not None else None
    generations = home.generations.current_checkpoint(last_completed=last, end_offset=end)
    reject_damaged_checkpoint(home, generations)
    return generations
