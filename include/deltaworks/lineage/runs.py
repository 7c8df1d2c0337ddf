"""Lineage runs of streams, gold builds and mutations, from start to end.

Each is a context manager. The block runs in the same way with and without lineage.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from deltaworks.control.clock import iso_now
from deltaworks.control.error_redaction import redact_values
from deltaworks.lineage.datasets import (
    Dataset,
    distinct_datasets,
    mutation_inputs,
    mutation_outputs,
    stream_inputs,
    stream_outputs,
)
from deltaworks.lineage.emitter import Emitter
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment import LineageSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: `namespace/job/run id` of the Airflow task, set by its OpenLineage provider.
PARENT_VARIABLE = "OPENLINEAGE_PARENT_ID"
#: Maximum time that a job waits at its end for unsent events.
CLOSE_SECONDS = 5.0
_ERROR_LENGTH = 2_000
#: Function that returns the datasets of a run, given its written tables with row counts.
Datasets = Callable[[Mapping[str, int | None]], Sequence[Dataset]]
#: Function that does the same for any pipeline.
PipelineDatasets = Callable[[Catalog, str, Mapping[str, int | None]], Sequence[Dataset]]
#: Kinds of batch jobs, which are also the suffix of job names: gold builds and mutation batches.
BatchJob = Literal["gold", "mutations"]


class WrittenTables:
    """The tables that a block has written so far, with row counts."""

    def __init__(self) -> None:
        self.tables: dict[str, int | None] = {}

    def add(self, table: str, rows: int | None = None) -> None:
        """Records a written table and its row count."""
        previous = self.tables.get(table)
        self.tables[table] = rows if previous is None else previous + (rows or 0)


@dataclass(slots=True)
class LineageRun:
    """A run of one job. Its events contain the tables written so far, and are created in the emitter's thread."""

    spec: LineageSpec
    emitter: Emitter
    job: str
    kind: str
    inputs: Datasets
    outputs: Datasets
    written: WrittenTables = field(default_factory=WrittenTables)
    run_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    _reported_at: float = field(default_factory=time.monotonic)
    _ended: bool = False

    def emit(self, state: str, *, error: str = "") -> None:
        """Queues an event of the run."""
        self._ended = state in ("COMPLETE", "FAIL")
        at, written = iso_now(), dict(self.written.tables)
        parent = os.environ.get(PARENT_VARIABLE, "")

        def create_event() -> Any:
            from deltaworks.lineage.events import build_event

            return build_event(
                state,
                at=at,
                run_id=self.run_id,
                namespace=self.spec.namespace,
                job=self.job,
                kind=self.kind,
                inputs=list(distinct_datasets(self.inputs(written))),
                outputs=list(distinct_datasets(self.outputs(written))),
                parent=parent,
                error=error,
            )

        self.emitter.emit(create_event)

    def emit_running(self) -> None:
        """Queues a RUNNING event, at most once per interval and not after the end."""
        now = time.monotonic()
        if not self._ended and now - self._reported_at >= self.spec.every_seconds:
            self._reported_at = now
            self.emit("RUNNING")


@contextlib.contextmanager
def _open_emitter(spec: LineageSpec) -> Iterator[Emitter]:
    def open_sender() -> Callable[[Any], None]:
        from deltaworks.lineage.events import open_client

        return open_client(spec)

    emitter = Emitter(open_sender)
    try:
        yield emitter
    finally:
        emitter.close(seconds=CLOSE_SECONDS)


@contextlib.contextmanager
def _reported(runs: Sequence[LineageRun]) -> Iterator[None]:
    for run in runs:
        run.emit("START")
    try:
        yield
    except BaseException as error:
        for run in runs:
            run.emit("FAIL", error=redact_values(f"{type(error).__name__}: {error}")[:_ERROR_LENGTH])
        raise
    for run in runs:
        run.emit("COMPLETE")


@contextlib.contextmanager
def stream_lineage(spark: SparkSession, catalog: Catalog, pipelines: Sequence[str]) -> Iterator[None]:
    """Emits the runs of streams while the block runs them: start, progress and end.

    Does nothing if the environment declares no lineage.

    Args:
        pipelines: one, or the members of a group.
    """
    spec = catalog.environment.lineage
    if spec is None:
        yield
        return
    from deltaworks.engine.queries import IngestListener, listener_attached

    with _open_emitter(spec) as emitter, contextlib.ExitStack() as stack:
        runs = [_stream_run(spec, emitter, catalog, name) for name in pipelines]
        for name, run in zip(pipelines, runs, strict=True):
            listener = IngestListener(
                f"{name}.ingest",
                on_progress=lambda _progress, run=run: run.emit_running(),  # type: ignore[misc]
                on_idle=lambda: None,
                on_terminated=lambda _error: None,
            )
            stack.enter_context(listener_attached(spark, listener))
        stack.enter_context(_reported(runs))
        yield


def _stream_run(spec: LineageSpec, emitter: Emitter, catalog: Catalog, name: str) -> LineageRun:
    pipeline = catalog.pipeline(name)
    return LineageRun(
        spec,
        emitter,
        f"{name}.stream",
        "STREAMING",
        inputs=lambda _: stream_inputs(catalog, pipeline),
        outputs=lambda _: stream_outputs(catalog, pipeline),
    )


@contextlib.contextmanager
def batch_lineage(catalog: Catalog, pipeline: str, job: BatchJob) -> Iterator[WrittenTables]:
    """Emits the run of a batch job: its start, and at its end the written tables with column origins.

    Does nothing if the environment declares no lineage.
    """
    spec = catalog.environment.lineage
    if spec is None:
        yield WrittenTables()
        return
    inputs, outputs = _datasets_of(job)
    with _open_emitter(spec) as emitter:
        run = LineageRun(
            spec,
            emitter,
            f"{pipeline}.{job}",
            "BATCH",
            inputs=lambda written: inputs(catalog, pipeline, written),
            outputs=lambda written: outputs(catalog, pipeline, written),
        )
        with _reported([run]):
            yield run.written


def _datasets_of(job: BatchJob) -> tuple[PipelineDatasets, PipelineDatasets]:
    """Returns the functions for a job's inputs and outputs."""
    if job == "mutations":
        return mutation_inputs, mutation_outputs
    # Imported lazily: it imports the table reader.
    from deltaworks.lineage.gold import gold_inputs, gold_outputs

    return gold_inputs, gold_outputs
