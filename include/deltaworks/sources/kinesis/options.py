"""Parses the options of `format("kinesis")`, and renders them from specs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, get_args

from pydantic import ValidationError

from deltaworks.control.clock import parse_iso
from deltaworks.errors import ConfigError
from deltaworks.sources.kinesis.positions import Offset
from deltaworks.sources.kinesis.shard_range_reader import FetchOptions
from deltaworks.sources.stream_options import (
    CHECKPOINT_OPTION,
    STATE_OPTION,
    boolean_option,
    check_option_names,
    check_unsupported,
    invalid_option,
    key_reference,
    number_option,
    option_validation_error,
    pop_checkpoint,
    rename_options,
    state_root,
)
from deltaworks.specs.storage import AwsSpec, StorageSpec

_FORMAT = "kinesis"
InitialPosition = Literal["trim_horizon", "latest", "at_timestamp"]
ConsumerMode = Literal["polling", "fan_out"]
_NAMES = (
    *("streamName", "streamARN", "region", "endpoint", "accessKey", "secretKey", "initialPosition", "initialTimestamp"),
    *("stateLocation", "stateEndpoint", "stateRegion", "stateAccessKey", "stateSecretKey", "statePathStyle"),
    *("maxRecords", "maxBytes", "maxSeconds", "allowDataLoss", "deaggregate", "startOffset", "keepBatches"),
    *("consumerMode", "consumerName"),
)
#: Option names of published code for other Kinesis sources of Spark. Their keys may be literal.
_PUBLISHED_KEYS = {"awsAccessKey": "accessKey", "awsAccessKeyId": "accessKey", "awsSecretKey": "secretKey"}
_PUBLISHED_NAMES = {**_PUBLISHED_KEYS, "endpointUrl": "endpoint", "startingPosition": "initialPosition"}
_PUBLISHED_POSITIONS = {"earliest": "trim_horizon"}
_POSITIONS = "trim_horizon (or earliest), latest, at_timestamp"
_ROLE = "give the machine a role or a profile (AWS_PROFILE) that assumes it, and omit the keys"
_BATCH_LIMITS = "maxRecords, maxBytes and maxSeconds limit a batch"
_ONE_TASK = "one task reads each shard, with its own client; omit it"
#: What to use instead of options that other Kinesis sources have.
_UNSUPPORTED = {
    **dict.fromkeys(("roleArn", "roleExternalId", "roleSessionName", "stsEndpoint"), _ROLE),
    **dict.fromkeys(("awsSTSRoleARN", "awsSTSSessionName", "awsUseInstanceProfile", "serviceCredential"), _ROLE),
    **dict.fromkeys(("maxRecordsPerFetch", "maxFetchRate", "minFetchPeriod", "maxFetchDuration"), _BATCH_LIMITS),
    **dict.fromkeys(("fetchBufferSize", "kinesis.executor.*"), _BATCH_LIMITS),
    **dict.fromkeys(("shardsPerTask", "coalesceThresholdBlockSize", "coalesceBinSize", "coalesce"), _ONE_TASK),
    **dict.fromkeys(("reuseKinesisClient", "avoidEmptyPolls"), _ONE_TASK),
    **dict.fromkeys(("shardFetchInterval", "describeShardInterval"), "shards are listed every 10 seconds; omit it"),
    **dict.fromkeys(("clientRetries", "kinesis.client.*"), "throttling is retried for two minutes; omit it"),
    **dict.fromkeys(("consumerNamePrefix", "registeredConsumerId"), "use consumerName"),
    "consumerRefreshInterval": "subscriptions are renewed when they end; omit it",
    **dict.fromkeys(
        ("requireConsumerDeregistration", "deregisterConsumerTimeoutS"),
        "a consumer remains; `aws kinesis deregister-stream-consumer` removes it",
    ),
    "failOnDataLoss": "use allowDataLoss, which is its opposite",
}
_CONSUMER_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisOptions:
    """Parsed options: the stream, where the query starts, its limits, and the location of its state.

    `consumer` is the name of the registered consumer for enhanced fan-out; None for polling.
    """

    stream: str
    arn: str | None
    aws: AwsSpec
    state: StorageSpec
    initial_position: InitialPosition = "trim_horizon"
    initial_timestamp: datetime | None = None
    max_records: int = 100_000
    max_bytes: int = 256 << 20
    max_seconds: int = 30
    fetch: FetchOptions = field(default_factory=FetchOptions)
    start_offset: Offset | None = None
    retained_batches: int = 100
    consumer: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> KinesisOptions:
        """Parses the options as Spark passes them: lower-cased names, text values.

        Raises:
            ConfigError: SOURCE_OPTION_INVALID, naming the option. The message contains no secret.
        """
        checkpoint, options = pop_checkpoint(options)
        check_unsupported(_FORMAT, options, _UNSUPPORTED)
        named = check_option_names(_FORMAT, _rename_published(options), _NAMES)
        name, arn, region = _parse_stream(named)
        position, timestamp = _parse_initial_position(named)
        return cls(
            stream=name,
            arn=arn,
            aws=_parse_aws(named, region),
            state=_parse_state(named, checkpoint),
            initial_position=position,
            initial_timestamp=timestamp,
            max_records=number_option(_FORMAT, named, "maxRecords", 100_000),
            max_bytes=number_option(_FORMAT, named, "maxBytes", 256 << 20),
            max_seconds=number_option(_FORMAT, named, "maxSeconds", 30),
            fetch=FetchOptions(
                deaggregate=boolean_option(_FORMAT, named, "deaggregate", default=True),
                allow_data_loss=boolean_option(_FORMAT, named, "allowDataLoss", default=False),
            ),
            start_offset=_parse_start_offset(named),
            retained_batches=number_option(_FORMAT, named, "keepBatches", 100, minimum=2),
            consumer=_parse_consumer(named),
        )


def check_options(options: Mapping[str, str]) -> None:
    """Rejects options that no query can start with. The location of the checkpoint is unknown before the start.

    Raises:
        ConfigError: SOURCE_OPTION_INVALID.
    """
    KinesisOptions.parse({**options, CHECKPOINT_OPTION: "file:///checkpoint/sources/0"})


def render_options(aws: AwsSpec, state: StorageSpec, *, stream: str, **extra: object) -> dict[str, str]:
    """Renders specs as options of `format("kinesis")`. Secrets stay references. `extra` has further options by name."""
    rendered: dict[str, object | None] = {
        "streamName": stream,
        "region": aws.region,
        "endpoint": aws.endpoint,
        "accessKey": aws.access_key,
        "secretKey": aws.secret_key,
        "stateLocation": state.root,
        "stateRegion": state.region,
        "stateEndpoint": state.endpoint,
        "stateAccessKey": state.access_key,
        "stateSecretKey": state.secret_key,
        "statePathStyle": str(state.path_style).lower(),
    }
    return {name: str(value) for name, value in {**rendered, **extra}.items() if value is not None}


def _rename_published(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the options with this source's names instead of published ones, and references instead of literal
    keys.
    """
    keys = {name.lower() for name in _PUBLISHED_KEYS}
    without_keys = {
        name: key_reference(value) if name.lower() in keys and value else value for name, value in options.items()
    }
    return rename_options(_FORMAT, without_keys, _PUBLISHED_NAMES)


