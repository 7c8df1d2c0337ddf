"""Schema inference for queries without a schema: a sample gives the first schema version, new fields give later ones.

The sample consists of the first objects in the state's log. If the log has few, announced objects are received for a
while, in the same way as by the query: messages are deleted once their objects are in the log, and the query reads all
of them from the beginning.

Spark reads a source's columns when a query is planned. Therefore a new field ends the query with an error, and the next
start of the query has its column.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from deltaworks.control.objects import open_objects
from deltaworks.errors import ContractError, TransientError
from deltaworks.events.chunks import Payload
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
    """Returns the schema a query begins with. Waits up to a minute for announced objects.

    Raises:
        TransientError: SCHEMA_NOTHING_TO_SAMPLE.
        ContractError: SCHEMA_VERSION_UNREADABLE.
        ConfigError: STATE_OF_ANOTHER_QUEUE, QUEUE_REFUSED, OBJECT_FORBIDDEN.
    """
    versions = schema_versions(inference)
    first = first_version(options, inference) if retry_storage(versions.latest) is None else None

    def next_version(latest: SchemaVersion | None) -> SchemaVersion | None:
        if latest is None:
            return first
        if latest.hints == inference.hints:
            return None
        hinted = apply_hints(latest.inferred_columns, parse_hints(inference.hints))
        added = tuple(changed_paths(latest.columns(), hinted))
        return dataclasses.replace(latest, hints=inference.hints, added=added, conflicts=(), sample={})

    return spark_schema(retry_storage(lambda: versions.update(next_version)), inference)


def schema_versions(inference: SchemaOptions) -> SchemaVersions:
    """Returns the stored schema versions at the option's location."""
    return SchemaVersions(open_objects(inference.location), inference.location.root)


def spark_schema(version: SchemaVersion, inference: SchemaOptions) -> StructType:
    """Converts the columns of a version to a Spark schema, with the column for rescued data."""
    columns: dict[str, ColumnType] = version.columns()
    if inference.mode.has_rescued_data:
        columns[RESCUED_NAME] = STRING
    schema: StructType = from_arrow_schema(arrow_schema({name: str(kind) for name, kind in columns.items()}))
    return schema


def find_version(schema: StructType, inference: SchemaOptions) -> SchemaVersion:
    """Returns the schema version that the query's schema was made of.

    Raises:
        ConfigError: SOURCE_OPTION_INVALID, the schema was passed by the user.
    """
    for version in retry_storage(lambda: list(schema_versions(inference).newest_first())):
        if spark_schema(version, inference) == schema:
            return version
    raise invalid_option(
        FORMAT,
        SCHEMA_LOCATION_OPTION,
        "excludes .schema(...): the schema is either passed or inferred",
    )


def first_version(options: S3SqsOptions, inference: SchemaOptions) -> SchemaVersion:
    """Infers the columns of the first objects.

    Raises:
        TransientError: SCHEMA_NOTHING_TO_SAMPLE.
    """
    sample, key_shape = _read_sample(options, inference, _list_sample_objects(options, inference))
    conflicts: list[Conflict] = []
    inferred = infer_columns(sample.shape, typed=inference.infer_types, conflicts=conflicts)
    partition_types = dict.fromkeys(options.source.partition_columns, STRING) | infer_columns(key_shape)
    key_columns = {name.lower() for name in partition_types}
    inferred = {name: kind for name, kind in inferred.items() if name.lower() not in key_columns} | partition_types
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


def _read_sample(options: S3SqsOptions, inference: SchemaOptions, files: list[LocatedFile]) -> tuple[Sample, Shape]:
    """Reads a sample of the files and of the partition fields in their keys."""
    opener, key_shape = ObjectOpener(options), Shape()
    sampler = Sampler(options.source, typed=inference.infer_types)
    sample = sampler.sample(map(opener, files), max_bytes=inference.sample_bytes)
    for _, reference in files:
        key_shape.add_texts(
            partition_fields(reference.key, options.source.partition_columns), typed=inference.infer_types
        )
    return sample, key_shape


