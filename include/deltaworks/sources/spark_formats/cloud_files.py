"""Parses the options of `format("cloudFiles")`, which has option names of Databricks' Auto Loader.

Required: `.load(path)`, `cloudFiles.format` and columns, by `.schema(...)` or `cloudFiles.schemaHints`. Files are found
by listing the path or, with `cloudFiles.useNotifications` and `cloudFiles.queueUrl`, through an SQS queue. Options of
Auto Loader that have no meaning here are errors that name what to use instead.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from deltaworks.errors import ConfigError
from deltaworks.sources.spark_formats.options import (
    RELAY,
    STATE_PURPOSE,
    FileQueryOptions,
    region_of,
    select_options,
    split_list,
)
from deltaworks.sources.stream_options import (
    CHECKPOINT_OPTION,
    LOAD_PATH_OPTION,
    STATE_OPTION,
    boolean_option,
    check_option_names,
    check_unsupported,
    invalid_option,
    key_reference,
    number_option,
    option_validation_error,
    pop_checkpoint,
    state_root,
    storage_root,
)
from deltaworks.specs.base import resolve_text
from deltaworks.specs.relay import ListingSpec, RelaySpec
from deltaworks.specs.sources import FileSourceSpec
from deltaworks.specs.storage import AwsSpec, StorageSpec

FORMAT = "cloudFiles"
#: Name of the bucket in the file event log if files are on local disk.
_LOCAL_BUCKET = "local"
_FORMATS = ("json", "csv", "text", "parquet", "avro")
_RESCUED_COLUMN = "_rescued_data"
_GLOB = re.compile(r"[*?{\[]")
_S3_PATH = re.compile(r"s3[an]?://([^/]+)/?(.*)", re.DOTALL)
_INTERVAL = re.compile(r"\s*(\d+)\s*(minute|hour|day|week)s?\s*", re.IGNORECASE)
_INTERVAL_HOURS = {"minute": 1 / 60, "hour": 1.0, "day": 24.0, "week": 168.0}
_SPARK_SIZE = re.compile(r"(\d+)\s*([kmg])b?", re.IGNORECASE)
#: Interval of complete listings while later files have greater names.
_COMPLETE_LISTING_HOURS = 24.0
#: An interval that is over at each trigger, and one that never ends.
_EACH_TRIGGER_HOURS = 1e-9
_ONCE_HOURS = 1e6

_CLIENT_OPTIONS = {
    "region": "cloudFiles.region",
    "endpoint": "endpoint",
    "access_key": "cloudFiles.awsAccessKey",
    "secret_key": "cloudFiles.awsSecretKey",
}
#: Options by field of the specs, for messages of validation errors.
_SPEC_OPTIONS = {
    **_CLIENT_OPTIONS,
    "root": STATE_OPTION,
    "queue_url": "cloudFiles.queueUrl",
    "bucket": LOAD_PATH_OPTION,
    "prefix": LOAD_PATH_OPTION,
    "glob": LOAD_PATH_OPTION,
    "format": "cloudFiles.format",
    "partition_columns": "cloudFiles.partitionColumns",
    "max_files_per_batch": "cloudFiles.maxFilesPerTrigger",
    "max_bytes_per_batch": "cloudFiles.maxBytesPerTrigger",
    "max_object_bytes": "maxObjectBytes",
    "receive_threads": "cloudFiles.fetchParallelism",
    "backfill_interval_hours": "cloudFiles.backfillInterval",
    "delimiter": "sep",
    "columns": "header",
    "csv": "header",
    "compression": "compression",
}
_OPTIONS = (
    *("cloudFiles.format", "cloudFiles.schemaHints", "cloudFiles.schemaLocation", "cloudFiles.schemaEvolutionMode"),
    *("cloudFiles.maxFilesPerTrigger", "cloudFiles.maxBytesPerTrigger", "cloudFiles.includeExistingFiles"),
    *("cloudFiles.useNotifications", "cloudFiles.queueUrl", "cloudFiles.fetchParallelism", "cloudFiles.region"),
    *("cloudFiles.backfillInterval", "cloudFiles.useIncrementalListing", "cloudFiles.allowOverwrites"),
    *("cloudFiles.partitionColumns", "cloudFiles.awsAccessKey", "cloudFiles.awsSecretKey", "rescuedDataColumn"),
    *("pathGlobFilter", "recursiveFileLookup", "header", "sep", "delimiter", "multiLine", "compression"),
    *(STATE_OPTION, "stateEndpoint", "endpoint", "pathStyle", "maxPartitions", "maxObjectBytes"),
)
_SCHEMA_EXAMPLE = '.schema("id long, at timestamp")'
_ROLE = "give the machine a role or a profile (AWS_PROFILE), or use cloudFiles.awsAccessKey and cloudFiles.awsSecretKey"
_DECLARED = f"columns are declared, not inferred: write {_SCHEMA_EXAMPLE} or cloudFiles.schemaHints"
_CLEAN = "use a lifecycle rule of the bucket; or a pipeline whose relay has `clean` (docs/reference/sources.md)"
_REMEMBERED = "omit it: all file names are remembered, so an old file is not read twice"
_ONLY_S3 = "files are on S3 or on a local disk"
_QUARANTINE = "omit it: content that cannot be read goes to the table file_quarantine of the state"
_TIMES = 'declare the column as string, and convert it with to_timestamp(column, "format")'
#: What to use instead of Auto Loader's other options.
_UNSUPPORTED = {
    "cloudFiles.inferColumnTypes": _DECLARED,
    "inferSchema": _DECLARED,
    "mergeSchema": _DECLARED,
    "cloudFiles.schemaInference.*": _DECLARED,
    "cloudFiles.cleanSource*": _CLEAN,
    "cloudFiles.maxFileAge": _REMEMBERED,
    "cloudFiles.useManagedFileEvents": "use cloudFiles.useNotifications with cloudFiles.queueUrl",
    "cloudFiles.listOnStart": "use cloudFiles.includeExistingFiles",
    "cloudFiles.useStrictGlobber": "omit it: in the path, * and ? match within a folder, ** across folders",
    "cloudFiles.pathRewrites": "omit it: paths are the keys of the bucket",
    "cloudFiles.resourceTag*": "tag the queue where it is created (`deltaworks wire` creates one)",
    "cloudFiles.snsTopic*": "subscribe a queue to the topic, and give cloudFiles.queueUrl",
    "cloudFiles.validateOptions": "omit it: unknown options are always errors",
    **dict.fromkeys(("cloudFiles.roleArn", "cloudFiles.roleExternalId", "cloudFiles.roleSessionName"), _ROLE),
    **dict.fromkeys(("cloudFiles.stsEndpoint", "databricks.serviceCredential", "serviceCredential"), _ROLE),
    **dict.fromkeys(("cloudFiles.clientId", "cloudFiles.clientSecret", "cloudFiles.connectionString"), _ONLY_S3),
    **dict.fromkeys(("cloudFiles.resourceGroup", "cloudFiles.subscriptionId", "cloudFiles.tenantId"), _ONLY_S3),
    **dict.fromkeys(("cloudFiles.projectId", "cloudFiles.client", "cloudFiles.clientEmail"), _ONLY_S3),
    **dict.fromkeys(("cloudFiles.privateKey", "cloudFiles.privateKeyId", "cloudFiles.subscription"), _ONLY_S3),
    **dict.fromkeys(("modifiedAfter", "modifiedBefore"), "use a glob in the path, or filter rows by a column"),
    **dict.fromkeys(("ignoreCorruptFiles", "ignoreMissingFiles", "badRecordsPath", "mode"), _QUARANTINE),
    **dict.fromkeys(("columnNameOfCorruptRecord",), _QUARANTINE),
    **dict.fromkeys(("dateFormat", "timestampFormat", "timeZone"), _TIMES),
    **dict.fromkeys(("encoding", "charset"), "omit it: text is UTF-8"),
    **dict.fromkeys(("primitivesAsString", "prefersDecimal"), _DECLARED),
    "readerCaseSensitive": "omit it: names of fields are case-sensitive",
    "wholetext": "omit it: each line is a row",
}


@dataclass(frozen=True, slots=True)
class _Location:
    """The files of a path: on S3, or on local disk below `folder`."""

    bucket: str
    prefix: str
    glob: str | None
    folder: str | None = None


def parse_cloud_files(options: Mapping[str, str], columns: Sequence[str] = ()) -> FileQueryOptions:
    """Parses the options as Spark passes them: lower-cased names, text values.

    Args:
        columns: names of the declared columns, which are those of a CSV file without a header.

    Raises:
        ConfigError: SOURCE_OPTION_INVALID, naming the option.
    """
    checkpoint, options = pop_checkpoint(options)
    check_unsupported(FORMAT, options, _UNSUPPORTED)
    values = check_option_names(FORMAT, options, _OPTIONS)
    path = values.get(LOAD_PATH_OPTION, "")
    location = _parse_path(path, values.get("pathGlobFilter"))
    rescued_column = _parse_rescued_column(values)
    path_style = boolean_option(FORMAT, values, "pathStyle", default=False)
    keys_grow = _parse_listing_mode(values)
    # Another spelling of the path, and another `pathGlobFilter`, have the same state.
    folders = _parse_path(path, None)
    files = f"{_root_of(folders)}/{folders.glob or folders.prefix}"
    folder = f"cloud_files-{hashlib.blake2b(files.encode(), digest_size=8).hexdigest()}"
    root = state_root(FORMAT, values, checkpoint=checkpoint, folder=folder, purpose=STATE_PURPOSE)
    if f"{root}/".startswith(f"{_root_of(location)}/{location.prefix}"):
        raise _invalid(LOAD_PATH_OPTION, f"contains the query's state {root}: use a checkpoint at another place")
    try:
        relay = _parse_relay(values, location, keys_grow=keys_grow)
        aws = _parse_aws(values, relay)
        reached = aws | select_options(values, {"endpoint": "stateEndpoint"}) | {"path_style": path_style}
        return FileQueryOptions(
            input=files,
            messaging=AwsSpec.model_validate(aws),
            state=StorageSpec.model_validate(reached | {"root": root}),
            source=_parse_source(values, location, tuple(name for name in columns if name != rescued_column)),
            relay=relay,
            path_style=path_style,
            any_bucket=False,
            max_partitions=number_option(FORMAT, values, "maxPartitions", 8),
            folder=location.folder,
            rescued_column=rescued_column,
            keys_grow=keys_grow,
        )
    except ValidationError as error:
        raise option_validation_error(FORMAT, error, _SPEC_OPTIONS, fallback="cloudFiles.format") from None


def declared_columns(options: Mapping[str, str]) -> str:
    """Returns the columns of a query without `.schema(...)` as DDL: the schema hints and the column of rescued data.

    Raises:
        ConfigError: SOURCE_OPTION_INVALID, there are no hints, or another option is invalid.
    """
    parsed = parse_cloud_files({**options, CHECKPOINT_OPTION: "file:///checkpoint/sources/0"})
    values = check_option_names(FORMAT, options, _OPTIONS)
    hints = values.get("cloudFiles.schemaHints", "").strip()
    if not hints and parsed.source.format == "text":
        hints = "value string"
    if not hints:
        raise ConfigError(
            "SOURCE_OPTION_INVALID",
            f"{FORMAT}: the query has no schema; columns are declared, not inferred.",
            hint=f"Declare the columns with {_SCHEMA_EXAMPLE} or with the option cloudFiles.schemaHints "
            "(docs/reference/sources.md). `deltaworks pipelines infer` proposes them from files.",
        )
    for hint in _split_columns(hints):
        name = hint.split()[0] if hint else ""
        if "." in name.replace("`.`", "."):
            outer, _, inner = name.partition(".")
            raise _invalid(
                "cloudFiles.schemaHints",
                f"names the nested field {name}: declare the complete column, such as {outer} struct<{inner}: string>",
            )
    is_rescuing = values.get("cloudFiles.schemaEvolutionMode", "rescue").lower() != "none"
    column = parsed.rescued_column or (_RESCUED_COLUMN if is_rescuing else None)
    return f"{hints}, `{column}` string" if column else hints


def _split_columns(ddl: str) -> list[str]:
    """Splits column definitions at the commas outside of types."""
    parts, depth = [""], 0
    for character in ddl:
        depth += (character in "<(") - (character in ">)")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _parse_path(path: str, name_filter: str | None) -> _Location:
    if not path:
        raise _invalid(LOAD_PATH_OPTION, "is required: write .load('s3://bucket/folder')")
    on_s3 = _S3_PATH.fullmatch(path)
    local = None if on_s3 is not None else storage_root(path)
    if local is not None and not local.startswith("file:///"):
        raise _invalid(LOAD_PATH_OPTION, f"must be s3://bucket/folder or a local folder, not {path}")
    if "[" in path or (name_filter is not None and "[" in name_filter):
        raise _invalid(LOAD_PATH_OPTION, "and pathGlobFilter may have *, ?, ** and {a,b}, but no [a-z]")
    if on_s3 is not None:
        bucket, key, folder = on_s3[1], on_s3[2].lstrip("/"), None
    else:
        fixed, key = _split_at_glob(str(local).removeprefix("file://").rstrip("/") + "/")
        bucket, folder = _LOCAL_BUCKET, f"file://{fixed.rstrip('/')}"
    prefix, rest = _split_at_glob(key)
    if not rest:
        prefix = f"{prefix.rstrip('/')}/" if prefix.strip("/") else ""
        return _Location(bucket, prefix, None if name_filter is None else f"{prefix}**/{name_filter}", folder)
    glob = key.rstrip("/")
    # A path names folders, except if its last part looks like a file name.
    is_file = "." in glob.rpartition("/")[2] and not key.endswith("/")
    if is_file and name_filter is not None:
        raise _invalid("pathGlobFilter", "is allowed only with a path of folders")
    if not is_file:
        below = f"**/{name_filter}" if name_filter is not None else "**"
        glob = f"{glob.rstrip('*')}{below}" if glob.endswith("*") else f"{glob}/{below}"
    return _Location(bucket, prefix, glob, folder)


def _split_at_glob(key: str) -> tuple[str, str]:
    """Splits a key before the first folder or file name that has a wildcard."""
    match = _GLOB.search(key)
    if match is None:
        return key, ""
    end = key.rfind("/", 0, match.start()) + 1
    return key[:end], key[end:]


def _root_of(location: _Location) -> str:
    return location.folder or f"s3://{location.bucket}"


def _parse_rescued_column(values: Mapping[str, str]) -> str | None:
    """Returns the name of the column for rescued data. Without the option, a declared `_rescued_data` is it."""
    mode = values.get("cloudFiles.schemaEvolutionMode", "").lower()
    if mode not in ("", "rescue", "none"):
        raise _invalid(
            "cloudFiles.schemaEvolutionMode",
            "must be rescue or none: restart the query with new columns in its schema",
        )
    if mode == "none":
        return values.get("rescuedDataColumn")
    return values.get("rescuedDataColumn", _RESCUED_COLUMN)


def _parse_listing_mode(values: Mapping[str, str]) -> bool:
    """Returns whether later files have greater names. `auto` means false, which lists completely at each trigger."""
    text = values.get("cloudFiles.useIncrementalListing", "auto").lower()
    if text not in ("auto", "true", "false"):
        raise _invalid("cloudFiles.useIncrementalListing", "must be auto, true or false")
    uses_notifications = boolean_option(FORMAT, values, "cloudFiles.useNotifications", default=False)
    return text == "true" and not uses_notifications


def _parse_relay(values: Mapping[str, str], location: _Location, *, keys_grow: bool) -> RelaySpec:
    interval = _parse_interval(values)
    queue_url = _parse_queue_url(values, location)
    reads_existing = boolean_option(FORMAT, values, "cloudFiles.includeExistingFiles", default=True)
    if queue_url is not None:
        interval_hours = interval or _ONCE_HOURS
    else:
        interval_hours = (interval or _COMPLETE_LISTING_HOURS) if keys_grow else _EACH_TRIGGER_HOURS
    listing = ListingSpec(
        prefix=location.prefix,
        glob=location.glob,
        include_existing=reads_existing,
        backfill_interval_hours=interval_hours,
    )
    is_listing = queue_url is None or reads_existing or interval is not None
    allows_overwrites = boolean_option(FORMAT, values, "cloudFiles.allowOverwrites", default=False)
    declared: dict[str, Any] = {
        "relay": RELAY,
        "queue_url": queue_url,
        "buckets": (location.bucket,),
        "listing": listing if is_listing else None,
        "overwrites": "latest" if allows_overwrites else "ignore",
        # Short, so a successor need not wait long for the lease of a killed query.
        "lease_ttl_seconds": 10,
    }
    return RelaySpec.model_validate(
        declared | select_options(values, {"receive_threads": "cloudFiles.fetchParallelism"})
    )


def _parse_queue_url(values: Mapping[str, str], location: _Location) -> str | None:
    queue_url = values.get("cloudFiles.queueUrl") or None
    if not boolean_option(FORMAT, values, "cloudFiles.useNotifications", default=False):
        if queue_url is not None:
            raise _invalid("cloudFiles.queueUrl", "needs cloudFiles.useNotifications true")
        return None
    if queue_url is None:
        raise _invalid(
            "cloudFiles.queueUrl",
            "is required with cloudFiles.useNotifications: queues are not created by queries. `deltaworks wire` "
            "connects a bucket to one; or omit both options to list the path",
        )
    if location.folder is not None:
        raise _invalid("cloudFiles.useNotifications", "needs files on S3")
    return queue_url


def _parse_interval(values: Mapping[str, str]) -> float | None:
    """Returns `cloudFiles.backfillInterval` in hours."""
    text = values.get("cloudFiles.backfillInterval")
    if text is None:
        return None
    match = _INTERVAL.fullmatch(text)
    if match is None or not int(match[1]):
        raise _invalid("cloudFiles.backfillInterval", "must be an interval such as 1 day, 12 hours or 1 week")
    return int(match[1]) * _INTERVAL_HOURS[match[2].lower()]


def _parse_aws(values: Mapping[str, str], relay: RelaySpec) -> dict[str, Any]:
    region = region_of(None if relay.queue_url is None else resolve_text(relay.queue_url))
    aws = {"region": region} | select_options(values, _CLIENT_OPTIONS)
    return aws | {name: key_reference(aws[name]) for name in ("access_key", "secret_key") if name in aws}


def _parse_source(values: Mapping[str, str], location: _Location, columns: tuple[str, ...]) -> FileSourceSpec:
    declared_format = values.get("cloudFiles.format", "").lower()
    if declared_format not in _FORMATS:
        problem = "is required" if not declared_format else f"cannot be {declared_format}"
        raise _invalid(
            "cloudFiles.format",
            f"{problem}: json, csv, text, parquet or avro. Spark's own file sources read other formats, such as "
            'spark.readStream.format("orc")',
        )
    boolean_option(FORMAT, values, "recursiveFileLookup", default=True)
    boolean_option(FORMAT, values, "multiLine", default=True)
    limits = {"max_files_per_batch": "cloudFiles.maxFilesPerTrigger", "max_object_bytes": "maxObjectBytes"}
    declared: dict[str, Any] = {
        "kind": "cloud_files",
        "relay": RELAY,
        "bucket": location.bucket,
        "prefix": location.prefix,
        "glob": location.glob,
        "format": declared_format,
        "partition_columns": split_list(values, "cloudFiles.partitionColumns"),
        "max_files_per_batch": 1000,
    }
    if declared_format == "csv":
        declared["csv"] = _parse_csv(values, columns)
    if declared_format == "text":
        declared["pattern"] = "(?P<value>.*)"
    if size := values.get("cloudFiles.maxBytesPerTrigger"):
        declared["max_bytes_per_batch"] = _SPARK_SIZE.sub(lambda match: f"{match[1]}{match[2].upper()}iB", size)
    return FileSourceSpec.model_validate(declared | select_options(values, limits | {"compression": "compression"}))


def _parse_csv(values: Mapping[str, str], columns: tuple[str, ...]) -> dict[str, Any]:
    """Returns the spec of CSV files. As in Spark, they have no header unless `header` is true."""
    has_header = boolean_option(FORMAT, values, "header", default=False)
    partition_columns = split_list(values, "cloudFiles.partitionColumns")
    # Before the query starts its columns are not known.
    names = tuple(name for name in columns if name not in partition_columns and not name.startswith("_")) or ("_c0",)
    delimiter = values.get("sep", values.get("delimiter", ","))
    return {
        "header": has_header,
        "columns": () if has_header else names,
        "delimiter": "\t" if delimiter == "\\t" else delimiter,
    }


def _invalid(name: str, problem: str) -> ConfigError:
    return invalid_option(FORMAT, name, problem)
