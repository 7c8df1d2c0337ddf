"""What OPTIMIZE chooses: by partition health, existing order and the night's budget, with a reason for all others."""

from __future__ import annotations

import datetime as dt
import itertools
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.control.objects import LocalObjects
from deltaworks.errors import ConfigError
from deltaworks.maintenance import optimize_night as night_module
from deltaworks.maintenance.layout import Layout
from deltaworks.maintenance.optimize_night import Candidate, plan_night, read_policy, select_partitions
from deltaworks.maintenance.partition_choice import (
    INLINE_ZORDER_FROM_BYTES,
    ORDERED_ROW_GROUP_BYTES,
    OptimizePolicy,
    PartitionChoice,
    TableChoice,
    choose_partitions,
    forced_choice,
)
from deltaworks.maintenance.table_health.measure import PartitionHealth, TableHealth
from deltaworks.maintenance.zorder_ledger import DEFAULT_RATES, LedgerState, OrderedPartition, RewriteRate, ZOrderState
from deltaworks.specs.loading import load_spec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.changes import Partition
from deltaworks.tables.lake import Lake
from deltaworks.testing import local_lake
from tests.unit.maintenance.table_data import IN_NEED, NIGHT, TABLES, fill_hundred, hundred_tables

NOW = dt.datetime(2026, 3, 10, 3, 30, tzinfo=dt.UTC)
MIB = 1 << 20
DAILY = OptimizePolicy()


def day(number: int, **also: str) -> Partition:
    return tuple(sorted({"event_date": f"2026-03-{number:02d}", **also}.items()))


def part(partition: Partition, *, files: int = 10, small: int = 8, size: int = 100 * MIB, **given: Any) -> Any:
    found = {
        "small_bytes": small * MIB,
        "rows": 1_000,
        "deletion_vector_rows": 0,
        "newest_file_at": NOW - dt.timedelta(minutes=1),
    }
    return PartitionHealth(partition=partition, files=files, bytes=size, small_files=small, **(found | given))


def table(*parts: PartitionHealth, by: tuple[str, ...] = ("event_date",)) -> TableHealth:
    return TableHealth(
        key="tables/shop/events",
        version=7,
        files=sum(each.files for each in parts),
        bytes=sum(each.bytes for each in parts),
        rows=None,
        small_files=0,
        small_file_share=0.0,
        partitions=len(parts),
        partition_by=by,
        last_checkpoint=None,
        partition_health=parts,
    )


def layout(*, by: tuple[str, ...] = ("event_date",), zorder: tuple[str, ...] = ("id",), **given: Any) -> Layout:
    types = {"event_date": "date", "org_id": "string", "id": "string"}
    return Layout(name="events", partition_by=by, zorder_by=zorder, types=types, **given)


def ordered(found: PartitionHealth, **changes: Any) -> OrderedPartition:
    left = OrderedPartition(
        columns=("id",),
        version=6,
        files=found.files,
        bytes=found.bytes,
        newest_file_at=found.newest_file_at,
        at=NOW - dt.timedelta(days=1),
    )
    return replace(left, **changes)


def chosen(
    *parts: PartitionHealth,
    known: dict[Partition, OrderedPartition] | None = None,
    policy: OptimizePolicy = DAILY,
    lies: Layout | None = None,
) -> TableChoice:
    lies = lies or layout()
    state = ZOrderState(ordered=known or {})
    return choose_partitions(table(*parts, by=lies.partition_by), lies, ledger=state, now=NOW, policy=policy)


def actions(choice: TableChoice) -> dict[str, str]:
    return {dict(each.partition).get("event_date") or "": each.action for each in choice.partitions}


def test_a_closed_day_is_ordered_and_an_open_one_skipped() -> None:
    choice = chosen(part(day(8)), part(day(9)), part(day(10)))

    assert actions(choice) == {"2026-03-08": "zorder", "2026-03-09": "zorder"}
    assert choice.reason == (
        "2 partitions to rewrite: 2026-03-08 (not in order), 2026-03-09 (not in order); left: 1 partition still written"
    )
    assert choice.files_saved == 18
    assert choice.bytes_rewritten == 200 * MIB


