"""Shard lineage: a child is read only after its parents are finished, so the order per key is preserved.

Splits and merges close shards and open children. A closed shard keeps its records until the retention has passed, and
is then no longer listed.
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
    """A shard in the stream's listing. `parents` may name shards that are no longer listed."""

    shard_id: str
    parents: tuple[str, ...] = ()
    closed: bool = False


@functools.lru_cache(maxsize=4096)
def shard_number(shard_id: str) -> int:
    """Returns the number in a shard id (`shardId-000000000007` is 7); children have larger numbers than their parents.

    Raises:
        ContractError: KINESIS_SHARD_UNNUMBERED, the id has another form.
    """
    match = _SHARD_ID.fullmatch(shard_id)
    if match is None:
        raise ContractError(
            "KINESIS_SHARD_UNNUMBERED", f"The shard id {shard_id!r} does not have the form shardId-000000000007."
        )
    return int(match[1])


def row_seq(shard_id: str, ordinal: int) -> int:
    """Returns the `_seq` of a row: unique in its stream, and increasing along a partition key even if its shard is
    split.

    Raises:
        ContractError: RECORD_SEQ_EXHAUSTED, KINESIS_SHARD_UNNUMBERED.
    """
    return record_seq(shard_number(shard_id), ordinal)


def startable_shards(listed: Iterable[Shard], *, live: Collection[str], finished: Collection[str]) -> list[Shard]:
    """Returns the listed shards that can be started: not started yet, with all parents finished or no longer listed.

    A shard with a started descendant counts as finished, even if its record was deleted.
    """
    by_id = {shard.shard_id: shard for shard in listed}
    started = {*live, *finished}
    completed = {*finished, *_ancestors(by_id, started)} - set(live)
    ready = []
    for shard in sorted(by_id.values(), key=lambda listed_shard: shard_number(listed_shard.shard_id)):
        if shard.shard_id in started or shard.shard_id in completed:
            continue
        pending_parents = {parent for parent in shard.parents if parent in live or parent in by_id}
        if pending_parents <= completed:
            ready.append(shard)
    return ready


def finished_shards_to_retain(finished: Iterable[str], listed: Iterable[Shard], *, live: Collection[str]) -> set[str]:
    """Returns the finished shards that the next offset must still record, so that they are not started again.

    A shard that is no longer listed is dropped only after one of its children has started, because a listing may be
    temporarily incomplete.
    """
    shards, finished_ids = list(listed), set(finished)
    started = {*live, *finished_ids}
    listed_ids = {shard.shard_id for shard in shards}
    with_started_child = {parent for shard in shards if shard.shard_id in started for parent in shard.parents}
    return {shard for shard in finished_ids if shard in listed_ids or shard not in with_started_child}


def _ancestors(by_id: dict[str, Shard], shards: Collection[str]) -> set[str]:
    ancestors: set[str] = set()
    remaining = list(shards)
    while remaining:
        shard = by_id.get(remaining.pop())
        parents = () if shard is None else shard.parents
        remaining += [parent for parent in parents if parent not in ancestors]
        ancestors.update(parents)
    return ancestors
