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
    boolean_option,
    check_option_names,
    invalid_option,
    number_option,
    option_validation_error,
    storage_root,
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
        named = check_option_names(_FORMAT, options, _NAMES)
        name, arn, region = _parse_stream(named)
        position, timestamp = _parse_initial_position(named)
        return cls(
            stream=name,
            arn=arn,
            aws=_parse_aws(named, region),
            state=_parse_state(named),
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


def _parse_stream(options: Mapping[str, str]) -> tuple[str, str | None, str]:
    """Returns the stream's name, ARN (None if only the name is given) and region."""
    arn, name = options.get("streamARN"), options.get("streamName")
    if (arn is None) == (name is None):
        raise _invalid_option("streamName", "or streamARN is required, and not both")
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


def _parse_state(options: Mapping[str, str]) -> StorageSpec:
    if not options.get("stateLocation"):
        raise _invalid_option(
            "stateLocation",
            "is required: tasks agree on the end of each batch through objects there, since neither Kinesis nor "
            "Spark's checkpoint provides it. Choose a separate folder for each query: s3://bucket/folder or, on "
            "one machine, file:///folder",
        )
    names = {
        "root": "stateLocation",
        "endpoint": "stateEndpoint",
        "region": "stateRegion",
        "access_key": "stateAccessKey",
        "secret_key": "stateSecretKey",
        "path_style": "statePathStyle",
    }
    fields = {field: options[name] for field, name in names.items() if name in options}
    fields["root"] = storage_root(options["stateLocation"])
    try:
        return StorageSpec.model_validate(fields)
    except ValidationError as error:
        raise option_validation_error(_FORMAT, error, names, fallback="accessKey") from None


def _parse_initial_position(options: Mapping[str, str]) -> tuple[InitialPosition, datetime | None]:
    position = options.get("initialPosition", "trim_horizon").lower()
    text = options.get("initialTimestamp")
    if position not in get_args(InitialPosition):
        raise _invalid_option("initialPosition", f"must be one of {', '.join(get_args(InitialPosition))}")
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
