"""The `_seq` of a row out of a shard: the shard's number above, the row's ordinal in the shard below.

It is unique in a stream and grows with each row of a shard, and so within a partition key while the stream is not
resharded; a key that moves to a child shard goes on with the child's, larger, number.
"""

from __future__ import annotations

import re

from deltaworks.errors import ContractError

ORDINAL_BITS = 48
#: A Spark long has 63 bits for a number that is not negative.
LARGEST_SHARD_NUMBER = (1 << (63 - ORDINAL_BITS)) - 1
LARGEST_ORDINAL = (1 << ORDINAL_BITS) - 1
_SHARD_ID = re.compile(r"shardId-(\d+)")


def shard_number(shard_id: str) -> int:
    """The number in a shard's id (`shardId-000000000007` is 7).

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


def row_seq(number: int, ordinal: int) -> int:
    """The `_seq` of the row with this ordinal in the shard with this number.

    Raises:
        ContractError: KINESIS_SEQ_OVERFLOW when either does not fit.
    """
    if not 0 <= number <= LARGEST_SHARD_NUMBER or not 0 <= ordinal <= LARGEST_ORDINAL:
        raise ContractError(
            "KINESIS_SEQ_OVERFLOW",
            f"Shard number {number} with ordinal {ordinal} does not fit a `_seq`: shard numbers go up to "
            f"{LARGEST_SHARD_NUMBER}, ordinals up to {LARGEST_ORDINAL}.",
            hint="A stream resharded that often has to be replaced by a new one.",
        )
    return number << ORDINAL_BITS | ordinal
