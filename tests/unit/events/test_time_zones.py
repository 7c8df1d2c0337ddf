"""Local times as instants: ambiguous times mean the first instant, skipped ones raise."""

from __future__ import annotations

import datetime as dt
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deltaworks.events.columns import convert_column
from deltaworks.events.reasons import ReasonCode
from deltaworks.events.time_patterns import EPOCH, MICROSECOND, NonexistentTime, instant_us, instants_us
from deltaworks.specs.times import TimeFormat
from deltaworks.specs.types import parse_type
from tests.examples import examples

#: Clocks set by an hour, by half of one, at midnight, at a minute past it, by a whole day, back in summer; by seconds.
ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Pacific/Apia",
    "Europe/Dublin",
    "Africa/Monrovia",
    "Asia/Kathmandu",
    "Etc/GMT+12",
    "UTC",
)
_DAY = dt.timedelta(days=1)


def by_trying(local: dt.datetime, zone: str) -> dt.datetime | None:
    """The first instant at which a clock of the zone shows the time: any offset of the days around may be the one."""
    near = [(local + hours * dt.timedelta(hours=1)).replace(tzinfo=dt.UTC) for hours in range(-50, 51)]
    offsets = {at.astimezone(ZoneInfo(zone)).utcoffset() or dt.timedelta() for at in near}
    shown = [(local - offset).replace(tzinfo=dt.UTC) for offset in offsets]
    return min((at for at in shown if at.astimezone(ZoneInfo(zone)).replace(tzinfo=None) == local), default=None)


def alone(local: dt.datetime, zone: str) -> dt.datetime | None:
    try:
        return (EPOCH + instant_us(local, zone) * MICROSECOND).replace(tzinfo=dt.UTC)
    except NonexistentTime:
        return None


def changes_of(zone: str) -> list[dt.datetime]:
    """Times on the clocks of the zone, beside those at which they are set."""
    hours = [dt.datetime(2011, 1, 1, tzinfo=dt.UTC) + n * dt.timedelta(hours=1) for n in range(24 * 366 * 2)]
    local = [at.astimezone(ZoneInfo(zone)) for at in hours]
    return [before.replace(tzinfo=None) for before, after in pairwise(local) if before.utcoffset() != after.utcoffset()]


CHANGES = {zone: changes_of(zone) or [dt.datetime(2024, 1, 1)] for zone in ZONES}
NEAR_CHANGES = st.sampled_from(ZONES).flatmap(
    lambda zone: st.tuples(
        st.just(zone),
        st.lists(
            st.builds(
                lambda at, seconds: at + dt.timedelta(seconds=seconds),
                st.sampled_from(CHANGES[zone]),
                st.integers(-100_000, 100_000) | st.sampled_from([0, -1, 3600, 1800, 3599]),
            )
            | st.datetimes(dt.datetime(1901, 1, 3), dt.datetime(2150, 1, 1)),
            min_size=1,
            max_size=5,
        ),
    )
)


@settings(max_examples=examples(300), deadline=None)
@given(NEAR_CHANGES)
@example(("Pacific/Apia", [dt.datetime(2011, 12, 30, 12)]))
@example(("America/St_Johns", [dt.datetime(2010, 11, 6, 23, 30), dt.datetime(2010, 3, 14, 0, 30)]))
def test_a_time_is_the_first_instant_at_which_a_clock_shows_it(case: tuple[str, list[dt.datetime]]) -> None:
    zone, times = case
    expected = [by_trying(at, zone) for at in times]

    assert [alone(at, zone) for at in times] == expected
    local_us = np.array([(at - EPOCH) // MICROSECOND for at in times], np.int64)
    if None in expected:
        with pytest.raises(NonexistentTime):
            instants_us(local_us, zone)
    else:
        together = [(EPOCH + int(at) * MICROSECOND).replace(tzinfo=dt.UTC) for at in instants_us(local_us, zone)]
        assert together == expected


def converted(values: list[Any], kind: str = "timestamp", **form: Any) -> tuple[list[Any], dict[int, Any]]:
    array, misfits = convert_column(values, parse_type(kind), times=TimeFormat(zone="Europe/Berlin", **form))
    return array.to_pylist(), {index: (misfit.code, misfit.detail) for index, misfit in misfits.items()}


@pytest.mark.parametrize("form", [{}, {"format": "%Y-%m-%d %H:%M"}])
def test_clock_changes_leave_no_ambiguous_time(form: dict[str, str]) -> None:
    """In March 02:30 never was, in October it was twice."""
    texts = ["2024-03-31 01:59", "2024-03-31 02:30", "2024-03-31 03:00", "2024-10-27 02:30", "2024-10-27 03:00", None]

    times, misfits = converted(texts, **form)

    assert [at and at.isoformat(" ") for at in times] == [
        "2024-03-31 00:59:00+00:00",
        None,
        "2024-03-31 01:00:00+00:00",
        "2024-10-27 00:30:00+00:00",
        "2024-10-27 02:00:00+00:00",
        None,
    ]
    skipped = "the text '2024-03-31 02:30' is a time that clocks in Europe/Berlin skipped"
    assert misfits == {1: (ReasonCode.OUT_OF_RANGE, skipped)}


def test_an_offset_in_a_text_overrides_the_zone() -> None:
    times, misfits = converted(["2024-07-01T12:00:00", "2024-07-01T12:00:00Z", "2024-07-01T12:00:00-05:00"])

    assert ([at.hour for at in times], misfits) == ([10, 12, 17], {})


def test_the_date_of_a_time_in_a_zone_is_that_of_utc_and_a_date_alone_stays() -> None:
    assert converted(["2024-07-01 00:30", "2024-07-01 02:30"], "date", format="%Y-%m-%d %H:%M")[0] == [
        dt.date(2024, 6, 30),
        dt.date(2024, 7, 1),
    ]
    assert converted(["2024-07-01", "2024-07-01T00:30:00"], "date")[0] == [dt.date(2024, 7, 1), dt.date(2024, 6, 30)]
