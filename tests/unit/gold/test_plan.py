"""The dates that a rebuild writes and reads, and the first differing date of two interval tables."""

from __future__ import annotations

import datetime as dt
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaworks.errors import ConfigError
from deltaworks.gold.parts import Part
from deltaworks.gold.plan import MAX_KEYS, changes_by_row_diff, dated_plan, parse_dates, plan_rebuild
from deltaworks.specs.gold import DedupeSpec, GoldTableSpec
from deltaworks.tables.changes import Changes
from deltaworks.testing import local_lake
from tests.examples import examples

START = dt.date(2025, 3, 20)


def gold(days: Iterable[int] = (0,), **more: object) -> GoldTableSpec:
    declared = {"name": "daily", "sql": "x.sql", "reads": ["events"], "partition_by": "event_date"}
    return GoldTableSpec.model_validate({**declared, "affects": {"days": list(days)}, **more})


def changes(*days: int | None) -> Changes:
    values = [None if day is None else (START + dt.timedelta(days=day)).isoformat() for day in days]
    return Changes(frozenset((("event_date", value),) for value in values))


def days(dates: frozenset[dt.date] | None) -> list[int]:
    assert dates is not None
    return sorted((date - START).days for date in dates)


def test_a_changed_date_affects_only_itself_by_default() -> None:
    plan = plan_rebuild(gold(), {"events": changes(0, 4)}, None)

    assert (days(plan.output_dates), days(plan.input_dates)) == ([0, 4], [0, 4])


def test_a_dedupe_window_of_a_day_widens_by_a_day() -> None:
    plan = plan_rebuild(gold(), {"events": changes(0)}, DedupeSpec(within_days=1))

    assert days(plan.output_dates) == [-1, 0, 1]


def test_retention_rebuilds_earlier_cohorts_and_reads_all_their_dates() -> None:
    plan = plan_rebuild(gold((0, -1, -7)), {"events": changes(0)}, None)

    assert days(plan.output_dates) == [-7, -1, 0]
    assert days(plan.input_dates) == [-7, -6, -1, 0, 1, 6, 7]


def test_nothing_changed_means_nothing_to_do() -> None:
    plan = plan_rebuild(gold(affects="all"), {"events": changes()}, None)

    assert (plan.has_work, plan.full, plan.reason) == (False, False, "its inputs have not changed")


def test_unpartitioned_changes_rebuild_everything() -> None:
    unknown = plan_rebuild(gold(), {"events": Changes(is_unbounded=True, reason="the log is gone")}, None)
    without_date = plan_rebuild(gold(), {"events": changes(1, None)}, None)
    any_change = plan_rebuild(gold(affects="all"), {"events": changes(1)}, None)

    assert [plan.full for plan in (unknown, without_date, any_change)] == [True, True, True]
    assert unknown.reason == "events: the log is gone"


@given(
    touched=st.sets(st.integers(-40, 40), min_size=1, max_size=5),
    offsets=st.sets(st.integers(-10, 10), min_size=1, max_size=4),
    across=st.integers(0, 3),
)
def test_every_output_date_reads_all_its_input_dates(touched: set[int], offsets: set[int], across: int) -> None:
    plan = plan_rebuild(gold(offsets), {"events": changes(*touched)}, DedupeSpec(within_days=across))

    output, read = days(plan.output_dates), set(days(plan.input_dates))
    changed = {day + shift for day in touched for shift in range(-across, across + 1)}
    assert set(output) == {day + offset for day in changed for offset in offsets}
    assert all(day - offset in read for day in output for offset in offsets)


def test_requested_dates_are_written_and_their_inputs_read() -> None:
    plan = dated_plan(gold((0, -1, -7)), frozenset([START]))

    assert days(plan.output_dates) == [0]
    assert days(plan.input_dates) == [0, 1, 7]


def test_an_undated_table_is_not_built_by_date() -> None:
    table = gold().model_copy(update={"affects": "all"})

    assert not dated_plan(table, frozenset([START])).has_work


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2025-03-20", [0]),
        ("2025-03-20..2025-03-22", [0, 1, 2]),
        ("2025-03-21, 2025-03-19..2025-03-20", [-1, 0, 1]),
    ],
)
def test_dates_are_read_one_by_one_and_as_ranges(text: str, found: list[int]) -> None:
    assert days(parse_dates(text)) == found


def test_no_date_means_changed_dates_and_an_invalid_one_is_rejected() -> None:
    assert parse_dates("") is None
    with pytest.raises(ConfigError, match="GOLD_DATES_INVALID"):
        parse_dates("2025-03-20..today")


def by_org(*values: str | None, column: str = "org_id") -> Changes:
    return Changes(frozenset(((column, value), ("event_date", "2025-03-20")) for value in values))


def test_a_keyed_gold_table_is_rebuilt_for_changed_values() -> None:
    table = gold().model_copy(update={"affects": "same", "partition_by": "org_id"})

    plan = plan_rebuild(table, {"events": by_org("b", None), "names": by_org("a")}, DedupeSpec(within_days=1))

    assert (plan.full, plan.has_work) == (False, True)
    assert plan.output == plan.input == Part("org_id", frozenset({"a", "b"}))
    assert not plan_rebuild(table, {"events": by_org(None)}, None).has_work
    assert not dated_plan(table, frozenset([START])).has_work


