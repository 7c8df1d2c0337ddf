"""The Z-order ledger agrees with a replay of all commits, and a crash loses no row."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import LocalObjects
from deltaworks.control.provenance import OPTIMIZE, user_metadata
from deltaworks.maintenance.table_health.measure import PartitionHealth, table_health
from deltaworks.maintenance.zorder_ledger import (
    DEFAULT_RATES,
    RewriteGroup,
    ZOrderLedger,
    ledger_state_from_rows,
    read_ledger,
    task_of_try,
)
from deltaworks.tables.changes import Partition
from deltaworks.tables.lake import Lake
from deltaworks.testing import present
from tests.unit.maintenance.table_data import DAYS, append, compacted, make

GROUP = RewriteGroup(name="g1", table="events", action="zorder", columns=("id",), after_version=0, round="daily")
KEY = paths.table("shop", "events")
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def ledger(lake: Lake) -> ZOrderLedger:
    return ZOrderLedger(lake, PipelineHome(LocalObjects(Path(lake.storage.prefix)), "shop"))


def found(lake: Lake) -> dict[Partition, PartitionHealth]:
    health = present(table_health(lake, KEY))
    return {each.partition: each for each in health.partition_health}


def test_a_partition_is_ordered_until_it_changes(lake: Lake, ledger: ZOrderLedger) -> None:
    make(lake, "shop", "events", files=3, days=2)
    ledger.begin(GROUP)
    compacted(lake, KEY, GROUP.name)
    rewritten = ledger.rewritten(GROUP)
    ledger.record(GROUP, rewritten, seconds=8.0)

    state = read_ledger(lake, "shop").table_state("events")

    assert [(each.files_before, each.files) for each in rewritten] == [(3, 1), (3, 1)]
    assert {place: known.is_unchanged(found(lake)[place]) for place, known in state.ordered.items()} == {
        DAYS[0]: True,
        DAYS[1]: True,
    }
    rows = present(lake.rows(paths.pipeline_control("shop", "zorder_ledger")))
    assert sum(rows.column("seconds").to_pylist()) == pytest.approx(8.0)
    append(lake, KEY, 1)
    assert [state.ordered[day].is_unchanged(found(lake)[day]) for day in DAYS[:2]] == [False, True]
    assert 0 < state.ordered[DAYS[0]].unordered_share(found(lake)[DAYS[0]]) < 1


def test_the_next_run_records_an_interrupted_group(lake: Lake, ledger: ZOrderLedger) -> None:
    make(lake, "shop", "events", files=2, days=1)
    ledger.begin(GROUP)
    compacted(lake, KEY, GROUP.name)
    assert read_ledger(lake, "shop").ordered == {}

    again = ZOrderLedger(lake, PipelineHome(LocalObjects(Path(lake.storage.prefix)), "shop"))

    assert (again.record_interrupted(), again.record_interrupted()) == (1, 0)
    state = read_ledger(lake, "shop").table_state("events")
    assert state.ordered[DAYS[0]].is_unchanged(found(lake)[DAYS[0]])
    # Its duration is unknown, so it does not affect rates.
    assert state.rates == dict(DEFAULT_RATES)


def test_a_run_that_died_before_its_commit_leaves_nothing_to_record(lake: Lake, ledger: ZOrderLedger) -> None:
    make(lake, "shop", "events", files=2, days=1)
    ledger.begin(GROUP)
    compacted(lake, KEY, "of another")

    assert ledger.record_interrupted() == 0
    assert read_ledger(lake, "shop").ordered == {}


def test_a_restored_table_is_ordered_only_with_the_same_files(lake: Lake, ledger: ZOrderLedger) -> None:
    make(lake, "shop", "events", files=3, days=1)
    before = lake.open(KEY).version()  # type: ignore[union-attr]
    compacted(lake, KEY, GROUP.name)
    ledger.record(GROUP, ledger.rewritten(GROUP), seconds=1.0)
    after = lake.open(KEY).version()  # type: ignore[union-attr]
    known = read_ledger(lake, "shop").table_state("events").ordered[DAYS[0]]

    lake.open(KEY).restore(before)  # type: ignore[union-attr]
    assert known.unordered_share(found(lake)[DAYS[0]]) == 1.0
    lake.open(KEY).restore(after)  # type: ignore[union-attr]
    assert known.is_unchanged(found(lake)[DAYS[0]])


def test_seconds_of_all_attempts_are_summed(lake: Lake, ledger: ZOrderLedger) -> None:
    make(lake, "shop", "events", files=2, days=1)
    compacted(lake, KEY, GROUP.name)
    rewritten = ledger.rewritten(GROUP)
    for number, run in enumerate(("m/r1/optimize/1", "m/r1/optimize/2", "m/r2/optimize/1", "manual")):
        ledger.record(RewriteGroup(**{**asdict_of(GROUP), "name": f"g{number}", "run": run}), rewritten, seconds=10.0)

    assert ledger.seconds_of_run("m/r1/optimize/3", "daily") == pytest.approx(20.0)
    assert ledger.seconds_of_run("m/r1/optimize/3", "weekly") == 0.0
    assert ledger.seconds_of_run("manual", "daily") == 0.0
    assert task_of_try("manual") == ""


def asdict_of(group: RewriteGroup) -> dict[str, Any]:
    return dict(group)


#: Changes of a partition: files are added, ordered, merged, or replaced.
HAPPENINGS = st.lists(
    st.tuples(st.sampled_from(["append", "zorder", "compact", "merge"]), st.integers(0, 1), st.integers(1, 3)),
    max_size=14,
)


@given(HAPPENINGS)
def test_ordered_partitions_match_a_replay_of_all_commits(happenings: list[tuple[str, int, int]]) -> None:
    """The replay tracks files by name; the ledger only sees counts, bytes and times."""
    files: dict[Partition, dict[int, tuple[int, dt.datetime]]] = {}
    by_order: dict[Partition, frozenset[int]] = {}
    rows: list[dict[str, Any]] = []
    for number, (what, day, size) in enumerate(happenings):
        here, at = files.setdefault(DAYS[day], {}), START + dt.timedelta(seconds=number)
        total = sum(each for each, _ in here.values())
        if what == "append" or not here:
            here[number] = (size, at)
        elif what == "merge":
            here.pop(min(here))
            here[number] = (size, at)
        else:
            here.clear()
            here[number] = (total, at)
            rows.append(ledger_row(DAYS[day], what, number, here))
            if what == "zorder":
                by_order[DAYS[day]] = frozenset(here)

    known = ledger_state_from_rows(rows).table_state("events").ordered

    for day_of, here in files.items():
        entry = known.get(day_of)
        in_order = entry is not None and entry.is_unchanged(health_of(day_of, here))
        assert in_order == (bool(here) and by_order.get(day_of) == frozenset(here))


def ledger_row(day: Partition, action: str, version: int, files: dict[int, tuple[int, dt.datetime]]) -> dict[str, Any]:
    return {
        "table_name": "events",
        "partition": json.dumps(dict(day)),
        "action": action,
        "columns": ["id"],
        "version": version,
        "bytes_before": 1,
        "files": len(files),
        "bytes": sum(size for size, _ in files.values()),
        "newest_file_at": max(at for _, at in files.values()),
        "seconds": 1.0,
        "at": START + dt.timedelta(seconds=version),
    }


def health_of(day: Partition, files: dict[int, tuple[int, dt.datetime]]) -> PartitionHealth:
    return PartitionHealth(
        partition=day,
        files=len(files),
        bytes=sum(size for size, _ in files.values()),
        small_files=0,
        small_bytes=0,
        rows=None,
        deletion_vector_rows=None,
        newest_file_at=max(at for _, at in files.values()),
    )


def test_rates_are_measured_or_default() -> None:
    mib = 1 << 20
    base = ledger_row(DAYS[0], "zorder", 1, {0: (1, START)})
    small = [{**base, "bytes_before": mib, "seconds": seconds} for seconds in (1.0, 2.0, 9.0)]
    large = [{**base, "bytes_before": 200 * mib, "seconds": 22.0}]

    paces = ledger_state_from_rows([*small, *large]).table_state("orders").rates

    assert paces["zorder"].seconds_per_partition == 2.0
    assert paces["zorder"].bytes_per_second == 10 * mib
    assert paces["zorder"].seconds(200 * mib) == 22.0
    assert paces["compact"] == DEFAULT_RATES["compact"]


def test_commits_of_a_group_are_found_by_its_name() -> None:
    made = json.loads(user_metadata(pipeline="shop", batch="1", operation=OPTIMIZE, group="g1"))

    assert made["group"] == "g1"
