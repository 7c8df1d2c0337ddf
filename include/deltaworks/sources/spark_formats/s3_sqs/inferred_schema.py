"""The schema of a query that is given none: its first version comes from a sample, and new fields make the next ones.

The sample is of the first objects the state's log has for the query. Where it has few, what the queue announces is
taken into it for a while, as the query itself would: messages are deleted once their objects are in the log, and the
query reads every one of those from the beginning.

Spark asks a source for its columns when a query is planned: a new field ends the query with an error that a restart
mends, or that somebody must, and its column shows in the query that is planned next.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from deltaworks.control.objects import open_objects
from deltaworks.errors import ContractError, TransientError
from deltaworks.events.inference.column_types import (
    RESCUED_NAME,
    STRING,
    Conflict,
    Shape,
    add_new_columns,
    changed_paths,
    infer_columns,
)
from deltaworks.events.inference.sampling import Sample, Sampler
from deltaworks.events.inference.schema_versions import SchemaVersion, SchemaVersions
from deltaworks.events.inference.type_hints import apply_hints, parse_hints
from deltaworks.events.parse import Payload
from deltaworks.events.source_fields import partition_fields
from deltaworks.sources.objects.slices import SliceLimits, SlicePlanner, retry_storage
from deltaworks.sources.spark_formats.s3_sqs.options import EvolutionMode, S3SqsOptions, SchemaOptions
from deltaworks.sources.spark_formats.s3_sqs.query_relay import (
    LocatedFile,
    ObjectOpener,
    QueryRelay,
    list_slice,
    open_log,
)
from deltaworks.sources.spark_formats.s3_sqs.state_location import FORMAT, SCHEMA_LOCATION_OPTION
from deltaworks.sources.stream_options import invalid_option
from deltaworks.specs.sources.objects import FileSourceSpec
from deltaworks.specs.types import ColumnType
from deltaworks.tables.arrow_types import arrow_schema


def inferred_schema(options: S3SqsOptions, inference: SchemaOptions) -> StructType:
    """The schema a query begins with. Waits up to a minute for objects to be announced.

    Raises:
        TransientError: SCHEMA_NOTHING_TO_SAMPLE.
        ContractError: SCHEMA_VERSION_UNREADABLE.
        ConfigError: STATE_OF_ANOTHER_QUEUE, QUEUE_REFUSED, OBJECT_FORBIDDEN.
    """
    versions = schema_versions(inference)
    first = first_version(options, inference) if retry_storage(versions.latest) is None else None

    def make(newest: SchemaVersion | None) -> SchemaVersion | None:
        if newest is None:
            return first
        if newest.hints == inference.hints:
            return None
        hinted = apply_hints(newest.inferred_columns, parse_hints(inference.hints))
        added = tuple(changed_paths(newest.columns(), hinted))
        return dataclasses.replace(newest, hints=inference.hints, added=added, conflicts=(), sample={})

    return spark_schema(retry_storage(lambda: versions.update(make)), inference)


def schema_versions(inference: SchemaOptions) -> SchemaVersions:
    """The versions at the location."""
    return SchemaVersions(open_objects(inference.location), inference.location.root)


def spark_schema(version: SchemaVersion, inference: SchemaOptions) -> StructType:
    """A version's columns as Spark has them, with the one for what no other takes."""
    columns: dict[str, ColumnType] = version.columns()
    if inference.mode.has_rescued_data:
        columns[RESCUED_NAME] = STRING
    schema: StructType = from_arrow_schema(arrow_schema({name: str(kind) for name, kind in columns.items()}))
    return schema


def find_version(schema: StructType, inference: SchemaOptions) -> SchemaVersion:
    """The version a query's schema was made of.

    Raises:
        ConfigError: SOURCE_OPTION_INVALID, none was: the schema was given.
    """
    for version in retry_storage(lambda: list(schema_versions(inference).newest_first())):
        if spark_schema(version, inference) == schema:
            return version
    raise invalid_option(
        FORMAT,
        SCHEMA_LOCATION_OPTION,
        "goes without .schema(...): columns are given there, or found with the help of this one",
    )


