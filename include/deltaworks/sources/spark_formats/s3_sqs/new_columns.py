"""New fields in a query whose columns were found, not given: told by an error that a restart mends, or somebody must.

Spark asks a source for its columns when a query is planned: a new one can show only in the query that is planned next.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from deltaworks.errors import ContractError, TransientError
from deltaworks.events.inference.column_types import Conflict, columns_of, new_paths, with_added
from deltaworks.events.inference.hints import parse_hints, with_hints
from deltaworks.events.inference.sampling import Sample, Sampler
from deltaworks.events.inference.shapes import Shape
from deltaworks.events.inference.versions import SchemaVersion
from deltaworks.events.parse import Payload
from deltaworks.sources.objects.planning import patiently
from deltaworks.sources.spark_formats.s3_sqs.inferred_schema import schema_versions
from deltaworks.sources.spark_formats.s3_sqs.options import FORMAT
from deltaworks.sources.spark_formats.s3_sqs.schema_options import EvolutionMode, SchemaOptions
from deltaworks.specs.source import FileSourceSpec


class NewFields(Exception):
    """A payload has a field that could be a column and is none yet."""


class ColumnWatch:
    """Tells whether events have fields for new columns, and ends the query that met some. One per task."""

    def __init__(self, version: SchemaVersion, inference: SchemaOptions, source: FileSourceSpec) -> None:
        self._version = version
        self._inference = inference
        self._source = source
        self._sampler = Sampler(source, typed=inference.typed)
        self._columns = version.columns()

    def check_event(self, event: Mapping[str, Any]) -> None:
        """Look at an event that has something no column takes.

        Raises:
            NewFields: it could be a column.
        """
        if not self._sampler.declares_columns:
            shape = Shape()
            self._sampler.note(shape, event)
            self._check(self._version, shape)

    def check_payload(self, payload: Payload) -> None:
        """Look at the columns an object declares, where its form does that.

        Raises:
            NewFields: one is new.
        """
        if self._sampler.declares_columns:
            self._check(self._version, self._sampler.sample([payload], max_bytes=1).shape)

    def _check(self, version: SchemaVersion, shape: Shape) -> None:
        if self._with(version, shape) != self._columns:
            raise NewFields

    def _with(self, version: SchemaVersion, shape: Shape) -> dict[str, Any]:
        found = with_added(version.found, shape, typed=self._inference.typed)
        return with_hints(found, parse_hints(version.hints))

    def end_query(self, met_in: str, payloads: Iterable[Payload]) -> TransientError | ContractError:
        """The error that ends the query, once all new columns of some payloads are known and, where they are to be
        added, kept.

        Args:
            met_in: the object with the new field, for people.
            payloads: that object's first, then others of the same task; they are looked at as a sample is.
        """
        sample = self._sampler.sample(payloads, max_bytes=self._inference.sample_bytes)
        if self._inference.mode is EvolutionMode.FAIL_ON_NEW_COLUMNS:
            return self._refused(met_in, new_paths(self._columns, self._with(self._version, sample.shape)))
        newest = patiently(lambda: schema_versions(self._inference).change(lambda found: self._next(found, sample)))
        return self._added(met_in, newest, new_paths(self._columns, newest.columns()))

    def _next(self, newest: SchemaVersion | None, sample: Sample) -> SchemaVersion | None:
        # The versions were there when the query began; without them it goes on from its own.
        base = newest or self._version
        columns = self._with(base, sample.shape)
        if newest is not None and columns == newest.columns():
            return None
        conflicts: list[Conflict] = []
        columns_of(sample.shape, typed=self._inference.typed, conflicts=conflicts)
        return dataclasses.replace(
            base,
            found=with_added(base.found, sample.shape, typed=self._inference.typed),
            added=tuple(new_paths(base.columns(), columns)),
            conflicts=tuple(map(str, conflicts)),
            sample=sample.record(),
        )

    def _added(self, met_in: str, newest: SchemaVersion, added: list[str]) -> TransientError:
        return TransientError(
            "SCHEMA_COLUMNS_ADDED",
            f"{FORMAT}: {met_in} has fields that the columns this query began with do not take: {', '.join(added)}. "
            f"Version {newest.number} of the schema at {self._inference.location.root} has them.",
            hint="Start the query again, from .load() on: it reads this batch again, with the new columns. Nothing is "
            "lost. A job that is restarted when it fails goes on by itself; the table it writes to has to take new "
            "columns (mergeSchema).",
        )

    def _refused(self, met_in: str, added: list[str]) -> ContractError:
        hints = ", ".join(added)
        return ContractError(
            "SCHEMA_COLUMNS_NEW",
            f"{FORMAT}: {met_in} has fields that no column takes: {hints}. schemaEvolutionMode is failOnNewColumns.",
            hint=f'To have them, add to schemaHints: "{hints}". To go on without, set schemaEvolutionMode to rescue '
            "(they are kept in _rescued_data), addNewColumns or none. Then start the query again, from .load() on: it "
            "reads this batch again, and nothing is lost.",
        )
