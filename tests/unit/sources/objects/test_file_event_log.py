"""The file event log: each file event once by its identity, one writer, slices within their limits."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import shutil
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.control.provenance import REQUIRED_FIELDS
from deltaworks.errors import ContractError, FencedError
from deltaworks.sources.objects import file_event_log, file_event_log_writer
from deltaworks.sources.objects.file_event_log import (
    FILE_EVENT_SCHEMA,
    FileEventLog,
    IdentitySet,
    file_event_identity,
    file_events_key,
    message_quarantine_key,
    row_identity,
)
from deltaworks.sources.objects.file_event_log_writer import FileEventLogWriter, QuarantinedMessage, ReceivedEvent
from deltaworks.sources.objects.payloads import FileOpener, FileReference
from deltaworks.sources.objects.relay.messages import FileEvent
from deltaworks.sources.objects.slices import SliceLimits, SlicePlanner
from deltaworks.sources.objects.source import object_slice
from deltaworks.sources.outages import is_outage
from deltaworks.specs.relay import Overwrites
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.commit import commit_step
from deltaworks.tables.lake import Lake
from deltaworks.testing import local_lake, present

RELAY = "landing"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def received(name: str, *, etag: str = "e", bucket: str = "landing", size: int = 10, at: datetime = NOON) -> Any:
    event = FileEvent(bucket, name, size, etag, None, at, "ObjectCreated:Put", "00A1")
    return ReceivedEvent(event, f"message of {name}", at)


def unusable(message_id: str) -> QuarantinedMessage:
    return QuarantinedMessage(message_id, "{", "not_json", datetime.now(UTC))


def reopened(lake: Lake, *, epoch: int = 1) -> FileEventLogWriter:
    return FileEventLogWriter(Lake(lake.storage), RELAY, epoch=epoch)


def keys(lake: Lake) -> list[str]:
    names: list[str] = FileEventLog(lake, RELAY).read(0).column("key").to_pylist()
    return names


def test_a_missing_log_reads_as_empty(lake: Lake) -> None:
    log = FileEventLog(lake, RELAY)
    assert log.last_seq() == 0
    assert log.read(0).equals(FILE_EVENT_SCHEMA.empty_table())


def test_events_get_a_seq_without_gaps_across_appends_and_restarts(lake: Lake) -> None:
    writer = reopened(lake)
    writer.append([received("a"), received("b")])
    writer.append([received("c")])
    writer = reopened(lake, epoch=2)
    writer.append([received("d"), received("e")])
    rows = FileEventLog(lake, RELAY).read(0)
    assert rows.schema == FILE_EVENT_SCHEMA
    assert rows.column("seq").to_pylist() == [1, 2, 3, 4, 5]
    assert rows.column("key").to_pylist() == ["a", "b", "c", "d", "e"]
    assert rows.column("batch").to_pylist() == [1, 1, 2, 3, 3]
    assert rows.column("event_time").to_pylist() == [NOON] * 5


def test_a_repeated_announcement_is_skipped_before_and_after_a_restart(lake: Lake) -> None:
    writer = reopened(lake)
    assert writer.append([received("a"), received("a")]).duplicates == 1
    assert writer.append([received("a")]).is_empty
    writer = reopened(lake, epoch=2)
    assert writer.append([received("a"), received("a", etag="newer content")]).duplicates == 1
    assert keys(lake) == ["a", "a"]


def test_later_contents_of_a_key_without_etags_are_appended_once_each(lake: Lake) -> None:
    later = NOON + timedelta(minutes=5)
    first, larger, newer = (received("a", etag=""), received("a", etag="", size=11), received("a", etag="", at=later))
    writer = reopened(lake)
    assert writer.append([first, first]).duplicates == 1
    assert writer.append([larger, newer, first]).duplicates == 1
    assert reopened(lake, epoch=2).append([newer, first, larger]).is_empty
    assert FileEventLog(lake, RELAY).read(0).column("size").to_pylist() == [10, 11, 10]


def test_shuffled_redeliveries_give_each_file_event_once(lake: Lake) -> None:
    random.seed(7)
    deliveries = [received(f"f{number}") for number in range(200)] * 3
    random.shuffle(deliveries)
    writer = reopened(lake)
    for start in range(0, len(deliveries), 37):
        if start % 111 == 0:
            writer = reopened(lake, epoch=start + 1)
        writer.append(deliveries[start : start + 37])
    assert sorted(keys(lake)) == sorted(f"f{number}" for number in range(200))
    assert FileEventLog(lake, RELAY).read(0).column("seq").to_pylist() == list(range(1, 201))


def test_a_redelivered_quarantined_message_is_recorded_once(lake: Lake) -> None:
    writer = reopened(lake)
    writer.append([received("a")], [unusable("m1"), unusable("m1")])
    writer.append([], [unusable("m1"), unusable("m2")])
    reopened(lake, epoch=2).append([], [unusable("m2")])
    rows = present(lake.rows(message_quarantine_key(RELAY)))
    assert sorted(rows.column("message_id").to_pylist()) == ["m1", "m2"]
    assert set(rows.column("reason").to_pylist()) == {"not_json"}


def test_a_crash_between_the_two_tables_duplicates_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def only_messages(table: Any, *args: Any, **options: Any) -> Any:
        if options["step"].app_id.endswith("/file_events"):
            raise OSError("the machine went away")
        return commit_step(table, *args, **options)

    writer = reopened(lake)
    monkeypatch.setattr(file_event_log_writer, "commit_step", only_messages)
    with pytest.raises(OSError, match="went away"):
        writer.append([received("a")], [unusable("m1")])
    monkeypatch.undo()
    reopened(lake, epoch=2).append([received("a")], [unusable("m1")])
    assert present(lake.rows(message_quarantine_key(RELAY))).num_rows == 1
    assert keys(lake) == ["a"]


def test_a_lost_reply_does_not_duplicate_an_append(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def landed_but_silent(*args: Any, **options: Any) -> Any:
        commit_step(*args, **options)
        raise OSError("connection reset")

    writer = reopened(lake)
    pending = writer.prepare([received("a")], [])
    monkeypatch.setattr(file_event_log_writer, "commit_step", landed_but_silent)
    with pytest.raises(OSError, match="reset"):
        writer.commit(pending)
    monkeypatch.undo()
    with pytest.raises(ContractError, match="APPEND_OUTCOME_UNKNOWN"):
        writer.prepare([received("b")])
    writer.commit(pending)
    writer.append([received("b")])
    assert keys(lake) == ["a", "b"]


def test_a_fenced_writer_cannot_append(lake: Lake) -> None:
    former = reopened(lake, epoch=1)
    former.append([received("a")])
    in_hand = former.prepare([received("b")], [unusable("m")])
    successor = reopened(lake, epoch=2)
    with pytest.raises(FencedError, match="OWNER_FENCED"):
        former.commit(in_hand)
    assert keys(lake) == ["a"]
    successor.append([received("b")])
    assert keys(lake) == ["a", "b"]


def test_a_fenced_writer_does_not_mistake_its_successors_append_for_its_own(lake: Lake) -> None:
    """Both would be append 2: were that number alone believed, the former's messages would be deleted unread."""
    former = reopened(lake, epoch=1)
    former.append([received("a")])
    in_hand = former.prepare([received("b")])
    reopened(lake, epoch=2).append([received("c")])
    with pytest.raises(FencedError, match="OWNER_FENCED"):
        former.commit(in_hand)
    assert keys(lake) == ["a", "c"]


