"""The lineage of shards: a child is read only once its parents are read to their end, so that a key keeps its order.

Splitting and merging close shards and open children; a closed shard keeps its records until the retention has passed,
and is then no longer listed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from deltaworks.errors import ContractError
from deltaworks.sources.records import record_seq

_SHARD_ID = re.compile(r"shardId-(\d+)")


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard as the stream lists it. `parents` may name shards that are no longer listed."""

    shard_id: str
    parents: tuple[str, ...] = ()
    closed: bool = False


@functools.lru_cache(maxsize=4096)
def shard_number(shard_id: str) -> int:
    """The number in a shard's id (`shardId-000000000007` is 7); children have larger ones than their parents.

    Raises:
        ContractError: KINESIS_SHARD_UNNUMBERED for an id of another form.
    """
    match = _SHARD_ID.fullmatch(shard_id)
    if match is None:
        raise ContractError(
            "KINESIS_SHARD_UNNUMBERED",
            f"The shard id {shard_id!r} has no number in the form Kinesis gives, shardId-000000000007.",
            hint="Check that endpoint leads to Kinesis; rows of such a shard cannot be ordered.",
        )
    return int(match[1])


def row_seq(shard_id: str, ordinal: int) -> int:
    """The `_seq` of a row: unique in its stream, and growing along a partition key also when its shard is divided.

    Raises:
        ContractError: RECORD_SEQ_EXHAUSTED, KINESIS_SHARD_UNNUMBERED.
    """
    return record_seq(shard_number(shard_id), ordinal)


def startable_shards(listed: Iterable[Shard], *, live: Collection[str], done: Collection[str]) -> list[Shard]:
    """The listed shards whose turn has come: not begun, and every parent is read to its end or long gone.

    A shard with a descendant that was begun counts as read, even if it was forgotten: its own end came first.
    """
    by_id = {shard.shard_id: shard for shard in listed}
    begun = {*live, *done}
    passed = {*done, *_ancestors(by_id, begun)} - set(live)
    ready = []
    for shard in sorted(by_id.values(), key=lambda listed_shard: shard_number(listed_shard.shard_id)):
        if shard.shard_id in begun or shard.shard_id in passed:
            continue
        waits_for = {parent for parent in shard.parents if parent in live or parent in by_id}
        if waits_for <= passed:
            ready.append(shard)
    return ready


def finished_shards_to_retain(done: Iterable[str], listed: Iterable[Shard], *, live: Collection[str]) -> set[str]:
    """The shards read to their end that must be remembered so that they are not begun again.

    One that is no longer listed is forgotten once a child of it has begun: a list can be incomplete for a moment.
    """
    shards, ended = list(listed), set(done)
    begun = {*live, *ended}
    names = {shard.shard_id for shard in shards}
    succeeded = {parent for shard in shards if shard.shard_id in begun for parent in shard.parents}
    return {shard for shard in ended if shard in names or shard not in succeeded}


def _ancestors(by_id: dict[str, Shard], shards: Collection[str]) -> set[str]:
    ancestors: set[str] = set()
    left = list(shards)
    while left:
        shard = by_id.get(left.pop())
        parents = () if shard is None else shard.parents
        left += [parent for parent in parents if parent not in ancestors]
        ancestors.update(parents)
    return ancestors