def _list_sample_objects(options: S3SqsOptions, inference: SchemaOptions) -> list[LocatedFile]:
    _, slices = retry_storage(lambda: open_log(options))
    limits = SliceLimits(max_files=inference.sample_files, max_bytes=inference.sample_bytes)

    def has_enough() -> bool:
        files = _first_slice(slices, limits)
        # A slice ends before the file that would exceed its limit.
        return len(files) >= inference.sample_files or 2 * sum(size for _, size in files) >= inference.sample_bytes

    if not retry_storage(has_enough):
        receiving = QueryRelay(options)
        try:
            receiving.run_until(lambda: retry_storage(has_enough))
        finally:
            # An interrupted receive would keep its messages invisible until their timeout.
            receiving.stop(immediately=False)
    return [file for file, _ in retry_storage(lambda: _first_slice(slices, limits))]


def _first_slice(slices: SlicePlanner, limits: SliceLimits) -> list[tuple[LocatedFile, int]]:
    end = slices.next_end_offset(0, limits)
    return list_slice(slices, 0, end) if end else []


def _nothing_to_sample_error(options: S3SqsOptions, sample: Sample) -> TransientError:
    detail = f"none of {sample.objects} objects has an event" if sample.objects else "nothing has been announced yet"
    return TransientError(
        "SCHEMA_NOTHING_TO_SAMPLE",
        f"{FORMAT}: no columns can be inferred: {detail} in {options.source.display_name()} ({options.source.format}).",
    )


class NewFieldsError(Exception):
    """Raised for a payload with a field that could become a column."""

    def __init__(self, detector: NewColumnDetector) -> None:
        super().__init__()
        self.detector = detector


class NewColumnDetector:
    """Detects fields that could become columns, and creates the error that ends the query. One per task."""

    def __init__(self, version: SchemaVersion, inference: SchemaOptions, source: FileSourceSpec) -> None:
        self._version = version
        self._inference = inference
        self._source = source
        self._sampler = Sampler(source, typed=inference.infer_types)
        self._columns = version.columns()

    def check_event(self, event: Mapping[str, Any]) -> None:
        """Checks an event that has fields without a column.

        Raises:
            NewFieldsError: a field could become a column.
        """
        if not self._sampler.declares_columns:
            shape = Shape()
            self._sampler.add_event(shape, event)
            self._check(self._version, shape)

    def check_payload(self, payload: Payload) -> None:
        """Checks the columns that an object declares, for formats with a schema.

        Raises:
            NewFieldsError: a column is new.
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
        """Returns the error that ends the query. It names all new columns of the payloads; depending on the mode, a new
        schema version is stored.

        Args:
            object_uri: the object with the new field, for the message.
            payloads: that object's payload first, then others of the task; they are sampled.
        """
        sample = self._sampler.sample(payloads, max_bytes=self._inference.sample_bytes)
        if self._inference.mode is EvolutionMode.FAIL_ON_NEW_COLUMNS:
            return self._new_columns_error(
                object_uri, changed_paths(self._columns, self._evolved_columns(self._version, sample.shape))
            )
        latest = retry_storage(
            lambda: schema_versions(self._inference).update(lambda latest: self._next_version(latest, sample))
        )
        return self._columns_added_error(object_uri, latest, changed_paths(self._columns, latest.columns()))

    def _next_version(self, latest: SchemaVersion | None, sample: Sample) -> SchemaVersion | None:
        # Versions existed when the query began. If they were deleted since, evolution continues from the query's
        # version.
        base = latest or self._version
        columns = self._evolved_columns(base, sample.shape)
        if latest is not None and columns == latest.columns():
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

    def _columns_added_error(self, object_uri: str, latest: SchemaVersion, added: list[str]) -> TransientError:
        return TransientError(
            "SCHEMA_COLUMNS_ADDED",
            f"{FORMAT}: {object_uri} has fields without a column in this query: {', '.join(added)}. "
            f"Version {latest.number} of the schema at {self._inference.location.root} has them.",
        )

    def _new_columns_error(self, object_uri: str, added: list[str]) -> ContractError:
        hints = ", ".join(added)
        return ContractError(
            "SCHEMA_COLUMNS_NEW",
            f"{FORMAT}: {object_uri} has fields without a column: {hints}. schemaEvolutionMode is failOnNewColumns.",
            hint=f'To read them, add to schemaHints: "{hints}". To continue without them, set schemaEvolutionMode to '
            "rescue (stored in _rescued_data), addNewColumns or none. Then restart the query from .load() on. It reads "
            "this batch again; nothing is lost.",
        )
