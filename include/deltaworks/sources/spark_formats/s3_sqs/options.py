"""Parses the options of `format("s3-sqs")`.

Required: `queueUrl`, `fileFormat` (json, csv, tsv, text, parquet or avro), and `.schema(...)` or
`inferredSchemaLocation`.

- `stateLocation` (below the query's checkpoint): see `state_location`. Required with `inferredSchemaLocation`.
- `region` (that of the queue's URL), `endpoint`, `pathStyle` (false): access to queue and buckets; `accessKey` and
  `secretKey` are references such as `env:NAME`. Without them, the roles and profiles of the machine apply.
- `stateEndpoint`: endpoint of the state, if it is on another server than the buckets.
- `maxFilesPerTrigger` (1000) and `maxBytesPerTrigger` (268435456): limits of a batch; a file is never split.
- `maxPartitions` (8): tasks that open the files of a batch. `fetchParallelism` (2): threads that receive messages.
- `bucket`, `prefix`, `glob`: files to read; by default all announced files.
- `partitionColumns`: fields read from key parts such as `day=2026-01-31`, comma-separated.
- `compression` (auto), `maxObjectBytes` (536870912), `delimiter` of csv, `columns` of csv and tsv without a header,
  `pattern` of text: a regular expression whose named groups are the fields of a line.
- `overwrites` (latest): as in the relay.

Options for schema inference:

- `inferredSchemaLocation`: folder for schema versions. Required without `.schema(...)`, rejected with it.
- `schemaHints`: types that a sample would infer wrongly, `a BIGINT, b.c STRING`.
- `inferColumnTypes` (true): infer types of csv texts and json values; otherwise all columns are strings.
- `schemaEvolutionMode` (addNewColumns): handling of new fields.
- `schemaSampleFiles` (100) and `schemaSampleBytes` (67108864): size of the sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from deltaworks.errors import ConfigError
from deltaworks.events.inference.type_hints import parse_hints
from deltaworks.sources.objects.relay.messages import ANY_BUCKET
from deltaworks.sources.spark_formats.s3_sqs.state_location import (
    FORMAT,
    SCHEMA_LOCATION_OPTION,
    STATE_OPTION,
    pop_checkpoint,
    region_of,
    state_root,
)
from deltaworks.sources.stream_options import (
    boolean_option,
    check_option_names,
    invalid_option,
    number_option,
    option_validation_error,
    storage_root,
)
from deltaworks.specs.base import resolve_text
from deltaworks.specs.relay import RelaySpec
from deltaworks.specs.sources.objects import FileSourceSpec
from deltaworks.specs.storage import AwsSpec, StorageSpec

#: Name of the relay in the state.
RELAY = "s3_sqs"

_REQUIRED = {
    "queueUrl": "is required: the queue that S3 announces objects to",
    "fileFormat": "is required: json, csv, tsv, text, parquet or avro",
}
#: Option names by spec field.
_CLIENT_OPTIONS = {"region": "region", "endpoint": "endpoint", "access_key": "accessKey", "secret_key": "secretKey"}
_SOURCE_OPTIONS = {
    "prefix": "prefix",
    "glob": "glob",
    "compression": "compression",
    "pattern": "pattern",
    "max_files_per_batch": "maxFilesPerTrigger",
    "max_bytes_per_batch": "maxBytesPerTrigger",
    "max_object_bytes": "maxObjectBytes",
}
_RELAY_OPTIONS = {"overwrites": "overwrites", "receive_threads": "fetchParallelism"}
#: In a session with Delta, Delta claims this option name for every source.
_DELTA_OPTION = "schemalocation"
SCHEMA_OPTIONS = (
    SCHEMA_LOCATION_OPTION,
    *("schemaHints", "inferColumnTypes", "schemaEvolutionMode", "schemaSampleFiles", "schemaSampleBytes"),
)
_MAX_SAMPLE_FILES = 10_000
#: Option names by field of the location's spec; its other fields come from options of the state, which are validated
#: before.
_LOCATION_OPTIONS = {"root": SCHEMA_LOCATION_OPTION}
#: All other fields that validation may reject.
_OTHER_OPTIONS = {
    "root": STATE_OPTION,
    "queue_url": "queueUrl",
    "bucket": "bucket",
    "buckets": "bucket",
    "format": "fileFormat",
    "partition_columns": "partitionColumns",
    "delimiter": "delimiter",
    "columns": "columns",
    "csv": "columns",
}
_OPTIONS = (
    *_REQUIRED,
    STATE_OPTION,
    *_CLIENT_OPTIONS.values(),
    *("pathStyle", "stateEndpoint", "maxPartitions", "bucket", "partitionColumns", "delimiter", "columns"),
    *_SOURCE_OPTIONS.values(),
    *_RELAY_OPTIONS.values(),
    *SCHEMA_OPTIONS,
)


class EvolutionMode(StrEnum):
    """What happens to fields without a column."""

    ADD_NEW_COLUMNS = "addNewColumns"
    RESCUE = "rescue"
    FAIL_ON_NEW_COLUMNS = "failOnNewColumns"
    NONE = "none"

    @property
    def has_rescued_data(self) -> bool:
        """Whether there is a column for rescued data."""
        return self is not EvolutionMode.NONE

    @property
    def stops_on_new_fields(self) -> bool:
        """Whether a new field ends the query."""
        return self in (EvolutionMode.ADD_NEW_COLUMNS, EvolutionMode.FAIL_ON_NEW_COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaOptions:
    """Location and inference settings of schema versions."""

    location: StorageSpec
    hints: str
    infer_types: bool
    mode: EvolutionMode
    sample_files: int
    sample_bytes: int


@dataclass(frozen=True, slots=True)
class S3SqsOptions:
    """The options of a query. `source` configures reading, `relay` configures receiving messages."""

    messaging: AwsSpec
    state: StorageSpec
    source: FileSourceSpec
    relay: RelaySpec
    path_style: bool
    any_bucket: bool
    max_partitions: int
    inference: SchemaOptions | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> S3SqsOptions:
        """Parses the options as Spark passes them: lower-cased names, text values.

        Raises:
            ConfigError: SOURCE_OPTION_INVALID, naming the option.
        """
        check_delta_option(FORMAT, options)
        checkpoint, options = pop_checkpoint(options)
        values = check_option_names(FORMAT, options, _OPTIONS)
        for name, why in _REQUIRED.items():
            if not values.get(name):
                raise invalid_option(FORMAT, name, why)
        path_style = boolean_option(FORMAT, values, "pathStyle", default=False)
        try:
            relay = _parse_relay(values)
            queue_url = resolve_text(relay.queue_url or "")
            aws = {"region": region_of(queue_url)} | _select_options(values, _CLIENT_OPTIONS)
            reached = aws | _select_options(values, {"endpoint": "stateEndpoint"}) | {"path_style": path_style}
            root = state_root(values, queue_url=queue_url, checkpoint=checkpoint)
            return cls(
                messaging=AwsSpec.model_validate(aws),
                state=StorageSpec.model_validate(reached | {"root": root}),
                source=_parse_source(values),
                relay=relay,
                path_style=path_style,
                any_bucket="bucket" not in values,
                max_partitions=number_option(FORMAT, values, "maxPartitions", 8),
                inference=schema_options(FORMAT, values, reached),
            )
        except ValidationError as error:
            names = _CLIENT_OPTIONS | _SOURCE_OPTIONS | _RELAY_OPTIONS | _OTHER_OPTIONS
            raise option_validation_error(FORMAT, error, names, fallback=_fallback_option(error)) from None

    @property
    def queue_url(self) -> str:
        """The queue's URL, a required option."""
        return resolve_text(self.relay.queue_url or "")

    def landing(self, bucket: str) -> StorageSpec:
        """Returns the storage spec of a bucket."""
        return StorageSpec(root=f"s3://{bucket}", path_style=self.path_style, **self.messaging.model_dump())


