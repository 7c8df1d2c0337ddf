"""The calls to Kinesis. Throttling and outages are waited for here, with jitter and a bound; answers are typed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn, Protocol

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from deltaworks.control.clock import utc_now
from deltaworks.errors import ConfigError, ContractError, DeltaworksError, TransientError
from deltaworks.sources.kinesis.pages import Page, parse_page, take_body
from deltaworks.sources.kinesis.positions import Position
from deltaworks.sources.kinesis.shards import Shard
from deltaworks.sources.outages import error_code, is_outage, through_outages
from deltaworks.specs.storage import AwsSpec

PATIENCE_SECONDS = 120.0
#: GetRecords gives no more than this in one answer.
LARGEST_PAGE = 10_000
_CLOCKS_AGREE = timedelta(seconds=2)
_WRONG_POSITION = frozenset({"InvalidArgumentException", "ValidationException"})


class IteratorExpired(Exception):
    """An iterator is older than five minutes: get another one at the same place."""


class ShardGone(Exception):
    """A shard is not there any more: it was closed, and the retention has passed since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSummary:
    """What a stream says of itself. `created` tells it from another stream of the same name."""

    arn: str
    created: datetime
    retention: timedelta


class StreamCalls(Protocol):
    """What reading needs of a stream."""

    def now(self) -> datetime:
        """The time by the server's clock."""

    def summary(self) -> StreamSummary:
        """The stream's identity and retention."""

    def shards(self) -> list[Shard]:
        """All shards that are listed, closed ones among them."""

    def iterator(self, shard_id: str, position: Position, *, including: bool = False) -> str:
        """An iterator behind `position.after`, or at it when `including`."""

    def records(self, iterator: str, limit: int, *, patience_seconds: float = PATIENCE_SECONDS) -> Page:
        """The next page, of at most `limit` records and of 10 MiB; it may be empty before the tip."""


class KinesisStream:
    """A stream by its name or ARN. Safe to share between threads.

    Every call raises ConfigError KINESIS_STREAM_MISSING or KINESIS_REFUSED, or TransientError KINESIS_UNREACHABLE
    when the server throttled or failed for longer than the patience.
    """

    def __init__(self, aws: AwsSpec, *, name: str, arn: str | None = None) -> None:
        # Attempts are made here, where throttling is told from failure and waits are bounded as a whole.
        config = Config(connect_timeout=5, read_timeout=30, retries={"total_max_attempts": 1}, max_pool_connections=32)
        self._client: Any = boto3.session.Session().client("kinesis", config=config, **aws.boto3_options())
        self._client.meta.events.register("before-parse.kinesis.GetRecords", take_body)
        self._name = name
        self._stream: dict[str, Any] = {"StreamARN": arn} if arn else {"StreamName": name}
        self._ahead = timedelta()

    def now(self) -> datetime:
        return utc_now() + self._ahead

    def summary(self) -> StreamSummary:
        found = self._call("describe_stream_summary", **self._stream)["StreamDescriptionSummary"]
        return StreamSummary(
            arn=found["StreamARN"],
            created=found["StreamCreationTimestamp"].astimezone(UTC),
            retention=timedelta(hours=found["RetentionPeriodHours"]),
        )

    def shards(self) -> list[Shard]:
        found: list[Shard] = []
        page: dict[str, Any] = {"MaxResults": 1000, **self._stream}
        while True:
            answer = self._call("list_shards", **page)
            found += [_shard(listed) for listed in answer["Shards"]]
            if not answer.get("NextToken"):
                return found
            # A token stands for the stream too.
            page = {"MaxResults": 1000, "NextToken": answer["NextToken"]}

    def iterator(self, shard_id: str, position: Position, *, including: bool = False) -> str:
        asked: dict[str, Any] = {"ShardId": shard_id, **self._stream}
        if position.after is not None:
            asked["ShardIteratorType"] = "AT_SEQUENCE_NUMBER" if including else "AFTER_SEQUENCE_NUMBER"
            asked["StartingSequenceNumber"] = position.after
        elif position.at is not None:
            asked |= {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": position.at}
        else:
            asked["ShardIteratorType"] = "TRIM_HORIZON"
        try:
            return str(self._call("get_shard_iterator", **asked)["ShardIterator"])
        except ClientError as error:
            if error_code(error) == "ResourceNotFoundException":
                self.summary()  # raises where it is the stream that is gone
                raise ShardGone(shard_id) from error
            raise ContractError(
                "KINESIS_POSITION_INVALID",
                f"The stream {self._name} has no position {position.to_json()} in {shard_id}: {error}.",
                hint="It is another stream than the query began with, or its state is damaged: start a new query.",
            ) from error

    def records(self, iterator: str, limit: int, *, patience_seconds: float = PATIENCE_SECONDS) -> Page:
        arguments: dict[str, Any] = {"ShardIterator": iterator, "Limit": min(limit, LARGEST_PAGE)}
        if "StreamARN" in self._stream:
            arguments |= self._stream
        return parse_page(self._call("get_records", patience_seconds=patience_seconds, **arguments))

    def _call(self, operation: str, *, patience_seconds: float = PATIENCE_SECONDS, **arguments: Any) -> Any:
        call: Callable[..., Any] = getattr(self._client, operation)
        try:
            answer = through_outages(lambda: call(**arguments), patience_seconds=patience_seconds)
        except (ClientError, BotoCoreError, DeltaworksError) as error:
            self._raise(operation, error)
        self._note_time(answer["ResponseMetadata"]["HTTPHeaders"].get("date"))
        return answer

    def _raise(self, operation: str, error: ClientError | BotoCoreError | DeltaworksError) -> NoReturn:
        if is_outage(error):
            raise TransientError(
                "KINESIS_UNREACHABLE",
                f"{operation} of the stream {self._name} throttled or failed until patience ended: {error}.",
                hint="Check the endpoint; where it throttles, see who else reads the shard (5 reads/s, 2 MB/s).",
            ) from error
        code = error_code(error) if isinstance(error, ClientError) else type(error).__name__
        if code == "ExpiredIteratorException":
            raise IteratorExpired(str(error)) from error
        if operation == "get_shard_iterator" and (code == "ResourceNotFoundException" or code in _WRONG_POSITION):
            raise error
        if code == "ResourceNotFoundException":
            hint = "Check streamName or streamARN, and region."
            raise ConfigError("KINESIS_STREAM_MISSING", f"There is no stream {self._name}: {error}.", hint=hint)
        hint = "Check region, endpoint, keys and permissions (docs/sources.md lists the actions)."
        raise ConfigError("KINESIS_REFUSED", f"{operation} of the stream {self._name} refused: {error}.", hint=hint)

    def _note_time(self, date: str | None) -> None:
        """A machine whose clock is wrong goes by the server's, which gives whole seconds."""
        if date:
            ahead = parsedate_to_datetime(date) - utc_now()
            self._ahead = ahead if abs(ahead) > _CLOCKS_AGREE else timedelta()


def _shard(listed: dict[str, Any]) -> Shard:
    parents = (listed.get("ParentShardId"), listed.get("AdjacentParentShardId"))
    closed = "EndingSequenceNumber" in listed["SequenceNumberRange"]
    return Shard(listed["ShardId"], tuple(parent for parent in parents if parent), closed)
