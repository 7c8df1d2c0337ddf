"""What a task does with its share: fix where it ends, once for all attempts, and only then hand over rows."""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from deltaworks.errors import ConfigError
from deltaworks.sources.kinesis.calls import StreamCalls
from deltaworks.sources.kinesis.fetch import Fetched, FetchOptions, fetch_next
from deltaworks.sources.kinesis.replay import fetch_again
from deltaworks.sources.kinesis.shares import Share
from deltaworks.sources.kinesis.state import QueryState

_LOGGER = logging.getLogger(__name__)


def read_share(
    stream: StreamCalls, state: QueryState, share: Share, options: FetchOptions, *, stream_name: str
) -> Iterator[pa.RecordBatch]:
    """The rows of a share: the same ones for every attempt, action and driver, however often it is read.

    Whoever reads first fixes the end; others read up to it. The share is in memory until then.

    Raises:
        ContractError: KINESIS_POSITION_EXPIRED, KINESIS_REPLAY_DIFFERS.
        ConfigError: KINESIS_STATE_NOT_SHARED when the driver wrote its plan where this task cannot see it.
    """
    fetched = settled(stream, state, share, options)
    first_ordinal = fetched.end.end.rows - len(fetched.rows)
    yield from fetched.rows.batches(stream=stream_name, shard_id=share.shard_id, first_ordinal=first_ordinal)


def settled(stream: StreamCalls, state: QueryState, share: Share, options: FetchOptions) -> Fetched:
    """The share's rows and the record that counts, which exists from now on."""
    recorded = state.end(share.run, share.batch, share.shard_id)
    if recorded is None:
        if state.plan(share.run, share.batch) is None:
            raise _not_shared(share)
        fetched = fetch_next(stream, share, options)
        mine = replace(fetched.end, reader=f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex}")
        if mine.gap is not None:
            state.add_gap(share.run, mine.gap)
            _LOGGER.warning("Records of %s may be lost: %s", share.shard_id, mine.gap.to_json())
        recorded = state.fix_end(share, mine)
        if (recorded.end.after, recorded.rows, recorded.digest) == (mine.end.after, mine.rows, mine.digest):
            return Fetched(fetched.rows, recorded)
    fetched = fetch_again(stream, share, recorded, options)
    if fetched.end.gap is not None and fetched.end.gap != recorded.gap:
        state.add_gap(share.run, fetched.end.gap)
        _LOGGER.warning("Records of %s were lost before a replay: %s", share.shard_id, fetched.end.gap.to_json())
    return fetched


def _not_shared(share: Share) -> ConfigError:
    return ConfigError(
        "KINESIS_STATE_NOT_SHARED",
        f"This task on {socket.gethostname()} finds no plan of batch {share.batch} in the query's state.",
        hint="Give a stateLocation that the driver and all executors share, such as s3://bucket/folder.",
    )