def test_a_keyed_gold_table_is_rebuilt_in_full_if_values_are_unknown_or_too_many() -> None:
    table = gold().model_copy(update={"affects": "same", "partition_by": "org_id"})
    many = by_org(*(f"o{number}" for number in range(MAX_KEYS + 1)))

    for changed in (by_org("a", column="region"), Changes(is_unbounded=True, reason="the log is gone"), many):
        plan = plan_rebuild(table, {"events": changed}, None)
        assert plan.full
        assert plan.input == Part("org_id", None)


def test_parts_of_different_columns_do_not_cover_each_other() -> None:
    all_of, some, more = Part("org_id", None), Part("org_id", frozenset({"a"})), Part("org_id", frozenset({"a", "b"}))

    assert all_of.covers(some)
    assert more.covers(some)
    assert not some.covers(more)
    assert not some.covers(all_of)
    assert not Part("event_date", None).covers(some)
    assert some.union(more) == more
    assert some.union(all_of) == all_of


FIRST_DAY = dt.date(2025, 1, 1)
SCHEMA = pa.schema(
    [("ticker", pa.string()), ("valid_from", pa.date32()), ("valid_to", pa.date32()), ("eps", pa.int64())]
)
Row = tuple[str, int | None, int | None, int]
ROWS = st.lists(
    st.tuples(
        st.sampled_from("AB"), st.none() | st.integers(0, 5), st.none() | st.integers(0, 5), st.sampled_from([1, 2])
    ),
    max_size=5,
)
FIRST: list[Row] = [("A", 0, 3, 1), ("A", 3, None, 2), ("B", 1, None, 7)]


def day(number: int | None) -> dt.date | None:
    return None if number is None else FIRST_DAY + dt.timedelta(days=number)


def write(folder: Path, rows: list[Row], schema: pa.Schema = SCHEMA) -> None:
    columns = {
        "ticker": [row[0] for row in rows],
        "valid_from": [day(row[1]) for row in rows],
        "valid_to": [day(row[2]) for row in rows],
        "eps": [row[3] for row in rows],
        "note": [None for _ in rows],
    }
    table = pa.table({name: columns[name] for name in schema.names}, schema=schema)
    write_deltalake(str(folder / "t"), table, mode="overwrite", schema_mode="overwrite")


def changed(folder: Path, before: int | None = 0, after: int = 1) -> Changes:
    lake = local_lake(folder)
    return changes_by_row_diff(lake, "t", column="valid_from", before=before, after=after)


def first_date(changes: Changes) -> str | None:
    (partition,) = changes.partitions
    return dict(partition)["valid_from"]


def test_rewritten_rows_are_no_change(tmp_path: Path) -> None:
    write(tmp_path, FIRST)
    write(tmp_path, FIRST[::-1])

    assert not changed(tmp_path)


@pytest.mark.parametrize(
    ("rows", "first"),
    [
        ([*FIRST, ("B", 1, None, 7)], 1),
        ([("A", 0, 3, 1), ("A", 3, 5, 2), ("A", 5, None, 3), ("B", 1, None, 7)], 3),
        ([("A", 0, 3, 1), ("A", 3, None, 2)], 1),
        ([("A", 0, 3, 9), ("A", 3, None, 2), ("B", 1, None, 7)], 0),
    ],
    ids=["one twice", "a new one", "one less", "a restated value"],
)
def test_the_first_differing_date_is_the_change(tmp_path: Path, rows: list[Row], first: int) -> None:
    write(tmp_path, FIRST)
    write(tmp_path, rows)

    assert first_date(changed(tmp_path)) == str(day(first))


def test_versions_that_cannot_be_compared_change_everything_with_a_reason(tmp_path: Path) -> None:
    write(tmp_path, FIRST)
    write(tmp_path, FIRST, SCHEMA.append(pa.field("note", pa.string())))
    assert changed(tmp_path).reason == "its versions 0 and 1 cannot be compared: its columns changed"
    assert changed(tmp_path, before=None).is_unbounded

    write(tmp_path, [("A", None, 1, 1)])
    write(tmp_path, FIRST)
    assert changed(tmp_path, before=2, after=3).reason == "1 differing rows have no valid_from"


def test_versions_with_deleted_files_change_everything(tmp_path: Path) -> None:
    write(tmp_path, FIRST)
    for file in (tmp_path / "t").glob("*.parquet"):
        file.unlink()
    write(tmp_path, FIRST)

    changes = changed(tmp_path)

    assert changes.is_unbounded
    assert "versions 0 and 1 cannot be compared" in changes.reason


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS, ROWS)
def test_the_first_differing_date_matches_plain_python(tmp_path: Path, before: list[Row], after: list[Row]) -> None:
    shutil.rmtree(tmp_path / "t", ignore_errors=True)
    write(tmp_path, before)
    write(tmp_path, after)
    counted, now = Counter(before), Counter(after)
    differing = [*(counted - now), *(now - counted)]

    changes = changed(tmp_path)

    if any(row[1] is None for row in differing):
        assert changes.is_unbounded
    elif differing:
        assert first_date(changes) == str(day(min(row[1] or 0 for row in differing)))
    else:
        assert not changes
