"""Plans a reprocess: what is read again, into which tables, and whether that can be done now; and counts it beforehand.

Nothing is written here, and no Spark is needed. The count of rows that come out is exact; that of rows that go in is
exact where all objects are read, and else an estimate from a sample of them, by bytes.
"""

from __future__ import annotations

import getpass
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deltaworks import __version__
from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import ObjectStore
from deltaworks.control.provenance import current_run
from deltaworks.control.records.reprocess import ReprocessPlan
from deltaworks.engine.announcements import announcers
from deltaworks.engine.history import BatchHistory
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError
from deltaworks.events.parse import Payload
from deltaworks.events.reasons import QUARANTINE
from deltaworks.rework.reprocess.reread import Rereader, RereadScope
from deltaworks.rework.reprocess.selection import Resolved, Resolver, Selection, SeqRanges, SourceObject
from deltaworks.sources.objects.payloads import FileOpener, FileReference
from deltaworks.specs.effects import Effect
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources.declared import objects_of
from deltaworks.tables.lake import Lake

SAMPLED_OBJECTS = 20
#: A table that another job had its turn on catches up within a batch or two; a suspended one does not.
HELD_WAIT_SECONDS = 60.0
_POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReprocessRequest:
    """What to read again, into which tables. No `tables` means all of them, and quarantine."""

    selection: Selection
    tables: tuple[str, ...] = ()
    shadow: bool = False
    allow_missing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCount:
    """Rows of one table before and after. `rows_out` is None where the table is only to be read by Spark."""

    table: str
    rows_out: int | None
    rows_in: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReprocessCount:
    """What a reprocess would do. `exact` is whether all objects were read; `gone` are keys that could not be."""

    objects: int
    bytes: int
    up_to_batch: int
    ranges: int
    read: int
    exact: bool
    gone: tuple[str, ...]
    not_fitting: int
    tables: tuple[TableCount, ...]


class Planner:
    """Plans reprocesses of one pipeline. Used by one thread."""

    def __init__(
        self, lake: Lake, objects: ObjectStore, spec: PipelineSpec, *, held_wait_seconds: float = HELD_WAIT_SECONDS
    ) -> None:
        self._held_wait_seconds = held_wait_seconds
        self._lake = lake
        self._objects = objects
        self._home = PipelineHome(objects, spec.pipeline)
        self._spec = spec

    def plan(self, reprocess_id: str, request: ReprocessRequest) -> ReprocessPlan:
        """The plan of a new reprocess.

        Raises:
            ConfigError: TABLE_UNKNOWN, REPROCESS_EMPTY, REPROCESS_SCATTERED, REPROCESS_SELECTION.
            ContractError: REPROCESS_SPEC_DIFFERS, REPROCESS_MUTABLE.
        """
        check_tables(self._spec, request.tables)
        if not request.shadow:
            check_unchanged(self._spec, request.tables)
            # Before batches are looked at: all that are prepared after this know the tables as they are declared now.
            check_running_spec(self._objects, self._spec)
        resolved = Resolver(self._lake, self._objects, self._spec).resolve(request.selection)
        return ReprocessPlan(
            pipeline=self._spec.pipeline,
            id=reprocess_id,
            mode="shadow" if request.shadow else "in_place",
            tables=request.tables or tuple(table.name for table in self._spec.event_tables),
            whole=not request.tables,
            selection=request.selection.as_record(),
            up_to_batch=resolved.up_to_batch,
            ranges=resolved.ranges.ranges,
            objects=len(resolved.objects),
            source_bytes=resolved.bytes,
            allow_missing=request.allow_missing,
            spec_fingerprint=self._spec.fingerprint(),
            code_version=__version__,
            by=getpass.getuser(),
            run=current_run(),
            at=iso_now(),
            generation=self._home.generations.current(),
        )

    def check(self, plan: ReprocessPlan) -> None:
        """Refuse a plan that cannot be begun or resumed as things are.

        Raises:
            ContractError: REPROCESS_SPEC_DIFFERS, REPROCESS_GENERATION_OVER.
            ConcurrencyError: REPROCESS_TABLE_HELD.
        """
        generation = self._home.generations.current()
        if plan.generation != generation:
            raise ContractError(
                "REPROCESS_GENERATION_OVER",
                f"Reprocess {plan.id!r} was planned for generation {plan.generation}; {plan.pipeline!r} has started "
                f"over since, in generation {generation}.",
                hint="Nothing is left to do for it; begin a new reprocess under another id.",
            )
        if not self._home.specs.is_same(plan.spec_fingerprint, self._spec):
            raise ContractError(
                "REPROCESS_SPEC_DIFFERS",
                f"Reprocess {plan.id!r} was planned with another pipeline.yaml ({plan.spec_fingerprint}).",
                hint="Put that one back, or begin a new reprocess under another id.",
            )
        if plan.mode == "shadow":
            return
        check_running_spec(self._objects, self._spec)
        deadline = time.monotonic() + self._held_wait_seconds
        while held := self._held(plan):
            if time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
                continue
            raise ConcurrencyError(
                "REPROCESS_TABLE_HELD",
                f"{', '.join(held)} of {plan.pipeline!r} waits for rows of batches that are to be read again.",
                hint="Let it catch up first: `deltaworks tables resume`.",
            )

    def _held(self, plan: ReprocessPlan) -> list[str]:
        """Tables of the plan that wait for rows of its batches, which would come beside the new ones."""
        batches = BatchHistory(self._lake, self._objects, self._spec).complete(last=plan.up_to_batch)
        return sorted({table for batch in batches for table in batch.held} & {*plan.tables, QUARANTINE})

    def count(
        self, request: ReprocessRequest, opener: Callable[[FileReference], Payload], *, exact: bool = False
    ) -> ReprocessCount:
        """What the request would do.

        Args:
            opener: reads an object.
            exact: read all objects, instead of at most SAMPLED_OBJECTS.

        Raises:
            What `plan` raises.
        """
        plan = self.plan("count", request)
        ranges = SeqRanges(plan.ranges)
        resolved = Resolver(self._lake, self._objects, self._spec).within(ranges, up_to_batch=plan.up_to_batch)
        chosen = resolved.objects if exact else _sample(resolved.objects)
        names = [*plan.tables, *([QUARANTINE] if plan.whole else [])]
        rereader = Rereader(self._spec, RereadScope(frozenset(names), plan.whole), opener)
        rows: Counter[str] = Counter()
        for table, part in rereader.rows(chosen):
            rows[table] += part.num_rows
        factor = _factor(resolved, chosen)
        return ReprocessCount(
            objects=plan.objects,
            bytes=plan.source_bytes,
            up_to_batch=plan.up_to_batch,
            ranges=len(plan.ranges),
            read=len(chosen),
            exact=len(chosen) == len(resolved.objects),
            gone=tuple(rereader.did.gone.values()),
            not_fitting=round(rereader.did.not_fitting * factor),
            tables=tuple(
                TableCount(table=name, rows_out=self._rows_out(name, ranges), rows_in=round(rows[name] * factor))
                for name in names
            ),
        )

    def _rows_out(self, table: str, ranges: SeqRanges) -> int | None:
        key = paths.table(self._spec.pipeline, table)
        try:
            rows = self._lake.rows(key, columns=["_seq"], filters=ranges.expression())
        except Exception:  # a table with features only Spark reads; the count is for people
            return None
        return 0 if rows is None else int(rows.num_rows)


