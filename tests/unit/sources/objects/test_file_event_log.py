"""The file event log: each file event once, `seq` without gaps, one writer, slices that read few files."""

from __future__ import annotations

import json
import os
import random
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control.provenance import REQUIRED_FIELDS
from deltaworks.errors import ContractError, FencedError
from deltaworks.sources.objects import file_event_log, file_event_log_writer
from deltaworks.sources.objects.file_event_log import (
    FILE_EVENT_SCHEMA,
    FileEventLog,
    file_events_key,
    message_quarantine_key,
)
from deltaworks.sources.objects.file_event_log_writer import FileEventLogWriter, QuarantinedMessage, ReceivedEvent
from deltaworks.sources.objects.relay.messages import FileEvent
from deltaworks.sources.outages import is_outage
from deltaworks.tables.commit import commit_step
from deltaworks.tables.lake import Lake

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
    rows = lake.rows(message_quarantine_key(RELAY))
    assert rows is not None
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
    rows = lake.rows(message_quarantine_key(RELAY))
    assert rows is not None
    assert rows.num_rows == 1
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
        table = lake.open(key)
        assert table is not None
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
    table = lake.open(file_events_key(RELAY))
    assert table is not None
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
