"""Startable shards: parents first, finished ones never again."""

from __future__ import annotations

import pytest

from deltaworks.errors import ContractError
from deltaworks.sources.kinesis.shards import Shard, finished_shards_to_retain, row_seq, shard_number, startable_shards
from deltaworks.sources.records import ORDINAL_BITS, PARTITION_NUMBER_BITS
from tests.unit.sources.kinesis.stream_model import shard_id

A, B, C, D = (shard_id(number) for number in range(4))
SPLIT = [Shard(A, closed=True), Shard(B, (A,)), Shard(C, (A,))]
MERGED = [Shard(A, closed=True), Shard(B, closed=True), Shard(C, (A, B))]


def ids(shards: list[Shard]) -> list[str]:
    return [shard.shard_id for shard in shards]


def test_only_shards_without_parents_begin_at_first() -> None:
    assert ids(startable_shards(SPLIT, live=(), finished=())) == [A]
    assert ids(startable_shards(MERGED, live=(), finished=())) == [A, B]


def test_children_begin_when_their_parent_is_finished() -> None:
    assert startable_shards(SPLIT, live=[A], finished=()) == []
    assert ids(startable_shards(SPLIT, live=(), finished=[A])) == [B, C]


def test_a_merged_shard_waits_for_both_parents() -> None:
    assert startable_shards(MERGED, live=[B], finished=[A]) == []
    assert ids(startable_shards(MERGED, live=(), finished=[A, B])) == [C]


def test_a_parent_that_is_no_longer_listed_does_not_block_its_children() -> None:
    assert ids(startable_shards([Shard(B, (A,))], live=(), finished=())) == [B]


def test_a_live_parent_blocks_its_children_although_it_is_not_listed() -> None:
    assert startable_shards([Shard(B, (A,))], live=[A], finished=()) == []


def test_a_shard_with_a_started_descendant_is_never_started_again() -> None:
    """`latest` begins with open shards only, and a forgotten shard can be listed again for a moment."""
    chain = [Shard(A, closed=True), Shard(B, (A,), closed=True), Shard(C, (B,))]
    assert startable_shards(chain, live=[C], finished=()) == []
    assert startable_shards(chain, live=(), finished=[C]) == []


def test_a_sibling_listed_late_is_started_although_the_parent_was_dropped() -> None:
    assert ids(startable_shards(SPLIT, live=[B], finished=())) == [C]


def test_started_shards_are_ordered_by_number_not_by_name() -> None:
    shards = [Shard("shardId-1000000000000"), Shard(B)]
    assert ids(startable_shards(shards, live=(), finished=())) == [B, "shardId-1000000000000"]


def test_a_finished_shard_is_retained_while_it_is_listed_or_has_no_started_child() -> None:
    assert finished_shards_to_retain([A], SPLIT, live=[B, C]) == {A}
    assert finished_shards_to_retain([A], SPLIT[1:], live=[B, C]) == set()
    assert finished_shards_to_retain([A], [], live=()) == {A}
    assert finished_shards_to_retain([A], SPLIT[1:], live=()) == {A}


def test_a_row_seq_grows_along_a_shard_and_from_parent_to_child() -> None:
    seqs = [row_seq(A, 0), row_seq(A, 1), row_seq(A, 10**9), row_seq(B, 0), row_seq(B, 7), row_seq(C, 0)]

    assert seqs == sorted(set(seqs))
    assert seqs[0] >= 0
    assert row_seq(shard_id((1 << PARTITION_NUMBER_BITS) - 1), (1 << ORDINAL_BITS) - 1) == (1 << 63) - 1


@pytest.mark.parametrize(
    ("shard", "ordinal"), [(A, -1), (A, 1 << ORDINAL_BITS), (f"shardId-{1 << PARTITION_NUMBER_BITS:012d}", 0)]
)
def test_a_row_seq_out_of_range_is_rejected(shard: str, ordinal: int) -> None:
    with pytest.raises(ContractError, match="RECORD_SEQ_EXHAUSTED"):
        row_seq(shard, ordinal)


def test_the_number_is_in_the_shards_id() -> None:
    assert shard_number("shardId-000000000012") == 12
    with pytest.raises(ContractError, match="KINESIS_SHARD_UNNUMBERED"):
        shard_number("shard-12")