def test_a_day_closes_some_hours_after_its_end() -> None:
    early = replace(DAILY, closed_after=dt.timedelta(hours=4))

    assert actions(chosen(part(day(9)), policy=early)) == {}
    assert actions(chosen(part(day(9), newest_file_at=NOW))) == {"2026-03-09": "zorder"}


def test_an_open_day_with_many_small_files_is_compacted() -> None:
    good, bad = part(day(10), small=99, files=99), part(day(10), small=100, files=100)

    assert chosen(good).reason == "nothing to do: 1 partition still written"
    assert actions(chosen(bad)) == {"2026-03-10": "compact"}
    assert chosen(bad).partitions[0].bytes_rewritten == 100 * MIB


def test_an_undated_partition_closes_after_a_time_without_files() -> None:
    lies, place = layout(by=("org_id",)), (("org_id", "acme"),)
    quiet = part(place, newest_file_at=NOW - dt.timedelta(hours=4))

    assert [each.action for each in chosen(quiet, lies=lies).partitions] == ["zorder"]
    assert chosen(part(place), lies=lies).partitions == ()


def test_an_unchanged_ordered_partition_is_not_rewritten() -> None:
    found = part(day(1))

    for policy in (DAILY, DAILY.weekly(), DAILY.inline()):
        choice = chosen(found, known={day(1): ordered(found)}, policy=policy)
        assert choice.partitions == ()
        assert choice.reason == "nothing to do: 1 partition in order"


@pytest.mark.parametrize(
    "change",
    [{"files": 9}, {"bytes": 1}, {"newest_file_at": NOW - dt.timedelta(days=2)}, {"columns": ("name",)}],
    ids=str,
)
def test_a_partition_with_changed_files_or_order_is_rewritten(change: dict[str, Any]) -> None:
    found = part(day(1))
    if "newest_file_at" in change:
        change = {**change, "bytes": 1}

    assert actions(chosen(found, known={day(1): ordered(found, **change)})) == {"2026-03-01": "zorder"}


def test_few_late_rows_are_merged_daily_and_ordered_weekly() -> None:
    found = part(day(1), files=15, small=5)
    known = {day(1): ordered(found, files=10, bytes=95 * MIB)}

    assert actions(chosen(found, known=known)) == {"2026-03-01": "compact_small"}
    assert actions(chosen(found, known=known, policy=DAILY.weekly())) == {"2026-03-01": "zorder"}
    fewer = replace(found, small_files=3)
    assert chosen(fewer, known=known).reason == "nothing to do: 1 partition with few late rows"


def test_any_change_of_a_mutable_table_breaks_the_order() -> None:
    found = part(day(1), files=15, small=5)
    known = {day(1): ordered(found, files=10, bytes=95 * MIB)}

    assert actions(chosen(found, known=known, lies=layout(has_mutable_rows=True))) == {"2026-03-01": "zorder"}


def test_without_z_order_columns_many_small_files_are_merged() -> None:
    lies = layout(zorder=())

    assert actions(chosen(part(day(1), small=4), lies=lies)) == {"2026-03-01": "compact_small"}
    assert chosen(part(day(1), small=3), lies=lies).reason == "nothing to do: 1 partition with few small files"
    assert actions(chosen(part(day(1), small=3), lies=lies, policy=DAILY.weekly())) == {"2026-03-01": "compact_small"}


def test_a_partition_below_the_declared_size_is_not_ordered() -> None:
    bound = DAILY.zorder_from_bytes
    small, large = part(day(1), size=bound - 1), part(day(2), size=bound)

    for policy in (DAILY, DAILY.weekly()):
        assert actions(chosen(small, large, policy=policy)) == {"2026-03-01": "compact_small", "2026-03-02": "zorder"}
        one_file = replace(small, files=1, small_files=0)
        assert chosen(one_file, policy=policy).reason == "nothing to do: 1 partition of one file"
    assert chosen(replace(small, small_files=3)).reason == "nothing to do: 1 partition with few small files"
    assert actions(chosen(replace(small, small_files=3), policy=DAILY.weekly())) == {"2026-03-01": "compact_small"}
    every = replace(DAILY, zorder_from_bytes=0)
    assert actions(chosen(part(day(1), size=1), policy=every)) == {"2026-03-01": "zorder"}