def test_an_overtaken_epoch_cannot_open_the_log(lake: Lake) -> None:
    reopened(lake, epoch=5)
    with pytest.raises(FencedError, match="OWNER_FENCED"):
        reopened(lake, epoch=4)


def test_every_commit_names_its_writer(lake: Lake) -> None:
    writer = reopened(lake)
    writer.append([received("a")], [unusable("m")])
    for key in (file_events_key(RELAY), message_quarantine_key(RELAY)):
        table = present(lake.open(key))
        commits = [json.loads(entry["userMetadata"]) for entry in table.history()]
        assert len(commits) == 3
        for commit in commits:
            assert set(REQUIRED_FIELDS) <= set(commit)
            assert commit["pipeline"] == RELAY
        appended = commits[0]
        assert appended["batch"] == "1"
        assert appended["step_version"] == 1


def test_slices_are_bounded_and_repeatable(lake: Lake) -> None:
    writer = reopened(lake)
    for first in range(0, 30, 3):
        writer.append([received(f"f{number}") for number in range(first, first + 3)])
    log = FileEventLog(lake, RELAY)
    assert log.read(4, 10).column("seq").to_pylist() == [5, 6, 7, 8, 9, 10]
    assert log.read(4, limit=2).column("seq").to_pylist() == [5, 6]
    assert log.read(28, 100, 100).column("seq").to_pylist() == [29, 30]
    assert log.read(30).num_rows == 0
    assert log.read(4, 10).equals(FileEventLog(lake, RELAY).read(4, 10))