def _parse_stream(options: Mapping[str, str]) -> tuple[str, str | None, str]:
    """Returns the stream's name, ARN (None if only the name is given) and region."""
    arn, name = options.get("streamARN"), options.get("streamName")
    if (arn is None) == (name is None):
        raise _invalid_option("streamName", "or streamARN is required, and not both")
    if name is not None and "," in name:
        raise _invalid_option(
            "streamName", "must be one stream: read each with its own `readStream`, then `union` them"
        )
    if name is not None:
        return name, None, options.get("region", "us-east-1")
    parts = (arn or "").split(":")
    if len(parts) != 6 or parts[2] != "kinesis" or not parts[5].startswith("stream/"):
        raise _invalid_option(
            "streamARN", "is no ARN of a stream, such as arn:aws:kinesis:eu-west-1:123456789012:stream/games"
        )
    if options.get("region", parts[3]) != parts[3]:
        raise _invalid_option("region", f"is {options['region']}, but the streamARN is in {parts[3]}")
    return parts[5].removeprefix("stream/"), arn, parts[3]


def _parse_aws(options: Mapping[str, str], region: str) -> AwsSpec:
    names = {"endpoint": "endpoint", "access_key": "accessKey", "secret_key": "secretKey"}
    fields = {field: options[name] for field, name in names.items() if name in options}
    try:
        return AwsSpec.model_validate({"region": region, **fields})
    except ValidationError as error:
        raise option_validation_error(_FORMAT, error, names, fallback="accessKey") from None