def test_a_merging_job_orders_only_large_partitions_because_the_stream_waits() -> None:
    below, above = (part(day(n), size=INLINE_ZORDER_FROM_BYTES - 2 + n) for n in (1, 2))

    found = actions(chosen(below, above, policy=replace(DAILY, zorder_from_bytes=0).inline()))

    assert found == {"2026-03-01": "compact_small", "2026-03-02": "zorder"}


def test_a_single_file_is_ordered_once_if_order_splits_it_into_row_groups() -> None:
    every = replace(DAILY, zorder_from_bytes=0)
    one_group = part(day(1), files=1, small=0, size=ORDERED_ROW_GROUP_BYTES)
    several = part(day(2), files=1, small=0, size=ORDERED_ROW_GROUP_BYTES + 1)

    assert actions(chosen(one_group, several, policy=every)) == {"2026-03-02": "zorder"}
    again = chosen(one_group, several, policy=every, known={day(2): ordered(several)})
    assert again.reason == "nothing to do: 2 partitions of one file"


def test_the_benefit_of_an_order_grows_with_the_skipped_row_groups() -> None:
    policy = replace(DAILY, zorder_from_bytes=0)
    two, eight = (part(day(1), files=4, small=0, size=count * ORDERED_ROW_GROUP_BYTES) for count in (2, 8))

    assert chosen(two, policy=policy).benefit == 3 * 4 * MIB + 2 * ORDERED_ROW_GROUP_BYTES / 2
    assert chosen(eight, policy=policy).benefit == 3 * 4 * MIB + 8 * ORDERED_ROW_GROUP_BYTES * 7 / 8


