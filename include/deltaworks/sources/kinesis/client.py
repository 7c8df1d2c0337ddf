"""The calls to Kinesis. Throttling and outages are waited for here, with jitter and a bound; answers are typed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from deltaworks.control.aws_sessions import aws_session
from deltaworks.control.clock import utc_now
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
#: What a starting position's parts are called where an iterator is asked for.
_ITERATOR_ARGUMENTS = {"Type": "ShardIteratorType", "SequenceNumber": "StartingSequenceNumber"}
_IN_USE_CODE = "ResourceInUseException"
#: A shard can be subscribed to again five seconds after it was.
_MAX_PAUSE_SECONDS = 2.0
#: Too many calls and too many consumers are refused with the same word.
_REGISTER_RETRY_SECONDS = 20.0


class KinesisStream:
    """A stream by its name or ARN. Safe to share between threads.

    Every call raises ConfigError KINESIS_STREAM_MISSING or KINESIS_REFUSED, or TransientError KINESIS_UNREACHABLE
    when the server throttled or failed for longer than the patience.
    """

    def __init__(self, aws: AwsSpec, *, name: str, arn: str | None = None) -> None:
        # Attempts are made here, where throttling is distinguished from failure and waits are bounded as a whole.
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
            answer = self._call("list_shards", **page)
            shards += [_parse_shard(listed) for listed in answer["Shards"]]
            if not answer.get("NextToken"):
                return shards
            # A token stands for the stream too.
            page = {"MaxResults": 1000, "NextToken": answer["NextToken"]}

    def iterator(self, shard_id: str, position: Position, *, inclusive: bool = False) -> str:
        place = _starting_position(position, inclusive=inclusive)
        arguments = {_ITERATOR_ARGUMENTS.get(name, name): value for name, value in place.items()}
        try:
            return str(self._call("get_shard_iterator", ShardId=shard_id, **arguments, **self._stream)["ShardIterator"])
        except ClientError as error:
            self.summary()  # raises where it is the stream that is gone
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
        place = _starting_position(position, inclusive=inclusive)
        arguments = {"ConsumerARN": consumer_arn, "ShardId": shard_id, "StartingPosition": place}
        try:
            return Subscription(self._call(_SUBSCRIBE_OPERATION, retry_seconds=retry_seconds, **arguments)["Frames"])
        except ClientError as error:
            self.summary()
            if all(consumer.arn != consumer_arn for consumer in self.consumers()):
                raise TransientError(
                    "KINESIS_CONSUMER_REMOVED",
                    f"The consumer {consumer_arn} was removed while it was read through.",
                    hint="The next start registers it again; see that nobody else removes it.",
                ) from error
            raise self._position_error(error, shard_id, position) from error

    def consumer(self, name: str) -> Consumer | None:
        return next((consumer for consumer in self.consumers() if consumer.name == name), None)

    def consumers(self) -> list[Consumer]:
        """All consumers that are registered with the stream."""
        consumers: list[Consumer] = []
        page: dict[str, Any] = {"StreamARN": self.summary().arn}
        while True:
            answer = self._call("list_stream_consumers", **page)
            consumers += [_parse_consumer(listed) for listed in answer["Consumers"]]
            if not answer.get("NextToken"):
                return consumers
            page["NextToken"] = answer["NextToken"]

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
                    f"The stream {self.name} takes no consumer {name}: {error.__cause__}.",
                    hint="See `deltaworks consumers list`; a stream has 20 at most.",
                ) from error
            if code != _IN_USE_CODE:
                raise

    def deregister_consumer(self, name: str) -> None:
        """Remove a consumer; what reads through it fails. One that is not there is no error."""
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
        longest = _MAX_PAUSE_SECONDS if operation == _SUBSCRIBE_OPERATION else 15.0
        try:
            answer = retry_outages(lambda: call(**arguments), retry_seconds=retry_seconds, max_pause_seconds=longest)
        except (ClientError, BotoCoreError, DeltaworksError) as error:
            self._raise_call_error(operation, error)
        self._record_server_time(answer["ResponseMetadata"]["HTTPHeaders"].get("date"))
        return answer

    def _subscribe(self, **arguments: Any) -> Any:
        """One attempt. A shard the consumer has just subscribed to, and an answer cut off at once, are waited for."""
        try:
            return self._client.subscribe_to_shard(**arguments)
        except ClientError as error:
            if error_code(error) != _IN_USE_CODE:
                raise
            raise TransientError(
                "KINESIS_CONSUMER_BUSY",
                f"{arguments['ShardId']} was subscribed to a moment ago, or its consumer is not ready: {error}.",
                hint="A consumer is for one query alone: give each query a consumerName of its own.",
            ) from error
        except (ResponseParserError, HTTPError) as error:
            raise TransientError(
                "KINESIS_ANSWER_UNREADABLE",
                f"The subscription to {arguments['ShardId']} was cut off as it began: {error}.",
                hint="Check what stands between this machine and the endpoint.",
            ) from error

    def _raise_call_error(self, operation: str, error: ClientError | BotoCoreError | DeltaworksError) -> NoReturn:
        if is_outage(error):
            raise TransientError(
                "KINESIS_UNREACHABLE",
                f"{operation} of the stream {self.name} throttled or failed until patience ended: {error}.",
                hint="Check the endpoint; where it throttles, see who else reads the shard (5 reads/s, 2 MB/s).",
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
            "KINESIS_REFUSED", f"{operation} of the stream {self.name} refused: {error}.", hint=hint
        ) from error

    def _position_error(self, error: ClientError, shard_id: str, position: Position) -> Exception:
        """What to raise of a position that was refused, in a stream that is there."""
        if error_code(error) == "ResourceNotFoundException":
            return ShardNotFound(shard_id)
        return ContractError(
            "KINESIS_POSITION_INVALID",
            f"The stream {self.name} has no position {position.to_json()} in {shard_id}: {error}.",
            hint="It is another stream than the query began with, or its state is damaged: start a new query.",
        )

    def _record_server_time(self, date: str | None) -> None:
        """A machine whose clock is wrong goes by the server's, which gives whole seconds."""
        if date:
            ahead = parsedate_to_datetime(date) - utc_now()
            self._clock_offset = ahead if abs(ahead) > _CLOCK_TOLERANCE else timedelta()


def _parse_shard(listed: dict[str, Any]) -> Shard:
    parents = (listed.get("ParentShardId"), listed.get("AdjacentParentShardId"))
    closed = "EndingSequenceNumber" in listed["SequenceNumberRange"]
    return Shard(listed["ShardId"], tuple(parent for parent in parents if parent), closed)


def _parse_consumer(listed: dict[str, Any]) -> Consumer:
    return Consumer(
        name=listed["ConsumerName"],
        arn=listed["ConsumerARN"],
        status=listed["ConsumerStatus"],
        created=listed["ConsumerCreationTimestamp"].astimezone(UTC),
    )


def _starting_position(position: Position, *, inclusive: bool) -> dict[str, Any]:
    """A position as Kinesis takes it."""
    if position.after is not None:
        kind = "AT_SEQUENCE_NUMBER" if inclusive else "AFTER_SEQUENCE_NUMBER"
        return {"Type": kind, "SequenceNumber": position.after}
    if position.at is not None:
        return {"Type": "AT_TIMESTAMP", "Timestamp": position.at}
    return {"Type": "TRIM_HORIZON"}