def _parse_state(options: Mapping[str, str], checkpoint: str) -> StorageSpec:
    names = {
        "root": STATE_OPTION,
        "endpoint": "stateEndpoint",
        "region": "stateRegion",
        "access_key": "stateAccessKey",
        "secret_key": "stateSecretKey",
        "path_style": "statePathStyle",
    }
    fields = {field: options[name] for field, name in names.items() if name in options}
    fields["root"] = state_root(
        _FORMAT,
        options,
        checkpoint=checkpoint,
        # Two sources of one query each have a state: their batches end at different records.
        folder=f"kinesis-{checkpoint.rstrip('/').rpartition('/')[2]}",
        purpose="tasks agree on the end of each batch through objects there, since Kinesis does not provide it. Choose "
        "a separate folder for each query: s3://bucket/folder or, on one machine, file:///folder",
    )
    try:
        return StorageSpec.model_validate(fields)
    except ValidationError as error:
        raise option_validation_error(_FORMAT, error, names, fallback="accessKey") from None


def _parse_initial_position(options: Mapping[str, str]) -> tuple[InitialPosition, datetime | None]:
    position = options.get("initialPosition", "trim_horizon").lower()
    position = _PUBLISHED_POSITIONS.get(position, position)
    text = options.get("initialTimestamp")
    if position not in get_args(InitialPosition):
        raise _invalid_option(
            "initialPosition", f"must be one of {_POSITIONS}, the last with the time in initialTimestamp"
        )
    if (position == "at_timestamp") != (text is not None):
        raise _invalid_option(
            "initialTimestamp", ("is allowed only with initialPosition at_timestamp, and required there")
        )
    try:
        timestamp = parse_iso(text)
    except ValueError:
        raise _invalid_option("initialTimestamp", "must be ISO 8601, such as 2026-01-31T12:00:00Z") from None
    checked: Any = position
    return checked, timestamp


def _parse_consumer(options: Mapping[str, str]) -> str | None:
    """Returns the consumer's name, or None in mode `polling`, even if a name is given: the mode alone turns fan-out
    off.
    """
    mode, name = options.get("consumerMode", "polling").lower(), options.get("consumerName")
    if mode not in get_args(ConsumerMode):
        raise invalid_option(_FORMAT, "consumerMode", f"must be one of {', '.join(get_args(ConsumerMode))}")
    if name is not None and not _CONSUMER_NAME.fullmatch(name):
        raise invalid_option(_FORMAT, "consumerName", "must have at most 128 characters: letters, digits, _ . and -")
    if mode == "polling":
        return None
    if name is None:
        problem = "is required with fan_out: queries that share a consumer take shards from each other"
        raise invalid_option(_FORMAT, "consumerName", problem)
    return name


def _parse_start_offset(options: Mapping[str, str]) -> Offset | None:
    if not options.get("startOffset"):
        return None
    try:
        return Offset.from_json(json.loads(options["startOffset"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _invalid_option("startOffset", "must be an end offset of this source, as JSON") from None


def _invalid_option(name: str, problem: str) -> ConfigError:
    return invalid_option(_FORMAT, name, problem)