def test_a_slice_reads_only_its_own_files(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = reopened(lake)
    for number in range(20):
        writer.append([received(f"f{number}")])
    opened: list[Any] = []
    read = file_event_log.read_parquet
    monkeypatch.setattr(file_event_log, "read_parquet", lambda source: opened.append(source) or read(source))
    log = FileEventLog(lake, RELAY)
    assert log.read(10, 13).num_rows == 3
    assert len(opened) == 3
    assert log.read(10, 14).num_rows == 4
    assert len(opened) == 4


def test_a_reader_sees_what_was_appended_after_it_opened_the_log(lake: Lake) -> None:
    log = FileEventLog(lake, RELAY)
    writer = reopened(lake)
    for number in range(3):
        writer.append([received(f"f{number}")])
        assert log.last_seq() == number + 1
        assert log.read(number).column("key").to_pylist() == [f"f{number}"]


def test_opening_a_fragmented_log_compacts_it_and_changes_no_slice(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = reopened(lake)
    for number in range(12):
        writer.append([received(f"f{number}")])
    log = FileEventLog(lake, RELAY)
    before = log.read(3, 9)
    monkeypatch.setattr(file_event_log_writer, "_COMPACTION_THRESHOLD_FILES", 10)
    writer = reopened(lake, epoch=2)
    assert len(log.files()) == 1
    assert log.read(3, 9).equals(before)
    assert writer.append([received("f3"), received("new")]).duplicates == 1
    assert log.read(12).column("seq").to_pylist() == [13]
    table = present(lake.open(file_events_key(RELAY)))
    operations = [json.loads(entry["userMetadata"])["operation"] for entry in table.history()]
    assert operations[:2] == ["append_file_events", "compact_file_events"]


def test_the_backlog_counts_one_prefix_of_one_bucket(lake: Lake) -> None:
    writer = reopened(lake)
    late = NOON + timedelta(hours=1)
    writer.append([received("games/1", size=5), received("games/2", size=6, at=late), received("edits/1", size=7)])
    writer.append([received("games/3", bucket="other")])
    log = FileEventLog(lake, RELAY)
    backlog = log.backlog(0, bucket="landing", prefix="games/")
    assert (backlog.files, backlog.bytes, backlog.oldest_at) == (2, 11, NOON)
    assert log.backlog(2, bucket="landing", prefix="games/").files == 0
    assert log.backlog(0, bucket="landing").files == 3


def test_a_data_file_without_statistics_is_rejected(lake: Lake) -> None:
    reopened(lake).append([received("a")])
    folder = Path(lake.storage.prefix) / file_events_key(RELAY) / "_delta_log"
    newest = max(folder.glob("*.json"))
    lines = [json.loads(line) for line in newest.read_text().splitlines()]
    for line in lines:
        line.get("add", {}).pop("stats", None)
    os.truncate(newest, 0)
    newest.write_text("\n".join(json.dumps(line) for line in lines))
    with pytest.raises(ContractError, match="LOG_WITHOUT_STATISTICS"):
        FileEventLog(lake, RELAY).last_seq()


def test_a_damaged_commit_is_reported_immediately_and_the_restored_log_is_read(lake: Lake, tmp_path: Path) -> None:
    reopened(lake).append([received("a")])
    before = FileEventLog(lake, RELAY)
    assert before.last_seq() == 1
    log = tmp_path / "lake" / file_events_key(RELAY) / "_delta_log"
    damaged = log / f"{int(max(log.glob('*.json')).stem) + 1:020d}.json"
    damaged.write_text("this is no commit\n")

    for reader in (before, FileEventLog(Lake(lake.storage), RELAY)):
        with pytest.raises(ContractError, match="_delta_log") as refused:
            reader.last_seq()
        assert refused.value.condition == "LOG_DAMAGED"
        assert "\n" not in str(refused.value), "one line travels from the process that plans to the driver"
        assert not is_outage(refused.value), "nobody waits for it"

    damaged.unlink()
    assert before.last_seq() == 1


def test_a_position_of_another_log_or_beyond_its_end_is_rejected(lake: Lake) -> None:
    reopened(lake).append([received("a"), received("b")])
    log = FileEventLog(lake, RELAY)
    position = {"seq": 2, "log": log.table_id}
    for good in (position, {"seq": 2}, {"seq": 0}):
        log.check_position(good)
    with pytest.raises(ContractError, match="LOG_ROLLED_BACK"):
        log.check_position({"seq": 3, "log": log.table_id})
    shutil.rmtree(Path(lake.storage.prefix) / file_events_key(RELAY))
    with pytest.raises(ContractError, match="LOG_REPLACED"):
        FileEventLog(lake, RELAY).check_position(position)
    reopened(lake, epoch=2).append([received("c"), received("d"), received("e")])
    with pytest.raises(ContractError, match="LOG_REPLACED"):
        FileEventLog(lake, RELAY).check_position(position)


NAMES = st.binary(min_size=16, max_size=16)


def test_a_file_is_identified_by_bucket_key_and_etag() -> None:
    same = file_event_identity("b", "k", "e")
    assert file_event_identity("b", "k", "e", "another version") == same
    assert (
        len(
            {
                same,
                file_event_identity("B", "k", "e"),
                file_event_identity("b", "K", "e"),
                file_event_identity("b", "k", "E"),
            }
        )
        == 4
    )


def test_parts_of_an_identity_are_delimited() -> None:
    assert file_event_identity("ab", "c", "d") != file_event_identity("a", "bc", "d")
    assert file_event_identity("a", "bc", "") != file_event_identity("a", "b", "c")


def test_versions_count_only_with_every_version() -> None:
    first, second = (
        file_event_identity("b", "k", "e", version, overwrites="every_version") for version in ("v1", "v2")
    )
    assert first != second


AFTER_NOON = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)


@pytest.mark.parametrize("overwrites", ["latest", "every_version"])
def test_without_an_etag_size_time_and_version_tell_contents_apart(overwrites: Overwrites) -> None:
    def identity(version: str | None = None, size: int = 7, at: datetime = AFTER_NOON) -> bytes:
        return file_event_identity("b", "k", "", version, size=size, event_time=at, overwrites=overwrites)

    same = identity()
    assert identity(at=AFTER_NOON.astimezone(timezone(timedelta(hours=2)))) == same
    assert identity(at=AFTER_NOON.replace(microsecond=0)) == same
    assert (
        len({same, identity(size=8), identity(at=AFTER_NOON + timedelta(seconds=1)), identity("v1"), identity("v2")})
        == 5
    )


def test_with_an_etag_size_and_time_do_not_count() -> None:
    same = file_event_identity("b", "k", "e", size=7, event_time=AFTER_NOON)
    assert file_event_identity("b", "k", "e", size=8, event_time=AFTER_NOON + timedelta(days=1)) == same
    assert row_identity(("b", "k", "e", None, 9, AFTER_NOON), overwrites="latest") == same


def test_where_only_the_first_content_counts_the_etag_may_be_unknown() -> None:
    first = file_event_identity("b", "k", "", size=7, event_time=AFTER_NOON, overwrites="ignore")
    assert file_event_identity("b", "k", "", size=8, event_time=AFTER_NOON, overwrites="ignore") == first


@given(st.lists(NAMES), st.lists(NAMES), st.lists(NAMES))
def test_the_set_contains_its_items_and_nothing_else(
    loaded: list[bytes], added: list[bytes], asked: list[bytes]
) -> None:
    names = IdentitySet(loaded)
    for name in added:
        names.add(name)
    known = {*loaded, *added}
    assert all(name in names for name in known)
    assert [name in names for name in asked] == [name in known for name in asked]


def test_identities_that_share_half_their_bytes_are_distinguished() -> None:
    names = IdentitySet([b"12345678abcdefgh", b"12345678ijklmnop"])
    assert b"12345678abcdefgh" in names
    assert b"12345678ijklmnop" in names
    assert b"12345678qrstuvwx" not in names


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


AT = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
OPENER = FileOpener(StorageSpec(root="file:///landing"), compression="auto")


def events(*rows: tuple[int, str, int | None]) -> pa.Table:
    return pa.table(
        {
            "seq": pa.array([seq for seq, _, _ in rows], pa.int64()),
            "key": [key for _, key, _ in rows],
            "size": pa.array([size for _, _, size in rows], pa.int64()),
            "etag": ["e"] * len(rows),
            "event_time": pa.array([AT + dt.timedelta(seconds=seq) for seq, _, _ in rows], pa.timestamp("us", "UTC")),
        }
    )


def test_a_batch_is_its_files_in_the_order_of_the_log() -> None:
    source = object_slice(events((3, "c", 30), (1, "a", 10), (2, "b", None)), OPENER)

    made = 1_704_067_200_000_000
    assert source.references == [
        FileReference(seq, key, "e", arrived_at_us=made + seq * 1_000_000) for seq, key in enumerate("abc", 1)
    ]
    assert source.sizes == [10, 1, 30]
    assert source.metadata == {
        "files": 3,
        "bytes": 41,
        "first_seq": 1,
        "last_seq": 3,
        "oldest_arrived_at": "2024-01-01T00:00:01+00:00",
        "newest_arrived_at": "2024-01-01T00:00:03+00:00",
        "arrived_us": [made + second * 1_000_000 for second in (1, 2, 3)],
    }


def test_many_arrivals_are_sampled_by_rank_with_the_first_and_the_last() -> None:
    source = object_slice(events(*((seq, str(seq), 1) for seq in range(1, 1_001))), OPENER)
    arrived = source.metadata["arrived_us"]

    assert len(arrived) == 20
    assert arrived == sorted(arrived)
    assert arrived[-1] - arrived[0] == 999_000_000


def test_a_batch_without_files_is_empty() -> None:
    source = object_slice(events(), OPENER)

    assert (list(source.references), source.metadata) == ([], {"files": 0, "bytes": 0})
