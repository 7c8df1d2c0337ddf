"""Parses event times to instants, as complete columns if possible."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltaworks.events.lossless_numbers import NUMBER
from deltaworks.events.reasons import ConversionError, ReasonCode, describe_value, format_value, type_mismatch
from deltaworks.events.time_patterns import (
    EPOCH,
    MICROSECOND,
    Integers,
    NoMatch,
    NonexistentTime,
    instant_us,
    instants_us,
    pattern_reader,
)
from deltaworks.specs.times import TimeFormat

INSTANT = pa.timestamp("us", tz="UTC")
#: Accepted range of times. Spark and Delta dates end with year 9999; times before 1900 come from clocks that were never
#: set.
EARLIEST_US = (dt.datetime(1900, 1, 1) - EPOCH) // MICROSECOND
LATEST_US = (dt.datetime.max - EPOCH) // MICROSECOND
_ZERO_OFFSET = dt.timedelta()
_DIGIT_DIRECTIVES = frozenset({"%Y", "%m", "%d", "%H", "%M", "%S"})
_PER_UNIT_US = {"epoch_seconds": 1_000_000, "epoch_millis": 1_000}


@lru_cache(maxsize=1024)
def time_reader(form: TimeFormat) -> TimeReader:
    """Returns the reader for times in the declared format, cached per process."""
    return TimeReader(form)


class TimeReader:
    """Parses times in one declared format. Thread-safe."""

    def __init__(self, form: TimeFormat) -> None:
        self._form = form
        self._reader = None if form.format is None else pattern_reader(form.format)
        pattern = form.pattern
        #: Texts with a date only cannot be out of range.
        self._is_date_only = pattern is not None and not pattern.has_time_of_day and not pattern.has_offset
        #: True if the pattern matches plain digits, which events may have as numbers.
        self._is_all_digits = pattern is not None and set(pattern.parts) <= _DIGIT_DIRECTIVES

    def instants(self, values: Sequence[Any]) -> pa.Array:
        """Converts values to timestamps as one column; None becomes null.

        Raises:
            pa.ArrowException, TypeError, ValueError, OverflowError: some value cannot be converted this way.
        """
        if self._reader is not None:
            return self._read_pattern(values, bounded=True)
        unit = self._form.unit
        if unit != "iso8601":
            if set(map(type, values)) - {int, type(None)}:
                raise TypeError("a time is not an integer")
            scaled = pc.multiply_checked(pa.array(values, pa.int64()), _PER_UNIT_US[unit])
            return _check_bounds(scaled.cast(INSTANT))
        texts = pa.array(values, pa.string())
        if self._form.zone is None:
            try:
                return _check_bounds(pc.cast(texts, INSTANT))
            except pa.ArrowInvalid:  # raised too if no text has an offset
                return _check_bounds(pc.cast(texts, pa.timestamp("us")).cast(pa.int64()).cast(INSTANT))
        local = pc.cast(texts, pa.timestamp("us"))
        return _restore_nulls(local, _check_bounds_us(self._to_utc(_micros_of(local.drop_null()))))

    def dates(self, values: Sequence[Any]) -> pa.Array:
        """Converts texts of a pattern to UTC dates as one column; None becomes null.

        Raises:
            pa.ArrowException, TypeError, ValueError, OverflowError: see `instants`; ValueError if the format has no
                pattern.
        """
        if self._reader is None:
            raise ValueError("dates without a pattern are parsed one by one")
        return self._read_pattern(values, bounded=not self._is_date_only).cast(pa.date32())

    def instant_us(self, value: Any) -> int:
        """Converts a value to microseconds since 1970.

        Raises:
            ConversionError: invalid or out of range.
        """
        unit = self._form.unit
        micros = self._parse_us(value) if unit == "iso8601" else _epoch_us(value, unit)
        if not EARLIEST_US <= micros <= LATEST_US:
            raise ConversionError(
                ReasonCode.OUT_OF_RANGE, f"{describe_value(value)} lies outside the years 1900 to 9999"
            )
        return micros

    def date(self, value: Any) -> dt.date:
        """Returns the UTC date of a time; a text with a date only is returned as that date.

        Raises:
            ConversionError: invalid or out of range.
        """
        if self._is_date_only:
            return (EPOCH + self._parse_us(value) * MICROSECOND).date()
        # Epoch seconds have ten characters like a date, but only a date contains a dash.
        if self._reader is None and isinstance(value, str) and len(value) == 10 and value[4] == "-":
            try:
                return dt.date.fromisoformat(value)
            except ValueError:
                raise type_mismatch(value, "date") from None
        return (EPOCH + self.instant_us(value) * MICROSECOND).date()

    def _read_pattern(self, values: Sequence[Any], *, bounded: bool) -> pa.Array:
        texts = pa.array(values, pa.string())
        reader = self._reader
        if reader is None:
            raise ValueError("there is no pattern")
        micros = reader.read_all(texts.drop_null())
        if self._form.zone is not None and not self._is_date_only:
            micros = self._to_utc(micros)
        return _restore_nulls(texts, _check_bounds_us(micros) if bounded else micros)

    def _to_utc(self, local_us: Integers) -> Integers:
        return local_us if self._form.zone is None else instants_us(local_us, self._form.zone)

    def _parse_us(self, value: Any) -> int:
        """Parses a text to microseconds since 1970. Without an offset, the declared zone applies."""
        local = self._parse_iso_8601(value) if self._reader is None else self._parse_pattern(value)
        offset = local.utcoffset()
        local = local.replace(tzinfo=None)
        if self._form.zone is None or offset is not None:
            # Subtracting the offset from the datetime could leave year 1.
            return (local - EPOCH) // MICROSECOND - (offset or _ZERO_OFFSET) // MICROSECOND
        try:
            return instant_us(local, self._form.zone)
        except NonexistentTime:
            detail = f"{describe_value(value)} is a time that clocks in {self._form.zone} skipped"
            raise ConversionError(ReasonCode.OUT_OF_RANGE, detail) from None

    @staticmethod
    def _parse_iso_8601(value: Any) -> dt.datetime:
        if not isinstance(value, str):
            raise type_mismatch(value, "ISO 8601 time")
        try:
            return dt.datetime.fromisoformat(value)
        except ValueError:
            raise type_mismatch(value, "ISO 8601 time") from None

    def _parse_pattern(self, value: Any) -> dt.datetime:
        text = str(value) if self._is_all_digits and type(value) is int else value
        if self._reader is None or not isinstance(text, str):
            raise type_mismatch(value, f"text of the form {self._form.format}")
        try:
            return self._reader.read(text)
        except NoMatch:
            raise type_mismatch(value, f"time of the form {self._form.format}") from None
        except (ValueError, OverflowError):
            raise type_mismatch(value, f"time of the form {self._form.format}: there is no such day") from None


def _epoch_us(value: Any, unit: str) -> int:
    if isinstance(value, str):
        text = value.strip()
        if not NUMBER.fullmatch(text):
            raise type_mismatch(value, unit)
        value = int(text) if text.lstrip("+-").isdigit() else float(text)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise type_mismatch(value, unit)
    if abs(value) > 1e15:
        raise ConversionError(ReasonCode.OUT_OF_RANGE, f"{format_value(value)} lies outside the years 1900 to 9999")
    return round(value * _PER_UNIT_US[unit])


def _micros_of(instants: pa.Array) -> Integers:
    micros: Integers = instants.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return micros


def _restore_nulls(values: pa.Array, micros: Integers) -> pa.Array:
    """Returns timestamps from the converted non-null values, with nulls at their original indexes."""
    if not values.null_count:
        return pa.array(micros, pa.int64()).cast(INSTANT)
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    with_nulls = np.zeros(len(values), np.int64)
    with_nulls[valid] = micros
    return pa.array(with_nulls, pa.int64(), mask=~valid).cast(INSTANT)


def _check_bounds_us(micros: Integers) -> Integers:
    if micros.size and (micros.min() < EARLIEST_US or micros.max() > LATEST_US):
        raise ValueError("an instant is out of range")
    return micros


def _check_bounds(instants: pa.Array) -> pa.Array:
    bounds = pc.min_max(instants.cast(pa.int64()))
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is not None and (low < EARLIEST_US or high > LATEST_US):
        raise ValueError("an instant is out of range")
    return instants