def schema_missing_error() -> ConfigError:
    """Returns the error for a query without a schema and without a location for inferred schemas."""
    return invalid_option(
        FORMAT,
        SCHEMA_LOCATION_OPTION,
        'is required without .schema("id long, at timestamp"): columns are then inferred from the first files and '
        "stored there, so concurrent and later queries use the same schema. Choose a separate folder for this source, "
        "s3://bucket/folder",
    )


def has_inferred_schema(options: Mapping[str, str]) -> bool:
    """Returns whether the options contain a schema location."""
    return any(name.lower() == SCHEMA_LOCATION_OPTION.lower() and value for name, value in options.items())


def _fallback_option(error: ValidationError) -> str:
    """Returns the option that an error message names if a validation error concerns no single field."""
    return "fileFormat" if error.title == FileSourceSpec.__name__ else "accessKey"


def _select_options(values: Mapping[str, str], names: Mapping[str, str]) -> dict[str, Any]:
    """Returns the options that were given, by the names of spec fields."""
    return {target: values[name] for target, name in names.items() if values.get(name)}


def _split_list(values: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in values.get(name, "").split(",") if part.strip())


def _parse_source(values: Mapping[str, str]) -> FileSourceSpec:
    columns = _split_list(values, "columns")
    csv: dict[str, Any] = {"header": not columns, "columns": columns} | _select_options(
        values, {"delimiter": "delimiter"}
    )
    declared = _select_options(values, _SOURCE_OPTIONS)
    fixed = {
        "kind": "s3_sqs",
        "relay": RELAY,
        "bucket": values.get("bucket", ANY_BUCKET),
        "format": values["fileFormat"],
    }
    more = {"csv": csv, "tsv": {"columns": columns}, "partition_columns": _split_list(values, "partitionColumns")}
    return FileSourceSpec.model_validate({"max_files_per_batch": 1000} | declared | fixed | more)


