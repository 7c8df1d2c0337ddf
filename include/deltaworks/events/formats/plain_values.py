"""Values of typed forms (Parquet, Avro) as JSON has them, so that declared types say what they stand for."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Callable
from typing import Any

_DIGITS_OF_A_DOUBLE = 15


def plain(value: Any) -> Any:
    """The value as JSON has it.

    Times become ISO 8601, exact decimals numbers or texts, bytes UTF-8 or hexadecimal text.
    """
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    written = _WRITTEN.get(type(value))
    return value if written is None else written(value)


def _number(value: decimal.Decimal) -> float | str:
    # Of more digits a double does not tell which were meant.
    number = float(value)
    few = len(value.normalize().as_tuple().digits) <= _DIGITS_OF_A_DOUBLE and abs(number) < 2.0**63
    return number if few and decimal.Decimal(repr(number)) == value else str(value)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()


_WRITTEN: dict[type, Callable[[Any], Any]] = {
    dt.datetime: dt.datetime.isoformat,
    dt.date: dt.date.isoformat,
    dt.time: dt.time.isoformat,
    dt.timedelta: dt.timedelta.total_seconds,
    decimal.Decimal: _number,
    uuid.UUID: str,
    bytes: _text,
}
