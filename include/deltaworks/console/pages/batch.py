"""The page of a batch: duration of its phases, rows per table, and the objects it read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from textwrap import shorten
from typing import Any

from deltaworks.console.page_context import PageContext, PageMissingError, parse_instant, read_or_none
from deltaworks.console.pages.base import Page
from deltaworks.console.rendering import NO_VALUE
from deltaworks.control import paths
from deltaworks.control.health.heartbeat import read_heartbeat
from deltaworks.control.provenance import airflow_run_of
from deltaworks.control.records.generations import GenerationStore
from deltaworks.control.records.prepared import PreparedBatch, PreparedBatches, PreparedTable
from deltaworks.control.summaries.stream import BatchSummary, read_recent

_FACTS_SHOWN = 40
_FACT_LENGTH = 300
#: Facts that are lists of a reason, places and a number of events.
_COUNTED_FACTS = ("rejected", "rejected_events")
#: Internal facts about a batch's input, which are not shown.
_INTERNAL_FACTS = ("arrived_us", "dropped_sequence_numbers")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCommit:
    """A batch's commit to one table. The outcome is `held` while commits to the table are held."""

    table: str
    writer: str
    outcome: str
    rows: int
    files: int
    bytes: int
    new_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchView:
    """Content of the batch page.

    The durations of phases are None if the batch is not among the recent ones. If maintenance has removed the prepared
    batch, `shares` is empty.
    """

    pipeline: str
    batch_id: int
    generation: int
    state: str
    at: datetime | None
    rows: int
    quarantined: int
    prepare_seconds: float | None
    commit_seconds: float | None
    complete_seconds: float | None
    shares: tuple[TableCommit, ...]
    facts: tuple[tuple[str, str], ...]
    offsets: tuple[tuple[str, str], ...]
    owner_epoch: int | None
    spec: str
    code: str
    dag_id: str
    run_id: str
    previous_batch: int | None
    next_batch: int | None


def view(context: PageContext) -> BatchView:
    """Returns the page of a batch.

    Raises:
        PageMissingError: the batch does not exist, or only its rows are left.
    """
    name, number = context.pipeline, context.values["batch"]
    if not (number.isascii() and number.isdigit()) or len(number) > 12:
        raise PageMissingError(f"{number!r} is not a batch number.")
    batch_id = int(number)
    context.objects.fetch(
        [paths.generations(name), paths.recent_batches(name), paths.heartbeat(paths.pipeline_control(name))]
    )
    generations = read_or_none(lambda: GenerationStore(context.objects, name).effective())
    generation = generations.generation if generations else 1
    prepared = read_or_none(lambda: PreparedBatches(context.objects, name).read(generation, batch_id))
    recent = read_or_none(lambda: read_recent(context.objects, name))
    summary = next((item for item in recent.batches if item.batch_id == batch_id), None) if recent else None
    if prepared is None and summary is None:
        raise PageMissingError(
            f"Batch {batch_id} of {name} has no record besides its rows; `deltaworks batches {name}` reads the ledger."
        )
    heartbeat = read_or_none(lambda: read_heartbeat(context.objects, paths.heartbeat(paths.pipeline_control(name))))
    newest = heartbeat.batch_id if heartbeat else None
    held = {str(item.get("table")): item.get("since_batch", 0) for item in heartbeat.held} if heartbeat else {}
    is_complete = summary is not None or (newest is not None and batch_id <= newest)
    return BatchView(
        pipeline=name,
        batch_id=batch_id,
        generation=generation,
        state="complete" if is_complete else "prepared",
        at=parse_instant(summary.at if summary else prepared.prepared_at if prepared else None),
        rows=prepared.rows if prepared else summary.rows if summary else 0,
        quarantined=prepared.quarantined if prepared else summary.quarantined if summary else 0,
        **_phases(summary),
        shares=tuple(_share(table, batch_id, held, is_complete=is_complete) for table in prepared.tables)
        if prepared
        else (),
        facts=_pairs(prepared.source) if prepared else (),
        offsets=_pairs(prepared.offsets) if prepared else (),
        **_provenance(prepared),
        previous_batch=batch_id - 1 if batch_id > 0 else None,
        next_batch=batch_id + 1 if newest is not None and batch_id < newest else None,
    )


def _phases(summary: BatchSummary | None) -> dict[str, Any]:
    names = ("prepare_seconds", "commit_seconds", "complete_seconds")
    return {name: getattr(summary, name) if summary else None for name in names}


def _provenance(prepared: PreparedBatch | None) -> dict[str, Any]:
    if prepared is None:
        return {"owner_epoch": None, "spec": "", "code": "", "dag_id": "", "run_id": ""}
    dag_id, run_id = airflow_run_of(prepared.run)
    return {
        "owner_epoch": prepared.owner_epoch,
        "spec": prepared.spec_fingerprint,
        "code": prepared.code_version,
        "dag_id": dag_id,
        "run_id": run_id,
    }


def _share(table: PreparedTable, batch_id: int, held: dict[str, Any], *, is_complete: bool) -> TableCommit:
    since = held.get(table.table)
    is_held = isinstance(since, int) and batch_id >= since
    return TableCommit(
        table=table.table,
        writer=table.writer,
        outcome="held" if is_held else "committed" if is_complete else "prepared",
        rows=table.rows,
        files=len(table.files),
        bytes=sum(int(file.get("size") or file.get("bytes") or 0) for file in table.files),
        new_columns=tuple(str(column.get("name", "")) for column in table.new_columns),
    )


def _pairs(record: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Returns the recorded facts about a source as pairs of texts. Each kind of source has its own names and values."""
    shown = [
        (str(name).replace("_", " "), shorten(_fact_text(str(name), value), _FACT_LENGTH, placeholder=" …"))
        for name, value in record.items()
        if name not in _INTERNAL_FACTS
    ]
    return tuple(shown[:_FACTS_SHOWN])


def _fact_text(name: str, value: Any) -> str:
    """Formats a recorded value in words: `malformed: 13, missing_required at eventParams: 4`."""
    if name in _COUNTED_FACTS and isinstance(value, list | tuple):
        counts = [one for one in value if isinstance(one, list | tuple) and len(one) > 1]
        places = [(code, " ".join(filter(None, at)), events) for code, *at, events in counts]
        return ", ".join(f"{code} at {at}: {events}" if at else f"{code}: {events}" for code, at, events in places)
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: NO_VALUE}[value]
    if isinstance(value, dict):
        return ", ".join(f"{key} {_fact_text('', item)}" for key, item in value.items()) or NO_VALUE
    if isinstance(value, list | tuple):
        return ", ".join(_fact_text("", item) for item in value) or NO_VALUE
    return str(value)


PAGE = Page(name="batch", route="/streams/{pipeline}/batches/{batch}", title="Batch {batch} of {pipeline}", view=view)