def _parse_relay(values: Mapping[str, str]) -> RelaySpec:
    declared = _select_options(values, _RELAY_OPTIONS)
    buckets = (values.get("bucket", ANY_BUCKET),)
    # Short, so a successor need not wait long for the lease of a killed query.
    return RelaySpec.model_validate(
        {"relay": RELAY, "queue_url": values["queueUrl"], "buckets": buckets, "lease_ttl_seconds": 10} | declared
    )


def check_delta_option(source: str, options: Mapping[str, str]) -> None:
    """Rejects the option name that Delta uses for a schema location.

    Raises:
        ConfigError: SOURCE_OPTION_INVALID.
    """
    for name in options:
        if name.lower() == _DELTA_OPTION:
            raise invalid_option(source, name, f"is claimed by Delta for every source; use {SCHEMA_LOCATION_OPTION}")


def schema_options(source: str, values: Mapping[str, str], client_options: Mapping[str, Any]) -> SchemaOptions | None:
    """Parses the options for schema inference. Returns None if it is not used.

    Args:
        client_options: access to the state, which also applies to the location.

    Raises:
        ConfigError: SOURCE_OPTION_INVALID.
    """
    if not values.get(SCHEMA_LOCATION_OPTION):
        for name in SCHEMA_OPTIONS:
            if values.get(name):
                raise invalid_option(source, name, f"is allowed only with {SCHEMA_LOCATION_OPTION}")
        return None
    try:
        location = StorageSpec.model_validate({**client_options, "root": storage_root(values[SCHEMA_LOCATION_OPTION])})
    except ValidationError as error:
        raise option_validation_error(source, error, _LOCATION_OPTIONS, fallback=SCHEMA_LOCATION_OPTION) from None
    return SchemaOptions(
        location=location,
        hints=_parse_hints_option(source, values),
        infer_types=boolean_option(source, values, "inferColumnTypes", default=True),
        mode=_parse_evolution_mode(source, values),
        sample_files=number_option(source, values, "schemaSampleFiles", 100, maximum=_MAX_SAMPLE_FILES),
        sample_bytes=number_option(source, values, "schemaSampleBytes", 64 << 20),
    )


def _parse_hints_option(source: str, values: Mapping[str, str]) -> str:
    hints = values.get("schemaHints", "").strip()
    try:
        parse_hints(hints)
    except ValueError as error:
        raise invalid_option(source, "schemaHints", f"cannot be read: {error}") from None
    return hints


def _parse_evolution_mode(source: str, values: Mapping[str, str]) -> EvolutionMode:
    text = values.get("schemaEvolutionMode", EvolutionMode.ADD_NEW_COLUMNS)
    for mode in EvolutionMode:
        if mode.lower() == text.lower():
            return mode
    raise invalid_option(source, "schemaEvolutionMode", f"must be one of {', '.join(EvolutionMode)}, not {text!r}")