def test_a_table_says_whether_order_acts_and_from_which_size() -> None:
    large, small, late = part(day(1), size=12 * MIB), part(day(2), size=3 * MIB), part(day(5), files=15, small=5)
    one_file = part(day(3), files=1, small=0, size=9 * MIB)
    lateness = {day(5): ordered(late, files=10, bytes=95 * MIB)}
    bound = "orders from 8.0 MiB"

    assert chosen(large, small).order == f"would order 1 partition, the largest 12.0 MiB; {bound}"
    assert chosen(small).order == f"largest closed date 3.0 MiB; {bound}"
    assert chosen(replace(small, partition=day(10))).order == f"largest date 3.0 MiB; {bound}"
    assert chosen(part(day(10))).order == f"1 partition still written until 2026-03-11 03:00; {bound}"
    done = {day(1): ordered(large), day(3): ordered(one_file)}
    assert chosen(large, one_file, small, known=done).order == f"2 partitions in order; {bound}"
    assert chosen(late, known=lateness).order == f"1 partition with few late rows; {bound}"
    every = replace(DAILY, zorder_from_bytes=0)
    tiny = part(day(1), files=1, small=0, size=MIB // 2)
    assert chosen(tiny, policy=every).order == "1 partition of one row group; orders from 0 B"
    assert chosen(large, lies=layout(zorder=())).order == ""


def test_a_forced_partition_is_ordered_or_merged_whatever_the_policy_says() -> None:
    open_day = part(day(10), files=1, small=0, size=MIB)

    def forced(found: PartitionHealth, lies: Layout) -> tuple[list[str], str]:
        choice = forced_choice(found, lies, ledger=ZOrderState(), policy=DAILY)
        return [each.action for each in choice.partitions], choice.reason

    assert forced(open_day, layout()) == (["zorder"], "1 partition to rewrite: 2026-03-10 (forced)")
    assert forced(open_day, layout(zorder=())) == ([], "nothing to do: one file, and no order is declared")
    assert forced(replace(open_day, files=2), layout(zorder=()))[0] == ["compact"]
    assert forced(replace(open_day, deletion_vector_rows=1), layout(zorder=()))[0] == ["compact"]


def test_spark_merges_large_partitions_and_unsupported_tables() -> None:
    lies = layout(zorder=())
    many = part(day(1), files=40, small=40, size=40 * MIB)
    few = part(day(2), small=8)

    choice = chosen(many, few, lies=lies)
    only_spark = choose_partitions(
        replace(table(few), spark_only_reasons=("column mapping",)), lies, ledger=ZOrderState(), now=NOW, policy=DAILY
    )

    assert actions(choice) == {"2026-03-01": "compact", "2026-03-02": "compact_small"}
    assert (choice.spark_work_count, actions(choice.without_spark())) == (1, {"2026-03-02": "compact_small"})
    assert [each.spark_reason for each in choice.partitions] == ["more than 32 MiB of small files", ""]
    assert only_spark.partitions[0].spark_reason == "column mapping"
    assert actions(only_spark) == {"2026-03-02": "compact"}


def test_a_partition_with_many_deleted_rows_is_rewritten_even_when_it_is_one_file_or_in_order() -> None:
    found = part(day(1), files=1, small=0, deletion_vector_rows=60)
    state = {day(1): ordered(found)}

    assert actions(chosen(found, known=state)) == {"2026-03-01": "zorder"}
    assert actions(chosen(found, lies=layout(zorder=()))) == {"2026-03-01": "compact"}
    assert actions(chosen(replace(found, deletion_vector_rows=50), known=state)) == {}


def test_every_skipped_partition_is_counted_with_its_reason() -> None:
    one_file = part(day(1), files=1, small=0, size=MIB)
    in_order = part(day(2))
    nothing: Partition = (("event_date", None),)

    choice = chosen(one_file, in_order, part(nothing), known={day(2): ordered(in_order)})

    assert choice.skipped_count == 3
    assert choice.reason == (
        "nothing to do: 1 partition of one file, 1 partition in order, 1 partition without a value"
    )


def test_a_missing_empty_or_differently_partitioned_table_is_reported() -> None:
    state, lies = ZOrderState(), layout()
    other = table(part((("org_id", "a"),)), by=("org_id",))

    told = [
        choose_partitions(health, lies, ledger=state, now=NOW, policy=DAILY).reason for health in (None, table(), other)
    ]

    assert told == ["it does not exist yet", "it is empty", "it is partitioned by org_id, not as declared"]


def test_the_cost_is_that_of_earlier_runs_and_a_large_unordered_partition_gains_most() -> None:
    paces = {
        "zorder": RewriteRate(seconds_per_partition=2, bytes_per_second=MIB),
        "compact": RewriteRate(seconds_per_partition=1, bytes_per_second=2 * MIB),
        "compact_small": RewriteRate(seconds_per_partition=0.5, bytes_per_second=4 * MIB),
    }
    large = part(day(1), files=20, small=0, size=2048 * MIB)
    small = part(day(2), files=20, small=20, size=20 * MIB)

    choice = choose_partitions(
        table(large, small),
        layout(),
        ledger=ZOrderState(rates=paces),  # type: ignore[arg-type]
        now=NOW,
        policy=replace(DAILY, zorder_from_bytes=32 * MIB),
    )

    costs = {dict(each.partition)["event_date"]: each.cost_seconds for each in choice.partitions}
    assert costs == {"2026-03-01": 2050.0, "2026-03-02": 5.5}
    gains = {dict(each.partition)["event_date"]: each.benefit for each in choice.partitions}
    groups = 2048 * MIB // ORDERED_ROW_GROUP_BYTES
    assert gains["2026-03-01"] == 12 * 4 * MIB + 2048 * MIB * (1 - 1 / groups)
    assert gains["2026-03-02"] == 19 * 4 * MIB


def test_choosing_needs_no_spark() -> None:
    import subprocess

    program = "import sys, deltaworks.maintenance.partition_choice; print('pyspark' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"


def test_a_clustered_table_is_clustered_and_never_merged() -> None:
    lies = layout(by=(), zorder=(), cluster_by=("id",))
    found = part((), newest_file_at=NOW)
    known = {(): ordered(found, files=5, bytes=60 * MIB)}

    assert [each.action for each in chosen(found, lies=lies).partitions] == ["zorder"]
    assert [each.action for each in chosen(found, lies=lies, known=known).partitions] == ["zorder"]
    few = {(): ordered(found, files=5, bytes=95 * MIB)}
    assert chosen(found, lies=lies, known=few).reason == "nothing to do: 1 partition with few late rows"
    same = {(): ordered(found)}
    assert chosen(found, lies=lies, known=same).reason == "nothing to do: 1 partition in order"


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> PipelineSpec:
    path = tmp_path_factory.mktemp("spec") / "pipeline.yaml"
    path.write_text(hundred_tables())
    return load_spec(PipelineSpec, path)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, spec: PipelineSpec) -> Lake:
    root = tmp_path_factory.mktemp("lake")
    made = local_lake(root)
    fill_hundred(made, LocalObjects(Path(root)), spec.tables[0].column_types())
    return made


