"""How the place of a record in its stream becomes the `_seq` of its rows: one number, unique and growing in order."""

from __future__ import annotations

from deltaworks.errors import ContractError

#: Of 63 bits, 44 count the records of one partition or shard (17 trillion), 19 number partitions or shards.
ORDINAL_BITS, NUMBER_BITS = 44, 19


def record_seq(number: int, ordinal: int) -> int:
    """The `_seq` of a record.

    Args:
        number: of its partition or shard among all that the pipeline reads, from 0.
        ordinal: of the record in there, from 0.

    Raises:
        ContractError: RECORD_SEQ_EXHAUSTED, one of them does not fit.
    """
    if not (0 <= number < 1 << NUMBER_BITS and 0 <= ordinal < 1 << ORDINAL_BITS):
        raise ContractError(
            "RECORD_SEQ_EXHAUSTED",
            f"Record {ordinal} of partition or shard {number} has no place in a 64-bit `_seq`.",
            hint=f"At most {1 << NUMBER_BITS} partitions or shards of {1 << ORDINAL_BITS} records: "
            "read it in a pipeline of its own.",
        )
    return number << ORDINAL_BITS | ordinal
