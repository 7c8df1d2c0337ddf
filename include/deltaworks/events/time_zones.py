"""Converts local times of a zone to instants.

A local time that occurs twice, when clocks are set back, means its first occurrence. A local time that clocks skip is
an error. Results depend on the zone database only, not on the machine's zone or locale.
"""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
EPOCH = dt.datetime(1970, 1, 1)
MICROSECOND = dt.timedelta(microseconds=1)
DAY_US = 86_400_000_000
_SAMPLED_TIMES = (*(dt.timedelta(hours=hour) for hour in range(24)), dt.timedelta(days=1) - MICROSECOND)


class NonexistentTime(ValueError):
    """Raised for a local time that the zone's clocks skipped."""


def instant_us(local: dt.datetime, zone: str) -> int:
    """Converts a local time in `zone` to microseconds since 1970.

    Raises:
        NonexistentTime: clocks skipped this time when they were set forward.
    """
    first, second = (_offset_us(local, zone, fold) for fold in (0, 1))
    if second > first:
        raise NonexistentTime
    return (local - EPOCH) // MICROSECOND - first


def instants_us(local_us: Integers, zone: str) -> Integers:
    """Converts many local times, given as microseconds since 1970 in local time, to instants.

    Raises:
        NonexistentTime: clocks skipped one of the times.
        OverflowError: a time is outside the years 1 to 9999.
    """
    days, day_of = np.unique(local_us // DAY_US, return_inverse=True)
    offsets = [_offset_of_day_us(int(day), zone) for day in days]
    instants = local_us - np.array([offset or 0 for offset in offsets], np.int64)[day_of]
    has_transition = np.array([offset is None for offset in offsets], np.bool_)[day_of]
    for row in np.flatnonzero(has_transition):
        instants[row] = instant_us(EPOCH + int(local_us[row]) * MICROSECOND, zone)
    return instants


@lru_cache(maxsize=16_384)
def _offset_of_day_us(day: int, zone: str) -> int | None:
    """Returns the UTC offset of a local day, given as days since 1970; None if the offset changes during the day."""
    midnight = EPOCH + dt.timedelta(days=day)
    offsets = {_offset_us(midnight + time, zone, fold) for time in _SAMPLED_TIMES for fold in (0, 1)}
    return offsets.pop() if len(offsets) == 1 else None


def _offset_us(local: dt.datetime, zone: str, fold: int) -> int:
    offset = local.replace(tzinfo=ZoneInfo(zone), fold=fold).utcoffset()
    return 0 if offset is None else offset // MICROSECOND