def large(spec: PipelineSpec) -> OptimizePolicy:
    """A policy in which every partition is worth ordering."""
    return replace(read_policy(spec), zorder_from_bytes=0)


def test_a_small_table_is_compacted_and_others_are_skipped(lake: Lake, spec: PipelineSpec) -> None:
    found = select_partitions(lake, spec, policy=read_policy(spec), now=NIGHT)

    taken = {choice.action for each in found for choice in each.partitions}
    assert (taken, sum(each.spark_work_count for each in found)) == ({"compact_small"}, 0)
    assert sorted(each.table for each in found if each.partitions) == sorted(IN_NEED)


def test_ten_of_a_hundred_tables_are_chosen_and_others_have_a_reason(lake: Lake, spec: PipelineSpec) -> None:
    found = select_partitions(lake, spec, policy=large(spec), now=NIGHT)
    night = plan_night(found, budget_seconds=3_600)

    assert sorted(night.tables()) == sorted(IN_NEED)
    assert len(night.selected) == 20
    left = {each.table: each.reason for each in found if not each.partitions}
    assert left.pop("quarantine") == "it does not exist yet"
    assert len(left) == TABLES - 10
    kinds = {name[-1]: reason for name, reason in left.items()}
    assert kinds == {
        "1": "nothing to do: 2 partitions of one file",
        "2": "nothing to do: 2 partitions of one file",
        "3": "nothing to do: 1 partition with few small files",
        "4": "nothing to do: 2 partitions of one file",
        "5": "nothing to do: 1 partition in order",
        "6": "nothing to do: 1 partition in order",
        "7": "nothing to do: 1 partition of one file, 1 partition still written",
        "8": "nothing to do: 1 partition of one file",
        "9": "it does not exist yet",
    }
    assert all(name[-1] in kinds and kinds[name[-1]] == reason for name, reason in left.items())


def test_without_the_ledger_ordered_partitions_would_be_rewritten(lake: Lake, spec: PipelineSpec) -> None:
    nothing = LedgerState(ordered={}, rates=DEFAULT_RATES)

    found = select_partitions(lake, spec, policy=large(spec), now=NIGHT, ledger_state=nothing)

    assert len(plan_night(found, budget_seconds=3_600).tables()) == 30


def test_without_closing_open_days_would_be_rewritten(lake: Lake, spec: PipelineSpec) -> None:
    found = select_partitions(lake, spec, policy=OptimizePolicy(closed_after=None, zorder_from_bytes=0), now=NIGHT)

    assert len(plan_night(found, budget_seconds=3_600).tables()) == 20


def test_the_weekly_round_handles_skipped_partitions(lake: Lake, spec: PipelineSpec) -> None:
    found = select_partitions(lake, spec, policy=large(spec).weekly(), now=NIGHT)

    taken = plan_night(found, budget_seconds=3_600).tables()
    assert sorted(set(taken) - set(IN_NEED)) == [f"t{number:03d}" for number in range(3, TABLES, 10)]


