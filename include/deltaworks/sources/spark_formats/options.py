"""Parses the options of `format("s3-sqs")`.

Required: `queueUrl`, `fileFormat` (json, csv, tsv, text, parquet or avro) and `.schema(...)`.

- `stateLocation` (below the query's checkpoint). Spark passes the checkpoint location to Java sources but not to Python
  sources; `CheckpointedSource` in include/jars forwards it.
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
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlparse

from pydantic import ValidationError

from deltaworks.errors import ConfigError
from deltaworks.sources.objects.relay.messages import ANY_BUCKET
from deltaworks.sources.stream_options import (
    STATE_OPTION,
    boolean_option,
    check_option_names,
    invalid_option,
    number_option,
    option_validation_error,
    pop_checkpoint,
    state_root,
)
from deltaworks.specs.base import resolve_text
from deltaworks.specs.relay import RelaySpec
from deltaworks.specs.sources import FileSourceSpec
from deltaworks.specs.storage import AwsSpec, StorageSpec

FORMAT = "s3-sqs"
_REGION = r"([a-z]{2}(?:-[a-z]+)+-\d+)"
#: `sqs.eu-west-1.amazonaws.com`, its FIPS, dual-stack and private endpoints, and legacy queue hosts.
_QUEUE_HOST_PATTERNS = (
    re.compile(rf"(?:^|\.)sqs(?:-fips)?\.{_REGION}\."),
    re.compile(rf"^{_REGION}\.queue\.amazonaws\."),
)
STATE_PURPOSE = (
    "it stores the names of announced files, and rejected content; messages are deleted from the queue after that"
)


def region_of(queue_url: str | None) -> str:
    """Returns the region in a queue's URL. If the URL has none, returns the region configured for AWS clients, or
    `us-east-1`.
    """
    host = urlparse(queue_url or "").hostname or ""
    for pattern in _QUEUE_HOST_PATTERNS:
        match = pattern.search(host)
        if match is not None:
            return match.group(1)
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


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
#: Options that other sources have for schema inference, schema evolution and rescued data.
_INFERENCE_OPTIONS = (
    *("inferSchema", "inferColumnTypes", "inferredSchemaLocation", "schemaLocation", "schemaHints", "mergeSchema"),
    *("schemaEvolutionMode", "schemaSampleFiles", "schemaSampleBytes", "rescuedDataColumn"),
)
_SCHEMA_EXAMPLE = '.schema("id long, at timestamp")'
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
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileQueryOptions:
    """The options of a query over files. `source` configures reading, `relay` how files are found.

    Attributes:
        input: the queue, or the path, that the state belongs to.
        folder: the local folder with the files, as a URI; None for files on S3.
        rescued_column: column for fields that no other column has; None to ignore them.
        keys_grow: later files have greater names, so most listings begin after the last name.
    """

    input: str
    messaging: AwsSpec
    state: StorageSpec
    source: FileSourceSpec
    relay: RelaySpec
    path_style: bool
    any_bucket: bool
    max_partitions: int
    folder: str | None = None
    rescued_column: str | None = None
    keys_grow: bool = False

    @property
    def reads_each_name_once(self) -> bool:
        """Whether an overwritten file of `cloudFiles` counts as read."""
        return self.source.kind == "cloud_files" and self.relay.overwrites == "ignore"

    @property
    def queue_url(self) -> str | None:
        """The queue's URL; None if files are found only by listing."""
        return None if self.relay.queue_url is None else resolve_text(self.relay.queue_url)

    def landing(self, bucket: str) -> StorageSpec:
        """Returns the storage spec of a bucket."""
        root = self.folder or f"s3://{bucket}"
        return StorageSpec(root=root, path_style=self.path_style, **self.messaging.model_dump())