def first_version(options: S3SqsOptions, inference: SchemaOptions) -> SchemaVersion:
    """The columns of the first objects there are.

    Raises:
        TransientError: SCHEMA_NOTHING_TO_SAMPLE.
    """
    sample, of_keys = _take_sample(options, inference, _list_sample_objects(options, inference))
    conflicts: list[Conflict] = []
    inferred = infer_columns(sample.shape, typed=inference.infer_types, conflicts=conflicts)
    read_from_keys = dict.fromkeys(options.source.partition_columns, STRING) | infer_columns(of_keys)
    taken = {name.lower() for name in read_from_keys}
    inferred = {name: kind for name, kind in inferred.items() if name.lower() not in taken} | read_from_keys
    if not sample.events:
        raise _nothing_to_sample_error(options, sample)
    hinted = apply_hints(inferred, parse_hints(inference.hints))
    return SchemaVersion(
        number=1,
        inferred_columns=inferred,
        hints=inference.hints,
        added=tuple(changed_paths({}, hinted)),
        conflicts=tuple(map(str, conflicts)),
        sample=sample.to_record(),
    )


def _take_sample(options: S3SqsOptions, inference: SchemaOptions, files: list[LocatedFile]) -> tuple[Sample, Shape]:
    """A look at the files, and at the fields in their keys."""
    opener, of_keys = ObjectOpener(options), Shape()
    sampler = Sampler(options.source, typed=inference.infer_types)
    sample = sampler.sample(map(opener, files), max_bytes=inference.sample_bytes)
    for _, reference in files:
        of_keys.add_texts(
            partition_fields(reference.key, options.source.partition_columns), typed=inference.infer_types
        )
    return sample, of_keys


def _list_sample_objects(options: S3SqsOptions, inference: SchemaOptions) -> list[LocatedFile]:
    _, slices = retry_storage(lambda: open_log(options))
    limits = SliceLimits(max_files=inference.sample_files, max_bytes=inference.sample_bytes)

    def enough() -> bool:
        files = _first_slice(slices, limits)
        # A slice ends before the file that would exceed its limit.
        return len(files) >= inference.sample_files or 2 * sum(size for _, size in files) >= inference.sample_bytes

    if not retry_storage(enough):
        receiving = QueryRelay(options)
        try:
            receiving.run_until(lambda: retry_storage(enough))
        finally:
            # A receipt that is cut off would hold its message back until the queue gives it out again.
            receiving.stop(immediately=False)
    return [where for where, _ in retry_storage(lambda: _first_slice(slices, limits))]


def _first_slice(slices: SlicePlanner, limits: SliceLimits) -> list[tuple[LocatedFile, int]]:
    end = slices.next_end_offset(0, limits)
    return list_slice(slices, 0, end) if end else []


def _nothing_to_sample_error(options: S3SqsOptions, sample: Sample) -> TransientError:
    looked = f"none of {sample.objects} objects holds an event" if sample.objects else "nothing has been announced yet"
    return TransientError(
        "SCHEMA_NOTHING_TO_SAMPLE",
        f"{FORMAT}: no columns can be found, {looked} of {options.source.display_name()} ({options.source.format}).",
        hint="Start it again once there are some; have it look at more with schemaSampleFiles; or give .schema(...).",
    )


class NewFieldsError(Exception):
    """A payload has a field that could be a column and is none yet; `watch` has seen it."""

    def __init__(self, detector: NewColumnDetector) -> None:
        super().__init__()
        self.watch = detector