def _sample(objects: Sequence[SourceObject]) -> list[SourceObject]:
    """Objects spread evenly over all."""
    if len(objects) <= SAMPLED_OBJECTS:
        return list(objects)
    return [objects[at * len(objects) // SAMPLED_OBJECTS] for at in range(SAMPLED_OBJECTS)]


def _factor(resolved: Resolved, chosen: Sequence[SourceObject]) -> float:
    """How many times the sample all objects are, by bytes."""
    read = sum(source.size for source in chosen)
    return resolved.bytes / read if read else len(resolved.objects) / max(1, len(chosen))


def landing_opener(environment: EnvironmentSpec, spec: PipelineSpec) -> FileOpener:
    """Opens objects of the landing bucket as the pipeline's stream does."""
    source = objects_of(spec.source, pipeline=spec.pipeline, refused="there is nothing to read again")
    return FileOpener.of(environment.landing, source)


def check_tables(spec: PipelineSpec, tables: tuple[str, ...]) -> None:
    """Refuse names that are no bronze tables.

    Raises:
        ConfigError: TABLE_UNKNOWN.
    """
    bronze = [table.name for table in spec.event_tables]
    unknown = [name for name in tables if name not in bronze]
    if unknown:
        raise ConfigError(
            "TABLE_UNKNOWN",
            f"Pipeline {spec.pipeline!r} has no bronze table {', '.join(unknown)}.",
            hint=f"Its bronze tables are {', '.join(bronze)}.",
        )


def check_unchanged(spec: PipelineSpec, tables: tuple[str, ...]) -> None:
    """Refuse to replace rows that mutations change, or that were announced to others: both would be undone.

    Raises:
        ContractError: REPROCESS_MUTABLE.
    """
    announcing = announcers(spec)
    concerned = [table for table in spec.event_tables if not tables or table.name in tables]
    named = [table.name for table in concerned if table.mutable is not None or table.name in announcing]
    if named:
        raise ContractError(
            "REPROCESS_MUTABLE",
            f"{', '.join(named)} of {spec.pipeline!r} holds rows that mutations have changed or that were announced.",
            hint="Reprocess other tables with --tables, or these into a shadow; mutations do not touch a shadow.",
        )


def check_running_spec(objects: ObjectStore, spec: PipelineSpec) -> None:
    """Refuse to reprocess in place with another declaration than the stream lands rows with.

    Raises:
        ContractError: REPROCESS_SPEC_DIFFERS.
    """
    records = PipelineHome(objects, spec.pipeline).specs
    different = [change.field for change in records.changes(spec) if change.effect is not Effect.SAFE]
    if records.current() is None:
        # Landed by an earlier release, or never: with which declaration the next batch is parsed is unknown.
        different = ["no start is on record"]
    if different:
        raise ContractError(
            "REPROCESS_SPEC_DIFFERS",
            f"The stream of {spec.pipeline!r} has not started with this pipeline.yaml: {', '.join(different)}.",
            hint="Restart the stream first, or what lands meanwhile keeps to the old declaration; or use a shadow.",
        )
