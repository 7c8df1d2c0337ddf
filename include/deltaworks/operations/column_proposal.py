"""Columns proposed for the tables of a pipeline, out of a bounded sample of what lies in its landing bucket.

Nothing is read from the log or the queue, and nothing is written: objects are listed and read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from deltaworks.events.columns import Misfit
from deltaworks.events.events import EventReader, Router
from deltaworks.events.formats.registry import framer
from deltaworks.events.inference.column_types import Columns, Conflict, Shape, columns_of
from deltaworks.events.inference.hints import Hint, with_hints
from deltaworks.events.inference.sampling import Sample, Sampler
from deltaworks.events.parse import Payload
from deltaworks.sources.objects.payloads import FileOpener, FileReference
from deltaworks.sources.objects.relay.bucket import list_pages
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources.declared import objects_of
from deltaworks.specs.sources.objects import FileSourceSpec
from deltaworks.specs.table import TableSpec
from deltaworks.specs.types import ColumnType, Struct


@dataclass(frozen=True, slots=True)
class ProposedColumn:
    """A column, and how many of the table's events have its field. `declared`: the table has a column of this path."""

    name: str
    path: str
    kind: ColumnType
    events: int
    declared: bool


@dataclass(frozen=True, slots=True)
class TableProposal:
    """The columns of one table. `conflicts` are values they do not take."""

    table: str
    events: int
    columns: tuple[ProposedColumn, ...]
    conflicts: tuple[Conflict, ...]


@dataclass(slots=True)
class Proposal:
    """The proposal by table, and what belongs to none. `unread` values are no events of the pipeline."""

    tables: list[TableProposal] = field(default_factory=list)
    unrouted: Counter[str] = field(default_factory=Counter)
    objects: int = 0
    unread: int = 0


def propose(
    catalog: Catalog, pipeline: str, *, hints: tuple[Hint, ...] = (), max_files: int, max_bytes: int
) -> Proposal:
    """Look at the first objects of a pipeline's place, in the order of their keys.

    Raises:
        ContractError: SOURCE_HAS_NO_OBJECTS.
        ConfigError: LISTING_REFUSED, OBJECT_FORBIDDEN.
    """
    spec = catalog.pipeline(pipeline)
    source = objects_of(spec.source, pipeline=pipeline, refused="no columns can be proposed")
    files = islice(_listed(catalog, source), max_files)
    return propose_from(spec, source, map(FileOpener.of(catalog.environment.landing, source), files), hints, max_bytes)


def propose_from(
    spec: PipelineSpec, source: FileSourceSpec, payloads: Iterable[Payload], hints: tuple[Hint, ...], max_bytes: int
) -> Proposal:
    """The proposal out of payloads, until they have held `max_bytes`."""
    look = _Look(spec, source)
    held = 0
    for payload in payloads:
        look.take(payload)
        held += len(payload.data or b"")
        if held >= max_bytes:
            break
    look.proposal.tables = [
        _of_table(table, spec, look.shapes[table.name], look.declared(), hints)
        for table in spec.event_tables
        if table.name in look.shapes
    ]
    return look.proposal


def _listed(catalog: Catalog, source: FileSourceSpec) -> Iterator[FileReference]:
    landing = catalog.environment.landing.of_bucket(source.bucket)
    for page in list_pages(landing, source.bucket, prefix=source.prefix, glob=source.glob):
        yield from (FileReference(0, event.key, event.etag, event.version_id) for event in page)


class _Look:
    """Takes events to the shapes of their tables."""

    def __init__(self, spec: PipelineSpec, source: FileSourceSpec) -> None:
        self._reader, self._router = EventReader(spec), Router(spec)
        self._frame = framer(source)
        self._sampler = Sampler(source, typed=True)
        self._declared = Sample()
        self.shapes: dict[str, Shape] = {}
        self.proposal = Proposal()

    def declared(self) -> Columns:
        """The columns that self-describing objects declare, which tell times from texts."""
        return columns_of(self._declared.shape)

    def take(self, payload: Payload) -> None:
        """Look at one payload."""
        self.proposal.objects += 1
        if self._sampler.declares_columns:
            self._sampler.add(self._declared, payload)
        try:
            for value, _ in self._reader.spread(self._frame(payload.data or b"")):
                self._take_event(value)
        except Misfit:  # this payload cannot be read
            self.proposal.unread += 1

    def _take_event(self, value: object) -> None:
        try:
            event = self._reader.event(value)
        except Misfit:
            self.proposal.unread += 1
            return
        try:
            name = self._reader.name(event)
        except Misfit:
            self.proposal.unrouted["(no name)"] += 1
            return
        try:
            tables = self._router.tables(event, name)
        except Misfit:
            self.proposal.unrouted[name] += 1
            return
        for table in tables:
            self._sampler.note(self.shapes.setdefault(table, Shape()), event)


def _of_table(
    table: TableSpec, spec: PipelineSpec, shape: Shape, declared: Columns, hints: tuple[Hint, ...]
) -> TableProposal:
    conflicts: list[Conflict] = []
    inferred = columns_of(shape, conflicts=conflicts)
    types = with_hints({name: declared.get(name, kind) for name, kind in inferred.items()}, hints)
    envelope = {spec.event.time.path, spec.event.name.path, *spec.event.id}
    declared_names = {column.path: column.name for column in table.columns}
    taken = set(table.column_types())
    columns = []
    for path, kind, events in _leaves(shape, types, ()):
        text = ".".join(path)
        if text in envelope or any("." in part for part in path):
            continue
        name = declared_names.get(text) or _free_name(path, taken)
        taken.add(name)
        columns.append(ProposedColumn(name, text, kind, events, text in declared_names))
    return TableProposal(table.name, shape.values, tuple(columns), tuple(conflicts))


def _leaves(
    shape: Shape, types: Mapping[str, ColumnType], above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], ColumnType, int]]:
    for name, kind in types.items():
        inner = shape.fields.get(name, Shape())
        if isinstance(kind, Struct):
            yield from _leaves(inner, dict(kind.fields), (*above, name))
        else:
            yield (*above, name), kind, inner.values


def _free_name(path: tuple[str, ...], taken: set[str]) -> str:
    """A free name: the field's own in snake case, or its path's, or that with a number."""
    own = [re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", part).strip("_").lower() or "field" for part in path]
    for name in (own[-1], "_".join(own), *(f"{'_'.join(own)}_{number}" for number in range(2, 1_000))):
        fitting = name if name[0].isalpha() else f"f_{name}"
        if fitting not in taken:
            return fitting
    return f"{'_'.join(own)}_{len(taken)}"