def parse_s3_sqs(options: Mapping[str, str]) -> FileQueryOptions:
    """Parses the options as Spark passes them: lower-cased names, text values.

    Raises:
        ConfigError: SOURCE_OPTION_INVALID, naming the option.
    """
    check_no_inference(options)
    checkpoint, options = pop_checkpoint(options)
    values = check_option_names(FORMAT, options, _OPTIONS)
    for name, why in _REQUIRED.items():
        if not values.get(name):
            raise invalid_option(FORMAT, name, why)
    path_style = boolean_option(FORMAT, values, "pathStyle", default=False)
    try:
        relay = _parse_relay(values)
        queue_url = resolve_text(relay.queue_url or "")
        aws = {"region": region_of(queue_url)} | select_options(values, _CLIENT_OPTIONS)
        reached = aws | select_options(values, {"endpoint": "stateEndpoint"}) | {"path_style": path_style}
        # Sources of one query that read the same queue use the same state. With separate states, each would miss the
        # messages that the other receives.
        folder = f"s3_sqs-{hashlib.blake2b(queue_url.encode(), digest_size=8).hexdigest()}"
        root = state_root(FORMAT, values, checkpoint=checkpoint, folder=folder, purpose=STATE_PURPOSE)
        return FileQueryOptions(
            input=str(relay.queue_url),
            messaging=AwsSpec.model_validate(aws),
            state=StorageSpec.model_validate(reached | {"root": root}),
            source=_parse_source(values),
            relay=relay,
            path_style=path_style,
            any_bucket="bucket" not in values,
            max_partitions=number_option(FORMAT, values, "maxPartitions", 8),
        )
    except ValidationError as error:
        names = _CLIENT_OPTIONS | _SOURCE_OPTIONS | _RELAY_OPTIONS | _OTHER_OPTIONS
        raise option_validation_error(FORMAT, error, names, fallback=_fallback_option(error)) from None


def schema_missing_error() -> ConfigError:
    """Returns the error for a query without a schema."""
    return ConfigError(
        "SOURCE_OPTION_INVALID",
        f"{FORMAT}: the query has no schema; columns are declared, not inferred.",
        hint=f"Declare the columns with {_SCHEMA_EXAMPLE} (docs/reference/sources.md).",
    )


def check_no_inference(options: Mapping[str, str]) -> None:
    """Rejects options for schema inference.

    Raises:
        ConfigError: SOURCE_OPTION_INVALID.
    """
    names = {name.lower(): name for name in _INFERENCE_OPTIONS}
    for name in options:
        if name.lower() in names:
            raise invalid_option(
                FORMAT,
                names[name.lower()],
                f"is not supported: columns are declared, not inferred. Write {_SCHEMA_EXAMPLE} instead; other fields "
                "are ignored, and values of another type go to file_quarantine",
            )


def _fallback_option(error: ValidationError) -> str:
    """Returns the option that an error message names if a validation error concerns no single field."""
    return "fileFormat" if error.title == FileSourceSpec.__name__ else "accessKey"


def select_options(values: Mapping[str, str], names: Mapping[str, str]) -> dict[str, Any]:
    """Returns the options that were given, by the names of spec fields."""
    return {target: values[name] for target, name in names.items() if values.get(name)}


def split_list(values: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Returns the parts of a comma-separated option."""
    return tuple(part.strip() for part in values.get(name, "").split(",") if part.strip())


def _parse_source(values: Mapping[str, str]) -> FileSourceSpec:
    columns = split_list(values, "columns")
    csv: dict[str, Any] = {"header": not columns, "columns": columns} | select_options(
        values, {"delimiter": "delimiter"}
    )
    declared = select_options(values, _SOURCE_OPTIONS)
    fixed = {
        "kind": "s3_sqs",
        "relay": RELAY,
        "bucket": values.get("bucket", ANY_BUCKET),
        "format": values["fileFormat"],
    }
    more = {"csv": csv, "tsv": {"columns": columns}, "partition_columns": split_list(values, "partitionColumns")}
    return FileSourceSpec.model_validate({"max_files_per_batch": 1000} | declared | fixed | more)


def _parse_relay(values: Mapping[str, str]) -> RelaySpec:
    declared = select_options(values, _RELAY_OPTIONS)
    buckets = (values.get("bucket", ANY_BUCKET),)
    # Short, so a successor need not wait long for the lease of a killed query.
    return RelaySpec.model_validate(
        {"relay": RELAY, "queue_url": values["queueUrl"], "buckets": buckets, "lease_ttl_seconds": 10} | declared
    )
