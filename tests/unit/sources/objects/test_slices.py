"""The file events of a batch: limits, prefix, no new events, and long ranges of other events."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from deltaworks.sources.objects.file_event_log import FileEventLog
from deltaworks.sources.objects.file_event_log_writer import FileEventLogWriter, ReceivedEvent
from deltaworks.sources.objects.relay.messages import FileEvent
from deltaworks.sources.objects.slices import SliceLimits, SlicePlanner
from deltaworks.testing import local_lake

NO_LIMIT = SliceLimits(max_files=None, max_bytes=None)


class SliceHarness:
    """A log with a writer and a planner for `games/`."""

    def __init__(self, root: Path, *, skip_after: int = 1000) -> None:
        self.lake = local_lake(root / "lake")
        self.writer = FileEventLogWriter(self.lake, "landing", epoch=1)
        self.log = FileEventLog(self.lake, "landing")
        self.planner = SlicePlanner(self.log, bucket="landing", prefix="games/", skip_after=skip_after)

    def land(self, *names: str, size: int = 10) -> None:
        at = datetime(2026, 3, 1, tzinfo=UTC)
        self.writer.append(
            [
                ReceivedEvent(FileEvent("landing", name, size, "e", None, at, "ObjectCreated:Put", None), "m", at)
                for name in names
            ]
        )


@pytest.fixture
def harness(tmp_path: Path) -> SliceHarness:
    return SliceHarness(tmp_path)


def test_a_slice_ends_at_its_number_of_files(harness: SliceHarness) -> None:
    harness.land("games/1", "edits/1", "games/2", "games/3")
    assert harness.planner.next_end_offset(0, SliceLimits(max_files=2, max_bytes=None)) == 3
    assert harness.planner.next_end_offset(3, SliceLimits(max_files=2, max_bytes=None)) == 4


def test_a_slice_respects_its_byte_limit_but_has_at_least_one_file(harness: SliceHarness) -> None:
    harness.land("games/1", "games/2", "games/3", size=40)
    harness.land("games/4", size=1000)
    limits = SliceLimits(max_files=10, max_bytes=100)
    ends = [harness.planner.next_end_offset(start, limits) for start in (0, 2, 3)]
    assert ends == [2, 3, 4]


def test_foreign_events_make_no_slice_and_are_not_scanned_twice(
    harness: SliceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.land(*(f"edits/{number}" for number in range(20)))
    scanned: list[int] = []
    read = harness.log.read

    def counted(after: int, *args: object, **options: object) -> object:
        scanned.append(after)
        return read(after, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(harness.log, "read", counted)
    assert harness.planner.next_end_offset(0, NO_LIMIT) == 0
    assert harness.planner.next_end_offset(0, NO_LIMIT) == 0
    assert scanned == [0]
    harness.land("edits/20", "games/1")
    assert harness.planner.next_end_offset(0, NO_LIMIT) == 22
    assert scanned == [0, 20]


def test_a_long_range_of_foreign_events_moves_the_position_once(tmp_path: Path) -> None:
    harness = SliceHarness(tmp_path, skip_after=10)
    harness.land(*(f"edits/{number}" for number in range(12)))
    assert harness.planner.next_end_offset(0, NO_LIMIT) == 12
    assert harness.planner.rows(0, 12).num_rows == 0
    assert harness.planner.next_end_offset(12, NO_LIMIT) == 12


def test_no_event_beyond_the_limit_is_read(harness: SliceHarness) -> None:
    harness.land("games/1", "games/2", "games/3")
    assert harness.planner.next_end_offset(0, NO_LIMIT, up_to=2) == 2
    assert harness.planner.next_end_offset(2, NO_LIMIT, up_to=2) == 2


def test_the_same_bounds_give_the_same_rows(harness: SliceHarness) -> None:
    harness.land("games/1", "edits/1", "games/2")
    before = harness.planner.rows(0, 3)
    harness.land("games/4")
    assert harness.planner.rows(0, 3).equals(before)
    assert before.column("key").to_pylist() == ["games/1", "games/2"]


def test_the_latest_matching_event_is_found_incrementally(harness: SliceHarness) -> None:
    harness.land("games/1", "edits/1", "games/2", "edits/2")
    assert harness.planner.latest_seq(0, scan_rows=2) == 1
    assert harness.planner.latest_seq(0, scan_rows=2) == 3
    assert harness.planner.latest_seq(0, scan_rows=2) == 3
    harness.land("games/3")
    assert harness.planner.latest_seq(0) == 5


def test_a_glob_selects_files_like_a_prefix(harness: SliceHarness) -> None:
    harness.land("games/1.json", "games/1.csv", "games/x/2.json", "games/3.json")
    planner = SlicePlanner(harness.log, bucket="landing", prefix="games/", glob="games/*.json")
    assert planner.next_end_offset(0, SliceLimits(max_files=2, max_bytes=None)) == 4
    assert planner.rows(0, 4).column("key").to_pylist() == ["games/1.json", "games/3.json"]
    assert harness.log.backlog(1, bucket="landing", glob="games/*.json").files == 1
