"""Reads records that say which format they have: JSON objects that are created once, and refused where they cannot be
read by this release."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from deltaworks.errors import ContractError

T = TypeVar("T")


def decode_record(
    data: bytes,
    make: Callable[[dict[str, Any]], T],
    *,
    expected: int,
    unreadable: Callable[[Exception], ContractError],
) -> T:
    """What `make` makes of the fields of a record.

    Args:
        expected: its `format`.
        unreadable: gives the error to raise, with what is wrong.

    Raises:
        ContractError: of `unreadable`, for a torn object, another format, and fields that `make` cannot use.
    """
    try:
        record = json.loads(data)
        if record["format"] != expected:
            raise ValueError(f"format {record['format']} is not {expected}")
        return make(record)
    except (ValueError, KeyError, TypeError) as error:
        raise unreadable(error) from error