def test_a_short_night_selects_the_best_and_defers_others(lake: Lake, spec: PipelineSpec) -> None:
    found = select_partitions(lake, spec, policy=large(spec), now=NIGHT, tables=list(IN_NEED))

    night = plan_night(found, budget_seconds=5.5)

    assert (len(night.selected), len(night.deferred)) == (5, 15)
    assert night.cost_seconds <= 5.5


def test_an_unknown_table_is_a_configuration_error(lake: Lake, spec: PipelineSpec) -> None:
    with pytest.raises(ConfigError, match="TABLE_UNKNOWN"):
        select_partitions(lake, spec, policy=large(spec), now=NIGHT, tables=["evnts"])


#: Benefits and costs: small numbers, so that all selections can be tried.
ITEMS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=9)


def item(number: int, benefit: float, cost: float) -> PartitionChoice:
    return PartitionChoice(
        partition=(("event_date", f"2026-01-{number:02d}"),),
        action="zorder",
        reason="not in order",
        files=2,
        bytes=1,
        files_saved=1,
        bytes_rewritten=1,
        benefit=benefit,
        cost_seconds=cost,
    )


def choices(items: Sequence[tuple[float, float]]) -> list[TableChoice]:
    made = [item(number, *each) for number, each in enumerate(items, 1)]
    return [
        TableChoice(table=name, partitions=tuple(made[at::2]), reason="")
        for at, name in enumerate(("events", "orders"))
    ]


def benefit(taken: Sequence[Candidate]) -> float:
    return sum(each.choice.benefit for each in taken)


def best(items: Sequence[tuple[float, float]], budget: float) -> float:
    """Oracle: tries every selection."""
    selections = itertools.chain.from_iterable(itertools.combinations(items, count) for count in range(len(items) + 1))
    return max(sum(each[0] for each in some) for some in selections if sum(each[1] for each in some) <= budget)


@given(items=ITEMS, budget=st.integers(0, 60))
def test_a_plan_fits_its_budget_and_has_half_of_the_best_benefit(items: list[tuple[int, int]], budget: int) -> None:
    night = plan_night(choices(items), budget_seconds=budget)

    assert night.cost_seconds <= budget
    assert 2 * benefit(night.selected) >= best(items, budget)
    assert sorted(str(each) for each in (*night.selected, *night.deferred)) == sorted(
        str(Candidate(choice.table, each)) for choice in choices(items) for each in choice.partitions
    )


@given(items=ITEMS)
def test_everything_that_fits_is_selected_best_first(items: list[tuple[int, int]]) -> None:
    night = plan_night(choices(items), budget_seconds=sum(cost for _, cost in items))

    assert benefit(night.selected) == sum(each[0] for each in items)
    assert not night.deferred
    worths = [each.benefit_per_second for each in night.selected]
    assert worths == sorted(worths, reverse=True)


def test_a_single_large_partition_replaces_a_small_selection() -> None:
    items = [(3.0, 1.0), (100.0, 60.0)]
    ranked = [Candidate(choice.table, each) for choice in choices(items) for each in choice.partitions]

    assert benefit(night_module._fit_budget(sorted(ranked, key=lambda each: -each.benefit_per_second), 60)) == 3.0
    assert benefit(plan_night(choices(items), budget_seconds=60).selected) == 100.0


def test_partitions_beyond_a_full_night_are_reported() -> None:
    night = plan_night(choices([(10, 5), (10, 70)]), budget_seconds=20, night_seconds=60)

    assert [each.choice.cost_seconds for each in night.deferred] == [70]
    assert night.too_large == night.deferred
    assert plan_night(choices([(10, 50)]), budget_seconds=20, night_seconds=60).too_large == ()


def test_tables_come_in_the_order_of_their_best_partition() -> None:
    night = plan_night(choices([(1, 1), (9, 1), (5, 1)]), budget_seconds=60)

    assert night.tables() == ["orders", "events"]
    assert [each.benefit for each in night.selected_partitions("events")] == [5, 1]