class NewColumnDetector:
    """Tells whether events have fields for new columns, and ends the query that met some. One per task."""

    def __init__(self, version: SchemaVersion, inference: SchemaOptions, source: FileSourceSpec) -> None:
        self._version = version
        self._inference = inference
        self._source = source
        self._sampler = Sampler(source, typed=inference.infer_types)
        self._columns = version.columns()

    def check_event(self, event: Mapping[str, Any]) -> None:
        """Look at an event that has something no column takes.

        Raises:
            NewFields: it could be a column.
        """
        if not self._sampler.declares_columns:
            shape = Shape()
            self._sampler.add_event(shape, event)
            self._check(self._version, shape)

    def check_payload(self, payload: Payload) -> None:
        """Look at the columns an object declares, where its form does that.

        Raises:
            NewFields: one is new.
        """
        if self._sampler.declares_columns:
            self._check(self._version, self._sampler.sample([payload], max_bytes=1).shape)

    def _check(self, version: SchemaVersion, shape: Shape) -> None:
        if self._evolved_columns(version, shape) != self._columns:
            raise NewFieldsError(self)

    def _evolved_columns(self, version: SchemaVersion, shape: Shape) -> dict[str, Any]:
        columns = add_new_columns(version.inferred_columns, shape, typed=self._inference.infer_types)
        return apply_hints(columns, parse_hints(version.hints))

    def evolution_error(self, object_uri: str, payloads: Iterable[Payload]) -> TransientError | ContractError:
        """The error that ends the query, once all new columns of some payloads are known and, where they are to be
        added, kept.

        Args:
            met_in: the object with the new field, for people.
            payloads: that object's first, then others of the same task; they are looked at as a sample is.
        """
        sample = self._sampler.sample(payloads, max_bytes=self._inference.sample_bytes)
        if self._inference.mode is EvolutionMode.FAIL_ON_NEW_COLUMNS:
            return self._new_columns_error(
                object_uri, changed_paths(self._columns, self._evolved_columns(self._version, sample.shape))
            )
        newest = retry_storage(
            lambda: schema_versions(self._inference).update(lambda latest: self._next_version(latest, sample))
        )
        return self._columns_added_error(object_uri, newest, changed_paths(self._columns, newest.columns()))

    def _next_version(self, newest: SchemaVersion | None, sample: Sample) -> SchemaVersion | None:
        # The versions were there when the query began; without them it continues from its own.
        base = newest or self._version
        columns = self._evolved_columns(base, sample.shape)
        if newest is not None and columns == newest.columns():
            return None
        conflicts: list[Conflict] = []
        infer_columns(sample.shape, typed=self._inference.infer_types, conflicts=conflicts)
        return dataclasses.replace(
            base,
            inferred_columns=add_new_columns(base.inferred_columns, sample.shape, typed=self._inference.infer_types),
            added=tuple(changed_paths(base.columns(), columns)),
            conflicts=tuple(map(str, conflicts)),
            sample=sample.to_record(),
        )

    def _columns_added_error(self, object_uri: str, newest: SchemaVersion, added: list[str]) -> TransientError:
        return TransientError(
            "SCHEMA_COLUMNS_ADDED",
            f"{FORMAT}: {object_uri} has fields that the columns this query began with do not take: {', '.join(added)}. "
            f"Version {newest.number} of the schema at {self._inference.location.root} has them.",
            hint="Start the query again, from .load() on: it reads this batch again, with the new columns. Nothing is "
            "lost. A job that is restarted when it fails continues by itself; the table it writes to has to take new "
            "columns (mergeSchema).",
        )

    def _new_columns_error(self, object_uri: str, added: list[str]) -> ContractError:
        hints = ", ".join(added)
        return ContractError(
            "SCHEMA_COLUMNS_NEW",
            f"{FORMAT}: {object_uri} has fields that no column takes: {hints}. schemaEvolutionMode is failOnNewColumns.",
            hint=f'To have them, add to schemaHints: "{hints}". To continue without, set schemaEvolutionMode to rescue '
            "(they are kept in _rescued_data), addNewColumns or none. Then start the query again, from .load() on: it "
            "reads this batch again, and nothing is lost.",
        )
