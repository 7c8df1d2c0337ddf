"""Typed calls to Kinesis. Throttling and outages are retried with jitter up to a limit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from deltaworks.control.clock import utc_now
from deltaworks.control.objects import aws_session
from deltaworks.errors import ConfigError, ContractError, DeltaworksError, TransientError
from deltaworks.sources.kinesis.pages import Page, Subscription, parse_page, parse_records_body, split_event_stream
from deltaworks.sources.kinesis.positions import Position
from deltaworks.sources.kinesis.shards import Shard
from deltaworks.sources.kinesis.stream_api import (
    MAX_PAGE_RECORDS,
    RETRY_SECONDS,
    Consumer,
    IteratorExpired,
    ShardNotFound,
    StreamSummary,
)
from deltaworks.sources.outages import error_code, is_outage, retry_outages
from deltaworks.specs.storage import AwsSpec

_CLOCK_TOLERANCE = timedelta(seconds=2)
_INVALID_POSITION_CODES = frozenset({"InvalidArgumentException", "ValidationException"})
_SUBSCRIBE_OPERATION = "subscribe_to_shard"
_POSITIONED_OPERATIONS = frozenset({"get_shard_iterator", _SUBSCRIBE_OPERATION})
#: Argument names of GetShardIterator for the parts of a starting position.
_ITERATOR_ARGUMENTS = {"Type": "ShardIteratorType", "SequenceNumber": "StartingSequenceNumber"}
_IN_USE_CODE = "ResourceInUseException"
#: A shard can be subscribed to again after five seconds.
_MAX_PAUSE_SECONDS = 2.0
#: Kinesis uses the same error code for too many calls and too many consumers.
_REGISTER_RETRY_SECONDS = 20.0


class KinesisStream:
    """Client for one stream, by name or ARN. Thread-safe.

    Every call raises ConfigError KINESIS_STREAM_MISSING or KINESIS_REFUSED, or TransientError KINESIS_UNREACHABLE if
    the server throttled or failed for all of `retry_seconds`.
    """

    def __init__(self, aws: AwsSpec, *, name: str, arn: str | None = None) -> None:
        # Retries happen here, where throttling is distinguished from failure and the total wait is bounded.
        config = Config(connect_timeout=5, read_timeout=30, retries={"total_max_attempts": 1}, max_pool_connections=32)
        self._client: Any = aws_session().client("kinesis", config=config, **aws.boto3_options())
        self._client.meta.events.register("before-parse.kinesis.GetRecords", parse_records_body)
        self._client.meta.events.register("before-parse.kinesis.SubscribeToShard", split_event_stream)
        self.name = name
        self._stream: dict[str, Any] = {"StreamARN": arn} if arn else {"StreamName": name}
        self._clock_offset = timedelta()

    def now(self) -> datetime:
        return utc_now() + self._clock_offset

    def summary(self) -> StreamSummary:
        description = self._call("describe_stream_summary", **self._stream)["StreamDescriptionSummary"]
        return StreamSummary(
            arn=description["StreamARN"],
            created=description["StreamCreationTimestamp"].astimezone(UTC),
            retention=timedelta(hours=description["RetentionPeriodHours"]),
        )

    def shards(self) -> list[Shard]:
        shards: list[Shard] = []
        page: dict[str, Any] = {"MaxResults": 1000, **self._stream}
        while True:
            response = self._call("list_shards", **page)
            shards += [_parse_shard(entry) for entry in response["Shards"]]
            if not response.get("NextToken"):
                return shards
            # A pagination token already identifies the stream.
            page = {"MaxResults": 1000, "NextToken": response["NextToken"]}

    def iterator(self, shard_id: str, position: Position, *, inclusive: bool = False) -> str:
        starting_position = _starting_position(position, inclusive=inclusive)
        arguments = {_ITERATOR_ARGUMENTS.get(name, name): value for name, value in starting_position.items()}
        try:
            return str(self._call("get_shard_iterator", ShardId=shard_id, **arguments, **self._stream)["ShardIterator"])
        except ClientError as error:
            self.summary()  # raises if the stream itself does not exist
            raise self._position_error(error, shard_id, position) from error

    def subscribe(
        self,
        consumer_arn: str,
        shard_id: str,
        position: Position,
        *,
        inclusive: bool = False,
        retry_seconds: float = RETRY_SECONDS,
    ) -> Subscription:
        starting_position = _starting_position(position, inclusive=inclusive)
        arguments = {"ConsumerARN": consumer_arn, "ShardId": shard_id, "StartingPosition": starting_position}
        try:
            return Subscription(self._call(_SUBSCRIBE_OPERATION, retry_seconds=retry_seconds, **arguments)["Frames"])
        except ClientError as error:
            self.summary()
            if all(consumer.arn != consumer_arn for consumer in self.consumers()):
                raise TransientError(
                    "KINESIS_CONSUMER_REMOVED",
                    f"The consumer {consumer_arn} was removed while the query read through it.",
                ) from error
            raise self._position_error(error, shard_id, position) from error

    def consumer(self, name: str) -> Consumer | None:
        return next((consumer for consumer in self.consumers() if consumer.name == name), None)

    def consumers(self) -> list[Consumer]:
        """Returns all consumers that are registered with the stream."""
        consumers: list[Consumer] = []
        page: dict[str, Any] = {"StreamARN": self.summary().arn}
        while True:
            response = self._call("list_stream_consumers", **page)
            consumers += [_parse_consumer(entry) for entry in response["Consumers"]]
            if not response.get("NextToken"):
                return consumers
            page["NextToken"] = response["NextToken"]

    def register_consumer(self, name: str) -> None:
        arn = self.summary().arn
        try:
            self._call(
                "register_stream_consumer",
                retry_seconds=_REGISTER_RETRY_SECONDS,
                StreamARN=arn,
                ConsumerName=name,
            )
        except DeltaworksError as error:
            code = error_code(error.__cause__) if isinstance(error.__cause__, ClientError) else ""
            if code == "LimitExceededException":
                raise ConfigError(
                    "KINESIS_CONSUMER_LIMIT",
                    f"The stream {self.name} cannot register the consumer {name}: {error.__cause__}.",
                ) from error
            if code != _IN_USE_CODE:
                raise

    def deregister_consumer(self, name: str) -> None:
        """Removes a consumer; queries that read through it fail. Idempotent."""
        self._call("deregister_stream_consumer", StreamARN=self.summary().arn, ConsumerName=name)

    def records(self, iterator: str, limit: int, *, retry_seconds: float = RETRY_SECONDS) -> Page:
        arguments: dict[str, Any] = {"ShardIterator": iterator, "Limit": min(limit, MAX_PAGE_RECORDS)}
        if "StreamARN" in self._stream:
            arguments |= self._stream
        return parse_page(self._call("get_records", retry_seconds=retry_seconds, **arguments))

    def _call(self, operation: str, *, retry_seconds: float = RETRY_SECONDS, **arguments: Any) -> Any:
        call: Callable[..., Any] = (
            self._subscribe if operation == _SUBSCRIBE_OPERATION else getattr(self._client, operation)
        )
        max_pause = _MAX_PAUSE_SECONDS if operation == _SUBSCRIBE_OPERATION else 15.0
        try:
            response = retry_outages(
                lambda: call(**arguments), retry_seconds=retry_seconds, max_pause_seconds=max_pause
            )
        except (ClientError, BotoCoreError, DeltaworksError) as error:
            self._raise_call_error(operation, error)
        self._record_server_time(response["ResponseMetadata"]["HTTPHeaders"].get("date"))
        return response

    def _subscribe(self, **arguments: Any) -> Any:
        """Calls SubscribeToShard once. Rejections because of a recent subscription, and responses that are cut off
        immediately, are retryable.
        """
        try:
            return self._client.subscribe_to_shard(**arguments)
        except ClientError as error:
            if error_code(error) != _IN_USE_CODE:
                raise
            raise TransientError(
                "KINESIS_CONSUMER_BUSY",
                f"{arguments['ShardId']} was subscribed to within the last five seconds, or its consumer is not "
                f"ready: {error}.",
            ) from error
        except (ResponseParserError, HTTPError) as error:
            raise TransientError(
                "KINESIS_ANSWER_UNREADABLE",
                f"The subscription to {arguments['ShardId']} was cut off at its start: {error}.",
            ) from error

    def _raise_call_error(self, operation: str, error: ClientError | BotoCoreError | DeltaworksError) -> NoReturn:
        if is_outage(error):
            raise TransientError(
                "KINESIS_UNREACHABLE",
                f"{operation} of the stream {self.name} was throttled or failed in all retries: {error}.",
            ) from error
        code = error_code(error) if isinstance(error, ClientError) else type(error).__name__
        if code == "ExpiredIteratorException":
            raise IteratorExpired(str(error)) from error
        if operation in _POSITIONED_OPERATIONS and (
            code == "ResourceNotFoundException" or code in _INVALID_POSITION_CODES
        ):
            raise error
        if code == "ResourceNotFoundException":
            hint = "Check streamName or streamARN, and region."
            raise ConfigError(
                "KINESIS_STREAM_MISSING", f"There is no stream {self.name}: {error}.", hint=hint
            ) from error
        hint = "Check region, endpoint, keys and permissions (docs/reference/sources.md lists the actions)."
        raise ConfigError(
            "KINESIS_REFUSED", f"{operation} of the stream {self.name} was refused: {error}.", hint=hint
        ) from error

    def _position_error(self, error: ClientError, shard_id: str, position: Position) -> Exception:
        """Returns the error for a start position that Kinesis rejects although the stream exists."""
        if error_code(error) == "ResourceNotFoundException":
            return ShardNotFound(shard_id)
        return ContractError(
            "KINESIS_POSITION_INVALID",
            f"The stream {self.name} has no position {position.to_json()} in {shard_id}: {error}.",
        )

    def _record_server_time(self, date: str | None) -> None:
        """Corrects `now` by the server's Date header, which has a resolution of one second, if the local clock is
        wrong.
        """
        if date:
            clock_offset = parsedate_to_datetime(date) - utc_now()
            self._clock_offset = clock_offset if abs(clock_offset) > _CLOCK_TOLERANCE else timedelta()


def _parse_shard(entry: dict[str, Any]) -> Shard:
    parents = (entry.get("ParentShardId"), entry.get("AdjacentParentShardId"))
    closed = "EndingSequenceNumber" in entry["SequenceNumberRange"]
    return Shard(entry["ShardId"], tuple(parent for parent in parents if parent), closed)


def _parse_consumer(entry: dict[str, Any]) -> Consumer:
    return Consumer(
        name=entry["ConsumerName"],
        arn=entry["ConsumerARN"],
        status=entry["ConsumerStatus"],
        created=entry["ConsumerCreationTimestamp"].astimezone(UTC),
    )


def _starting_position(position: Position, *, inclusive: bool) -> dict[str, Any]:
    """Converts a position to the StartingPosition of the Kinesis API."""
    if position.after is not None:
        kind = "AT_SEQUENCE_NUMBER" if inclusive else "AFTER_SEQUENCE_NUMBER"
        return {"Type": kind, "SequenceNumber": position.after}
    if position.at is not None:
        return {"Type": "AT_TIMESTAMP", "Timestamp": position.at}
    return {"Type": "TRIM_HORIZON"}
