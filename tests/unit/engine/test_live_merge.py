"""Merges of a live table's counts without Spark."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltaworks.engine import live
from deltaworks.engine.live import LiveMerge
from deltaworks.specs.live import LiveTableSpec
from deltaworks.tables import files_commit
from deltaworks.tables.commit import Step
from deltaworks.tables.log import TableState, read_commits, state_at
from deltaworks.testing import local_lake, present
from tests.unit.tables.log_model import drop_statistics

KEY, START = "tables/pulse/hourly", dt.datetime(2026, 3, 1, 22, tzinfo=dt.UTC)
SCHEMA = pa.schema(
    [
        ("window_start", pa.timestamp("us", tz="UTC")),
        ("window_date", pa.date32()),
        ("event_name", pa.string()),
        ("events", pa.int64()),
    ]
)
LIVE = LiveTableSpec.model_validate(
    {"name": "hourly", "reads": "events", "window_minutes": 60, "watermark_minutes": 60, "group_by": ["event_name"]}
)
#: Events by hour and name.
Counts = dict[tuple[int, str | None], int]


class Hourly:
    """A live table with its merge."""

    def __init__(self, folder: Path, schema: pa.Schema = SCHEMA) -> None:
        self.lake, self.schema = local_lake(folder), schema
        self.lake.ensure(KEY, schema, user_metadata="{}", partition_by=["window_date"])
        self._merge = LiveMerge(self.lake, KEY, pipeline="pulse", live=LIVE, before_merge=None)

    def merge(self, counts: dict[Any, int], batch: int, *, state: TableState | None = None) -> bool:
        rows = [
            {"window_start": at, "window_date": at.date(), "event_name": name, "events": events}
            for (hour, name), events in counts.items()
            for at in (START + dt.timedelta(hours=hour),)
        ]
        arrow = pa.Table.from_pylist(rows, schema=self.schema)
        return self._merge._merge_in_process(arrow, state or self.state(), Step("pulse/live/hourly/q", batch), "{}")

    def state(self) -> TableState:
        return state_at(self.lake, self.lake.objects, KEY)

    def counts(self) -> Counts:
        rows = present(self.lake.rows(KEY)).to_pylist()
        counts = {
            (int((row["window_start"] - START) / dt.timedelta(hours=1)), row["event_name"]): row["events"]
            for row in rows
        }
        assert len(counts) == len(rows), "one row per window and group"
        return counts


@pytest.fixture
def hourly(tmp_path: Path) -> Hourly:
    return Hourly(tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_the_newest_counts_of_each_window_and_group_are_there(hourly: Hourly, seed: int) -> None:
    chosen, expected = random.Random(seed), Counts()
    for batch in range(12):
        counts: Counts = {
            (chosen.randrange(6), chosen.choice(["a", "b", None])): chosen.randrange(100) for _ in range(5)
        }
        assert hourly.merge(counts, batch)
        expected |= counts
    assert hourly.counts() == expected
    assert len(hourly.state().files) <= 4, "two of each date"


def test_a_committed_batch_is_not_committed_again(hourly: Hourly) -> None:
    before = hourly.state()
    hourly.merge({(0, "a"): 1}, 7)
    hourly.merge({(0, "a"): 2}, 8)
    assert hourly.merge({(0, "a"): 1}, 7), "it is there"
    assert hourly.merge({(0, "a"): 2}, 8, state=before), "so it is for one that has read the table before"
    assert hourly.counts() == {(0, "a"): 2}
    assert hourly.state().version == 2


@pytest.mark.parametrize("looks", [True, False], ids=["protected", "without a look at its step"])
def test_a_batch_whose_reply_was_lost_lands_once(hourly: Hourly, monkeypatch: pytest.MonkeyPatch, looks: bool) -> None:
    puts: list[bool] = []
    put = files_commit.write_commit

    def losing_the_first(*arguments: Any) -> bool:
        puts.append(put(*arguments))
        return len(puts) > 1 and puts[-1]

    monkeypatch.setattr(files_commit, "write_commit", losing_the_first)
    if not looks:
        monkeypatch.setattr(files_commit, "is_step_committed", lambda state, step: False)

    assert hourly.merge({(0, "a"): 1}, 0)
    assert hourly.counts() == {(0, "a"): 1}
    # Merged once more, the same rows are committed twice.
    assert hourly.state().version == (1 if looks else 2)


def test_dates_without_changes_keep_their_files(hourly: Hourly) -> None:
    hourly.merge({(0, "a"): 1, (5, "a"): 1}, 0)
    hourly.merge({(5, "a"): 2}, 1)
    ((_, actions),) = read_commits(hourly.lake, KEY, [2])
    assert actions is not None
    removed = [action["remove"]["path"] for action in actions if "remove" in action]
    assert [path.split("/")[0] for path in removed] == ["window_date=2026-03-02"]


def test_many_rows_are_left_to_spark(hourly: Hourly, monkeypatch: pytest.MonkeyPatch) -> None:
    hourly.merge({(0, "a"): 1, (0, "b"): 1}, 0)
    monkeypatch.setattr(live, "MAX_COLLECTED_ROWS", 1)
    assert not hourly.merge({(0, "a"): 2}, 1)
    assert hourly.merge({(5, "a"): 2}, 2), "the other date has few"
    assert hourly.counts() == {(0, "a"): 1, (0, "b"): 1, (5, "a"): 2}


def test_groups_by_floating_point_are_left_to_spark(tmp_path: Path) -> None:
    hourly = Hourly(tmp_path, SCHEMA.set(2, pa.field("event_name", pa.float64())))
    assert not hourly.merge({(0, 1.5): 2}, 0), "no value of them is sure to be found again"


def test_counts_beside_files_of_unknown_length_are_merged_by_spark(hourly: Hourly) -> None:
    assert hourly.merge({(0, "a"): 1}, 1)
    drop_statistics(hourly.lake, KEY)

    assert not hourly.merge({(0, "a"): 2}, 2)
