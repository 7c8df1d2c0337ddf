"""The ledger: records complete batches with their offsets, commits and table versions.

It has two Delta tables per pipeline. The *checkpoint store* has one row per batch (offsets, source metadata, job
state). The *batch metadata store* has one row per batch and table (outcome, rows, files, Delta version). A batch is
complete once it is in the checkpoint store. Both are written with application transactions, so repeated writes have no
effect.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from deltaworks.control import paths
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.provenance import user_metadata
from deltaworks.control.records.generations import Rollback
from deltaworks.control.records.prepared import PreparedBatch
from deltaworks.specs.descriptions import control_description
from deltaworks.specs.pipeline_sections import ARCHIVE
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import Step, refresh
from deltaworks.tables.descriptions import ensure_described
from deltaworks.tables.lake import Lake, select_rows
from deltaworks.tables.log import TableState
from deltaworks.tables.steps import (
    BATCH_METADATA_STORE,
    CAUGHT_UP,
    CHECKPOINT_STORE,
    HELD,
    RECOMMITTED,
    ROLLED_BACK,
    batch_step,
    batches_by_table,
    held_commit_steps,
    last_completed,
    read_last_completed,
)

CHECKPOINT_STORE_SCHEMA = arrow_schema(
    {
        "pipeline": "string",
        "generation": "int",
        "batch_id": "long",
        "spark_batch_id": "long",
        "checkpoint": "int",
        "owner_epoch": "long",
        "run": "string",
        "job_state": "string",
        "start_offset": "string",
        "end_offset": "string",
        "source_metadata": "string",
        "spec_fingerprint": "string",
        "code_version": "string",
        "rows": "long",
        "quarantined": "long",
        "prepared_at": "timestamp",
        "completed_at": "timestamp",
    }
)
BATCH_METADATA_SCHEMA = arrow_schema(
    {
        "pipeline": "string",
        "generation": "int",
        "batch_id": "long",
        "step": "string",
        "table_name": "string",
        "writer": "string",
        "outcome": "string",
        "rows": "long",
        "files": "long",
        "bytes": "long",
        "delta_version": "long",
        "seconds": "double",
        "at": "timestamp",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """Outcome of committing one batch to one table.

    It is `committed` or `already_committed`. For a held table it is `held`, without version, and later `caught_up`. A
    table rollback adds rows with `rolled_back`, and with `recommitted` for batches whose rows it committed again.
    """

    step: str
    table_name: str
    writer: str
    outcome: str
    rows: int
    files: int
    bytes: int
    delta_version: int | None
    seconds: float | None


def owner_step(pipeline: str, epoch: int) -> Step:
    """Returns the transaction that stores the owner epoch in each table of a pipeline."""
    return Step(f"{pipeline}/owner", epoch)


def max_owner_epoch(lake: Lake, pipeline: str) -> int:
    """Returns the highest owner epoch stored in quarantine and the ledger; 0 before the first owner."""
    app_id = owner_step(pipeline, 0).app_id
    keys = [paths.table(pipeline, "quarantine")]
    keys += [paths.pipeline_control(pipeline, name) for name in (CHECKPOINT_STORE, BATCH_METADATA_STORE)]
    tables = [lake.open(key) for key in keys]
    return max((table.transaction_version(app_id) or 0 for table in tables if table is not None), default=0)


class Ledger:
    """The ledger of one pipeline in one generation. Not thread-safe."""

    def __init__(self, lake: Lake, pipeline: str, generation: int) -> None:
        self._lake = lake
        self._pipeline = pipeline
        self._generation = generation
        self._keys = {name: paths.pipeline_control(pipeline, name) for name in (CHECKPOINT_STORE, BATCH_METADATA_STORE)}
        schemas = {CHECKPOINT_STORE: CHECKPOINT_STORE_SCHEMA, BATCH_METADATA_STORE: BATCH_METADATA_SCHEMA}
        created = user_metadata(pipeline=pipeline, batch="none", operation="create_table")
        self._tables: dict[str, DeltaTable] = {
            name: ensure_described(lake, key, schemas[name], control_description(name), user_metadata=created)
            for name, key in self._keys.items()
        }

    def _step(self, name: str, batch_id: int) -> Step:
        return batch_step(self._pipeline, self._generation, name, batch_id)

    def last_completed(self) -> int | None:
        """Returns the number of the newest complete batch; None before the first. Reads the Delta log only."""
        store = self._tables[CHECKPOINT_STORE]
        refresh(store)
        return last_completed(store, self._pipeline, self._generation)

    def end_offset(self, batch_id: int) -> dict[str, Any] | None:
        """Returns the source offset at the end of a complete batch."""
        key = {"batch_id": [batch_id], "generation": [self._generation]}
        rows = self._rows(CHECKPOINT_STORE, ["end_offset"], key)
        if not rows or rows[0]["end_offset"] is None:
            return None
        offset = json.loads(rows[0]["end_offset"])
        return offset if isinstance(offset, dict) else None

    def _rows(self, name: str, columns: Sequence[str], values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
        return select_rows(self._lake, self._keys[name], self._tables[name], columns=columns, values=values)

    def uncommitted_batches(self, table: str | None = None, *, since_batch: int = 0) -> dict[str, list[int]]:
        """Returns, by table, the complete batches that the table has not committed because it was held, in order.

        Args:
            table: only this table.
            since_batch: only from this batch on.
        """
        columns = ["table_name", "batch_id", "outcome"]
        condition: dict[str, list[Any]] = {"outcome": [HELD, CAUGHT_UP], "generation": [self._generation]}
        rows = self._rows(BATCH_METADATA_STORE, columns, condition)
        steps = [row for row in rows if table in (None, row["table_name"]) and row["batch_id"] >= since_batch]
        return batches_by_table(held_commit_steps(steps))

    def catch_up(self, steps: Sequence[tuple[PreparedBatch, StepOutcome]], *, owner: Step) -> None:
        """Records the late commits of a held table, in batch order."""
        if not steps:
            return
        last, table = steps[-1][0].batch_id, steps[-1][1].table_name
        step = Step(f"{self._pipeline}/g{self._generation}/caught_up/{table}", last)
        now = utc_now()
        rows = [
            {
                "pipeline": batch.pipeline,
                "generation": batch.generation,
                "batch_id": batch.batch_id,
                **asdict(outcome),
                "outcome": CAUGHT_UP,
                "at": now,
            }
            for batch, outcome in steps
        ]
        self._write(BATCH_METADATA_STORE, rows, step=step, batch_id=last, operation="catch_up", owner=owner)

    def roll_back(self, rollback: Rollback, *, version: int) -> None:
        """Records which batches a table rollback removed. Idempotent."""
        step = Step(f"{self._pipeline}/rollback/{BATCH_METADATA_STORE}", rollback.ordinal)
        outcome, now = RECOMMITTED if rollback.row_source == "prepared" else ROLLED_BACK, utc_now()
        rows = [
            {
                "pipeline": self._pipeline,
                "generation": lost_step.generation,
                "batch_id": lost_step.number,
                "step": f"{self._pipeline}/rollback/{rollback.table}#{rollback.ordinal}",
                "table_name": rollback.table,
                "writer": "restore",
                "outcome": outcome,
                "rows": lost_step.rows,
                "files": lost_step.files,
                "bytes": 0,
                "delta_version": version,
                "seconds": 0.0,
                "at": now,
            }
            for lost_step in rollback.lost
            if lost_step.kind == "batch"
        ]
        last = max(rollback.batches, default=0)
        self._write(BATCH_METADATA_STORE, rows, step=step, batch_id=last, operation="roll_back", owner=None)

    def start_after(self, batch_id: int, *, owner: Step) -> None:
        """Marks all batches up to `batch_id` as complete in a newly created ledger, without a row for each."""
        for name in (BATCH_METADATA_STORE, CHECKPOINT_STORE):
            step = self._step(name, batch_id)
            self._write(name, [], step=step, batch_id=batch_id, operation="begin_ledger", owner=owner)

    def complete(self, batch: PreparedBatch, steps: Sequence[StepOutcome], *, owner: Step) -> None:
        """Records the batch as complete. Step rows are written first, so a complete batch always has them."""
        now = utc_now()
        shared = {"pipeline": batch.pipeline, "generation": batch.generation, "batch_id": batch.batch_id}
        self._append(BATCH_METADATA_STORE, batch, [{**shared, **asdict(step), "at": now} for step in steps], owner)
        row = {
            **shared,
            "spark_batch_id": batch.spark_batch_id,
            "checkpoint": batch.checkpoint,
            "owner_epoch": owner.version,
            "run": batch.run,
            "job_state": "complete",
            "start_offset": json.dumps(batch.offsets.get("start")),
            "end_offset": json.dumps(batch.offsets.get("end")),
            "source_metadata": json.dumps(batch.source),
            "spec_fingerprint": batch.spec_fingerprint,
            "code_version": batch.code_version,
            "rows": batch.rows,
            "quarantined": batch.quarantined,
            "prepared_at": parse_iso(batch.prepared_at),
            "completed_at": now,
        }
        self._append(CHECKPOINT_STORE, batch, [row], owner)

    def _append(self, name: str, batch: PreparedBatch, rows: list[dict[str, Any]], owner: Step) -> None:
        step = self._step(name, batch.batch_id)
        self._write(name, rows, step=step, batch_id=batch.batch_id, operation="complete_batch", owner=owner)

    def _write(
        self, name: str, rows: list[dict[str, Any]], *, step: Step, batch_id: int, operation: str, owner: Step | None
    ) -> None:
        schema = CHECKPOINT_STORE_SCHEMA if name == CHECKPOINT_STORE else BATCH_METADATA_SCHEMA
        self._lake.append(
            self._tables[name],
            self._keys[name],
            pa.Table.from_pylist(rows, schema=schema),
            step=step,
            owner=owner,
            user_metadata=user_metadata(
                pipeline=self._pipeline,
                batch=batch_id,
                operation=operation,
                step=step.app_id,
                step_version=step.version,
            ),
        )


#: Outcomes whose `delta_version` is the version that committed the batch.
_COMMIT_OUTCOMES = ("committed", "caught_up")


@dataclass(frozen=True, slots=True)
class CommittedBatches:
    """Batches committed to one table: the last batch per generation, and the generation and batch of each table
    version.

    The attribute `rows` has the total of all batches.
    """

    last_by_generation: Mapping[int, int]
    by_version: Mapping[int, tuple[int, int]]
    rows: int

    def __bool__(self) -> bool:
        return bool(self.last_by_generation)


def tables_with_rows(lake: Lake, home: PipelineHome) -> set[str]:
    """Returns the tables of a pipeline, except the archive, that have had a row since its last start-over.

    A prepared batch counts: its rows will be committed.
    """
    generation = home.generations.current()
    last = read_last_completed(lake, home.pipeline, generation)
    prepared = home.prepared.read(generation, 0 if last is None else last + 1)
    names = {table.table for table in (prepared.tables if prepared else ()) if table.rows}
    key = paths.batch_metadata_store(home.pipeline)
    store = lake.open(key)
    if store is not None:
        values = {"generation": [generation]}
        rows = select_rows(lake, key, store, columns=["table_name", "rows"], values=values)
        names |= {row["table_name"] for row in rows if row["rows"]}
    # Rows of other writers, and of batches whose ledger rows have expired.
    current = home.specs.current()
    for name in (table.name for table in (current.tables if current else ())):
        table = lake.open(home.table(name))
        if table is not None and table.file_uris():
            names.add(name)
    return names - {ARCHIVE}


def committed_batches(lake: Lake, home: PipelineHome, table: str) -> CommittedBatches:
    """Reads the table's committed batches from the ledger, without held ones; empty if there is no ledger."""
    key = paths.batch_metadata_store(home.pipeline)
    store = lake.open(key)
    if store is None:
        return CommittedBatches({}, {}, 0)
    columns = ["generation", "batch_id", "table_name", "outcome", "delta_version", "rows"]
    rows = select_rows(lake, key, store, columns=columns, values={"table_name": [table]})
    current = home.generations.current()
    last_surviving = {
        generation: home.start_overs.last_surviving_batch(generation, current=current)
        for generation in {row["generation"] for row in rows}
    }
    held = set(batches_by_table(held_commit_steps(rows)).get(table, ()))
    last: dict[int, int] = {}
    by_version: dict[int, tuple[int, int]] = {}
    count = 0
    for row in rows:
        generation, batch = row["generation"], row["batch_id"]
        bound = last_surviving[generation]
        if batch in held or not row["rows"] or (bound is not None and batch > bound):
            continue
        last[generation] = max(last.get(generation, -1), batch)
        if row["outcome"] in _COMMIT_OUTCOMES and row["delta_version"] is not None:
            by_version[row["delta_version"]] = (generation, batch)
            count += int(row["rows"])
    return CommittedBatches(last, by_version, count)


def lost_versions(committed: CommittedBatches, state: TableState, pipeline: str, table: str) -> list[int]:
    """Returns the recorded versions whose batches are missing in the table's newest state, because the end of its log
    was lost.
    """
    versions = []
    for version, (generation, batch) in committed.by_version.items():
        app_id = batch_step(pipeline, generation, table, batch).app_id
        if version > state.version and state.transactions.get(app_id, -1) < batch:
            versions.append(version)
    return sorted(versions)
