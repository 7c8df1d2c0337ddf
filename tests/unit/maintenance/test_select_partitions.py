"""A night over a hundred tables chooses the ten that need work, with a reason for every other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from deltaworks.control.objects import LocalObjects
from deltaworks.errors import ConfigError
from deltaworks.maintenance.optimize_night import plan_night, read_policy, select_partitions
from deltaworks.maintenance.partition_choice import OptimizePolicy
from deltaworks.maintenance.zorder_ledger import DEFAULT_RATES, LedgerState
from deltaworks.specs.loading import load_spec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.lake import Lake
from deltaworks.testing import local_lake
from tests.unit.maintenance.table_data import IN_NEED, NIGHT, TABLES, fill_hundred, hundred_tables


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
