"""The options of `format("s3-sqs")`, checked.

Required: `queueUrl`, `fileFormat` (json, csv, tsv, text, parquet or avro), `stateLocation`, and `.schema(...)` or
`inferredSchemaLocation`, with the options of `schema_options`.

- `region` (us-east-1), `endpoint`, `pathStyle` (false): how queue and buckets are reached; `accessKey` and `secretKey`
  are references such as `env:NAME`, without them the roles and profiles of the machine apply.
- `stateEndpoint`: where the state is on another server than the buckets.
- `maxFilesPerTrigger` (1000) and `maxBytesPerTrigger` (268435456): how large a batch may be; a file is never split.
- `maxPartitions` (8): tasks that open the files of a batch. `fetchParallelism` (2): threads that receive messages.
- `bucket`, `prefix`, `glob`: which files; by default all that are announced.
- `partitionColumns`: fields read from parts of keys such as `day=2026-01-31`, separated by commas.
- `compression` (auto), `maxObjectBytes` (536870912), `delimiter` of csv, `columns` of csv and tsv without a header,
  `pattern` of text: a regular expression whose named groups are the fields of a line.
- `overwrites` (latest): see the relay's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from deltaworks.errors import ConfigError
from deltaworks.sources.objects.relay.messages import ANY_BUCKET
from deltaworks.sources.spark_formats.s3_sqs.schema_options import (
    LOCATION,
    SCHEMA_OPTIONS,
    SchemaOptions,
    refuse_name_of_delta,
    schema_options,
)
from deltaworks.sources.stream_options import (
    invalid_option,
    known_options,
    number_option,
    storage_root,
    truth_option,
    unfit_option,
)
from deltaworks.specs.relay import RelaySpec
from deltaworks.specs.source import FileSourceSpec
from deltaworks.specs.storage import AwsSpec, StorageSpec

FORMAT = "s3-sqs"
#: The name of the relay inside the state.
RELAY = "s3_sqs"

_WHY_STATE = (
    "is required: which files were announced, and what could not be read, is kept there. Messages are deleted from the "
    "queue once it is; Spark's checkpoint alone could not tell a file twice, and a lost one would lose the files"
)
_REQUIRED = {
    "queueUrl": "is required: the queue that S3 announces objects to",
    "fileFormat": "is required: json, csv, tsv, text, parquet or avro",
    "stateLocation": _WHY_STATE,
}
#: Fields of specs, and the options they are given by.
_REACHED = {"region": "region", "endpoint": "endpoint", "access_key": "accessKey", "secret_key": "secretKey"}
_READ = {
    "prefix": "prefix",
    "glob": "glob",
    "compression": "compression",
    "pattern": "pattern",
    "max_files_per_batch": "maxFilesPerTrigger",
    "max_bytes_per_batch": "maxBytesPerTrigger",
    "max_object_bytes": "maxObjectBytes",
}
_RELAYED = {"overwrites": "overwrites", "receive_threads": "fetchParallelism"}
#: Every other field that a mistake can be found in.
_NAMED = {
    "root": "stateLocation",
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
    *_REACHED.values(),
    *("pathStyle", "stateEndpoint", "maxPartitions", "bucket", "partitionColumns", "delimiter", "columns"),
    *_READ.values(),
    *_RELAYED.values(),
    *SCHEMA_OPTIONS,
)


@dataclass(frozen=True, slots=True)
class S3SqsOptions:
    """What a query is given. `source` says what is read and how, `relay` how messages are taken."""

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
        """Read the options as Spark hands them over: lower-cased names, text values.

        Raises:
            ConfigError: SOURCE_OPTION_INVALID naming the option.
        """
        refuse_name_of_delta(FORMAT, options)
        given = known_options(FORMAT, options, _OPTIONS)
        for name, why in _REQUIRED.items():
            if not given.get(name):
                raise invalid_option(FORMAT, name, why)
        path_style = truth_option(FORMAT, given, "pathStyle", default=False)
        reached = _aws(given) | _chosen(given, {"endpoint": "stateEndpoint"}) | {"path_style": path_style}
        try:
            return cls(
                messaging=AwsSpec.model_validate(_aws(given)),
                state=StorageSpec.model_validate(reached | {"root": storage_root(given["stateLocation"])}),
                source=_source(given),
                relay=_relay(given),
                path_style=path_style,
                any_bucket="bucket" not in given,
                max_partitions=number_option(FORMAT, given, "maxPartitions", 8),
                inference=schema_options(FORMAT, given, reached),
            )
        except ValidationError as error:
            names = _REACHED | _READ | _RELAYED | _NAMED
            raise unfit_option(FORMAT, error, names, otherwise=_whole(error)) from None

    def landing(self, bucket: str) -> StorageSpec:
        """How a bucket is reached."""
        return StorageSpec(root=f"s3://{bucket}", path_style=self.path_style, **self.messaging.model_dump())


def schema_missing() -> ConfigError:
    """The error where no schema is given, and no place for one that is found."""
    return invalid_option(
        FORMAT,
        LOCATION,
        'is required where no schema is given by .schema("id long, at timestamp"): columns are then found in the first '
        "files, and kept there, so that they are the same when the query starts again or beside another, and change by "
        "rules. Give a folder of this source's own, s3://bucket/folder",
    )


def _whole(error: ValidationError) -> str:
    """The option behind a mistake that is of no single field, by the spec it was found in."""
    return "fileFormat" if error.title == FileSourceSpec.__name__ else "accessKey"


def _chosen(given: Mapping[str, str], names: Mapping[str, str]) -> dict[str, Any]:
    """The options that are given, under the names specs have for them."""
    return {target: given[name] for target, name in names.items() if given.get(name)}


def _list(given: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in given.get(name, "").split(",") if part.strip())


def _aws(given: Mapping[str, str]) -> dict[str, Any]:
    return _chosen(given, _REACHED)


def _source(given: Mapping[str, str]) -> FileSourceSpec:
    columns = _list(given, "columns")
    csv: dict[str, Any] = {"header": not columns, "columns": columns} | _chosen(given, {"delimiter": "delimiter"})
    declared = _chosen(given, _READ)
    fixed = {"kind": "s3_sqs", "relay": RELAY, "bucket": given.get("bucket", ANY_BUCKET), "format": given["fileFormat"]}
    more = {"csv": csv, "tsv": {"columns": columns}, "partition_columns": _list(given, "partitionColumns")}
    return FileSourceSpec.model_validate({"max_files_per_batch": 1000} | declared | fixed | more)


def _relay(given: Mapping[str, str]) -> RelaySpec:
    declared = _chosen(given, _RELAYED)
    buckets = (given.get("bucket", ANY_BUCKET),)
    # Short, so that a query that was killed leaves nothing its successor has to wait for long.
    return RelaySpec.model_validate(
        {"relay": RELAY, "queue_url": given["queueUrl"], "buckets": buckets, "lease_ttl_seconds": 10} | declared
    )
