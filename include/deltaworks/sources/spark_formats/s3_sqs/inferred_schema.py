"""The schema of a query that is given none: the newest version at its location; the first one comes from a sample.

The sample is of the first objects the state's log has for the query. Where it has few, what the queue announces is
taken into it for a while, as the query itself would: messages are deleted once their objects are in the log, and the
query reads every one of those from the beginning.
"""

from __future__ import annotations

import dataclasses

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from deltaworks.control.objects import open_objects
from deltaworks.errors import TransientError
from deltaworks.events.inference.column_types import RESCUED, STRING, Conflict, columns_of, new_paths
from deltaworks.events.inference.hints import parse_hints, with_hints
from deltaworks.events.inference.sampling import Sample, Sampler
from deltaworks.events.inference.shapes import Shape
from deltaworks.events.inference.versions import SchemaVersion, SchemaVersions
from deltaworks.events.path_fields import partition_fields
from deltaworks.sources.objects.planning import patiently
from deltaworks.sources.objects.slices import SliceLimits, SlicePlanner
from deltaworks.sources.spark_formats.s3_sqs.options import FORMAT, S3SqsOptions
from deltaworks.sources.spark_formats.s3_sqs.planning import Located, ObjectOpener, located, open_log
from deltaworks.sources.spark_formats.s3_sqs.receiving import Receiving
from deltaworks.sources.spark_formats.s3_sqs.schema_options import LOCATION, SchemaOptions
from deltaworks.sources.stream_options import invalid_option
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
    first = first_version(options, inference) if patiently(versions.latest) is None else None

    def make(newest: SchemaVersion | None) -> SchemaVersion | None:
        if newest is None:
            return first
        if newest.hints == inference.hints:
            return None
        hinted = with_hints(newest.found, parse_hints(inference.hints))
        added = tuple(new_paths(newest.columns(), hinted))
        return dataclasses.replace(newest, hints=inference.hints, added=added, conflicts=(), sample={})

    return spark_schema(patiently(lambda: versions.change(make)), inference)


def schema_versions(inference: SchemaOptions) -> SchemaVersions:
    """The versions at the location."""
    return SchemaVersions(open_objects(inference.location), inference.location.root)


def spark_schema(version: SchemaVersion, inference: SchemaOptions) -> StructType:
    """A version's columns as Spark has them, with the one for what no other takes."""
    columns: dict[str, ColumnType] = version.columns()
    if inference.mode.rescues:
        columns[RESCUED] = STRING
    found: StructType = from_arrow_schema(arrow_schema({name: str(kind) for name, kind in columns.items()}))
    return found


def version_of(schema: StructType, inference: SchemaOptions) -> SchemaVersion:
    """The version a query's schema was made of.

    Raises:
        ConfigError: SOURCE_OPTION_INVALID, none was: the schema was given.
    """
    for version in patiently(lambda: list(schema_versions(inference).newest_first())):
        if spark_schema(version, inference) == schema:
            return version
    raise invalid_option(
        FORMAT, LOCATION, "goes without .schema(...): columns are given there, or found with the help of this one"
    )


def first_version(options: S3SqsOptions, inference: SchemaOptions) -> SchemaVersion:
    """The columns of the first objects there are.

    Raises:
        TransientError: SCHEMA_NOTHING_TO_SAMPLE.
    """
    sample, of_keys = _sampled(options, inference, _first_objects(options, inference))
    conflicts: list[Conflict] = []
    found = columns_of(sample.shape, typed=inference.typed, conflicts=conflicts)
    read_from_keys = dict.fromkeys(options.source.partition_columns, STRING) | columns_of(of_keys)
    taken = {name.lower() for name in read_from_keys}
    found = {name: kind for name, kind in found.items() if name.lower() not in taken} | read_from_keys
    if not sample.events:
        raise _nothing_to_sample(options, sample)
    hinted = with_hints(found, parse_hints(inference.hints))
    return SchemaVersion(
        number=1,
        found=found,
        hints=inference.hints,
        added=tuple(new_paths({}, hinted)),
        conflicts=tuple(map(str, conflicts)),
        sample=sample.record(),
    )


def _sampled(options: S3SqsOptions, inference: SchemaOptions, files: list[Located]) -> tuple[Sample, Shape]:
    """A look at the files, and at the fields in their keys."""
    opener, of_keys = ObjectOpener(options), Shape()
    sampler = Sampler(options.source, typed=inference.typed)
    sample = sampler.sample(map(opener, files), max_bytes=inference.sample_bytes)
    for _, reference in files:
        of_keys.note_texts(partition_fields(reference.key, options.source.partition_columns), typed=inference.typed)
    return sample, of_keys


def _first_objects(options: S3SqsOptions, inference: SchemaOptions) -> list[Located]:
    _, slices = patiently(lambda: open_log(options))
    limits = SliceLimits(max_files=inference.sample_files, max_bytes=inference.sample_bytes)

    def enough() -> bool:
        found = _slice(slices, limits)
        # A slice ends before the file that would exceed its limit.
        return len(found) >= inference.sample_files or 2 * sum(size for _, size in found) >= inference.sample_bytes

    if not patiently(enough):
        receiving = Receiving(options)
        try:
            receiving.keep_on_until(lambda: patiently(enough))
        finally:
            # A receipt that is cut off would hold its message back until the queue gives it out again.
            receiving.stop(at_once=False)
    return [where for where, _ in patiently(lambda: _slice(slices, limits))]


def _slice(slices: SlicePlanner, limits: SliceLimits) -> list[tuple[Located, int]]:
    end = slices.end_of_next(0, limits)
    return located(slices, 0, end) if end else []


def _nothing_to_sample(options: S3SqsOptions, sample: Sample) -> TransientError:
    looked = f"none of {sample.objects} objects holds an event" if sample.objects else "nothing has been announced yet"
    return TransientError(
        "SCHEMA_NOTHING_TO_SAMPLE",
        f"{FORMAT}: no columns can be found, {looked} of {options.source.place()} ({options.source.format}).",
        hint="Start it again once there are some; have it look at more with schemaSampleFiles; or give .schema(...).",
    )
