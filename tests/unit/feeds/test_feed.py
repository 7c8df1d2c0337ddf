"""A feed delivers what changed between two versions or answers, each key in order, and nothing that stayed."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from deltaworks.control import outbound_paths
from deltaworks.control.clock import iso_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.records.feeds import ReplayRequest
from deltaworks.errors import ContractError, FencedError
from deltaworks.feeds.delivery import CHUNK_SIZE, StopRequested
from deltaworks.feeds.messages import DeadReason, Message
from tests.unit.feeds.feed_stage import DAY, SCHEMA, FeedStage, Receiver, applied, declared

KEY = ("event_date", "country")


@pytest.fixture
def stage(tmp_path: Path) -> FeedStage:
    return FeedStage(tmp_path)


def keys(receiver: Receiver) -> list[tuple[str, str]]:
    return [(message["op"], message["key"]["country"]) for message in receiver.taken()]


def test_all_rows_come_first_and_then_what_changed(stage: FeedStage) -> None:
    receiver = Receiver()
    feed = stage.feed(receiver)
    feed.run_once()
    assert receiver.taken() == [], "there is no table yet"

    stage.rebuild(0, {"de": 1, "at": 2})
    feed.run_once()
    assert keys(receiver) == [("upsert", "at"), ("upsert", "de")]

    stage.rebuild(0, {"de": 1, "at": 3, "ch": 1})
    feed.run_once()
    assert keys(receiver) == [("upsert", "at"), ("upsert", "ch")]


def test_from_now_on_sends_nothing_that_was_there(tmp_path: Path) -> None:
    stage, receiver = FeedStage(tmp_path, declared({"from": "now"})), Receiver()
    stage.rebuild(0, {"de": 1})
    feed = stage.feed(receiver)
    feed.run_once()
    assert receiver.taken() == []
    stage.rebuild(1, {"de": 5})
    feed.run_once()
    assert [message["row"] for message in receiver.taken()] == [
        {"event_date": "2026-03-02", "country": "de", "turnover": None, "orders": 5}
    ]


def test_a_rebuild_with_equal_rows_delivers_nothing(stage: FeedStage) -> None:
    receiver = Receiver()
    feed = stage.feed(receiver)
    stage.rebuild(0, {"de": 1, "at": 2})
    feed.run_once()
    receiver.taken()
    for _ in range(2):
        stage.rebuild(0, {"at": 2, "de": 1})
        record = feed.run_once()
    assert receiver.taken() == []
    assert record.position.version == DeltaTable(stage.uri).version()


def test_a_row_that_is_gone_comes_as_a_tombstone(stage: FeedStage) -> None:
    receiver = Receiver()
    feed = stage.feed(receiver)
    stage.rebuild(0, {"de": 1, "at": 2})
    feed.run_once()
    stage.rebuild(0, {"de": 1})
    feed.run_once()
    (gone,) = [message for message in receiver.taken() if message["op"] == "delete"]
    assert (gone["key"], gone["row"]) == ({"event_date": "2026-03-01", "country": "at"}, None)


def test_only_partitions_that_changed_are_opened(stage: FeedStage) -> None:
    receiver = Receiver()
    feed = stage.feed(receiver)
    stage.rebuild(0, {"de": 1})
    stage.rebuild(1, {"de": 1})
    feed.run_once()
    # The partition that stays is unreadable: whoever opened it would fail.
    for file in (Path(stage.uri) / "event_date=2026-03-01").glob("*.parquet"):
        file.write_bytes(b"no parquet")
    stage.rebuild(1, {"de": 2})
    receiver.taken()
    feed.run_once()
    assert keys(receiver) == [("upsert", "de")]


def test_a_key_without_the_partition_column_may_move_between_partitions(tmp_path: Path) -> None:
    stage, receiver = FeedStage(tmp_path, declared({"key": "country", "columns": ["orders"]})), Receiver()
    feed = stage.feed(receiver)
    stage.rebuild(0, {"de": 1, "at": 1})
    feed.run_once()
    stage.rebuild(0, {"at": 1})
    stage.rebuild(1, {"de": 4})
    receiver.taken()
    feed.run_once()
    assert [(message["op"], message["row"]) for message in receiver.taken()] == [
        ("upsert", {"country": "de", "orders": 4})
    ]


def test_a_view_is_delivered_by_the_answers_it_gave(tmp_path: Path) -> None:
    stage, receiver = FeedStage(tmp_path, declared({"reads": "totals", "key": "country"})), Receiver()
    feed = stage.feed(receiver)
    feed.run_once()
    stage.rebuild(0, {"de": 1})
    feed.run_once()
    assert keys(receiver) == [("upsert", "de")]
    stage.rebuild(1, {"at": 2})
    feed.run_once()
    feed.run_once()
    assert keys(receiver) == [("upsert", "at")]
    stage.rebuild(0, {})
    feed.run_once()
    assert keys(receiver) == [("delete", "de")]
    assert len(stage.records.view_result_keys()) == 3, "those that replays need are kept"


def test_a_delivery_that_was_cut_off_goes_on_under_the_same_ids(stage: FeedStage) -> None:
    rows = {f"c{number:04d}": number for number in range(CHUNK_SIZE + 20)}
    stage.rebuild(0, rows)
    whole = Receiver()

    def stop_in_the_second_part(message: Message) -> None:
        if '"c0510"' in message.key:
            raise StopRequested

    cut = Receiver(faults=stop_in_the_second_part)
    with pytest.raises(StopRequested):
        stage.feed(cut).run_once()
    under_way = stage.record.current_delivery
    assert under_way is not None
    assert under_way.sent_changes == CHUNK_SIZE

    # What the table becomes meanwhile is another delivery's.
    stage.rebuild(0, {**rows, "c0001": -1})
    stage.feed(whole).run_once()
    ids = {message["id"]: message for message in cut.messages}
    again = [message for message in whole.messages if message["id"] in ids]
    assert [message["key"]["country"] for message in again] == [f"c{number:04d}" for number in range(500, 510)]
    assert applied([*cut.messages, *whole.messages], KEY) == stage.rows()


def test_only_what_failed_is_sent_again(stage: FeedStage) -> None:
    stage.rebuild(0, {"at": 1, "ch": 2, "de": 3})
    tries: dict[str, int] = {}

    def twice_for_ch(message: Message) -> str | None:
        tries[message.key] = tries.get(message.key, 0) + 1
        return "busy" if '"ch"' in message.key and tries[message.key] < 3 else None

    receiver = Receiver(faults=twice_for_ch)
    stage.feed(receiver).run_once()
    assert sorted(tries.values()) == [1, 1, 3]
    assert applied(receiver.messages, KEY) == stage.rows()


def test_a_row_that_is_refused_for_good_is_a_dead_letter_with_its_reason(stage: FeedStage) -> None:
    stage.rebuild(0, {"at": 1, "de": 3})
    too_large = DeadReason.TOO_LARGE, "300 KB"
    receiver = Receiver(faults=lambda message: too_large if '"at"' in message.key else None)
    record = stage.feed(receiver).run_once()
    assert (record.dead_letters, record.current_delivery) == (1, None)
    (letters,) = stage.records.dead_letters()
    assert letters.letters[0]["reason"] == "too_large"
    assert letters.letters[0]["message"]["row"]["orders"] == 1
    assert keys(receiver) == [("upsert", "de")]


def test_keys_that_name_no_row_are_dead_letters(stage: FeedStage) -> None:
    days = [DAY] * 3
    rows = {"event_date": days, "country": ["de", "de", None], "turnover": [None] * 3, "orders": [1, 2, 3]}
    stage.write(pa.table(rows, schema=SCHEMA))
    receiver = Receiver()
    stage.feed(receiver).run_once()
    reasons = [letter["reason"] for letters in stage.records.dead_letters() for letter in letters.letters]
    assert sorted(reasons) == ["key_not_unique", "key_null"]
    assert receiver.messages == []


def test_more_dead_letters_than_are_declared_stop_the_feed(tmp_path: Path) -> None:
    stage = FeedStage(tmp_path, declared({"max_dead_letters": 1}))
    stage.rebuild(0, {"at": 1, "ch": 2, "de": 3})
    refusing = Receiver(faults=lambda message: (DeadReason.REFUSED, "no"))
    for _ in range(2):
        with pytest.raises(ContractError, match="FEED_TOO_MANY_DEAD_LETTERS"):
            stage.feed(refusing).run_once()
    assert refusing.calls == 1, "once it is known, nothing more is sent"


def test_a_replay_sends_deliveries_again_under_their_ids(stage: FeedStage) -> None:
    receiver = Receiver()
    feed = stage.feed(receiver)
    for orders in (1, 2, 3):
        stage.rebuild(0, {"de": orders})
        feed.run_once()
    first = receiver.taken()
    stage.records.request_replay(ReplayRequest(since=2, by="me", at=iso_now()))
    record = feed.run_once()
    assert [(m["id"], m["row"]["orders"]) for m in receiver.taken()] == [
        (m["id"], m["row"]["orders"]) for m in first[1:]
    ]
    assert (record.number, stage.records.replay_request()) == (3, None)
    feed.run_once()
    assert receiver.taken() == []


def test_a_position_whose_files_are_gone_says_so_and_everything_can_be_sent_anew(stage: FeedStage) -> None:
    receiver = Receiver()
    feed = stage.feed(receiver)
    stage.rebuild(0, {"de": 1, "at": 1})
    feed.run_once()
    stage.rebuild(0, {"de": 2})
    DeltaTable(stage.uri).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    receiver.taken()
    for _ in range(2):
        with pytest.raises(ContractError, match="FEED_POSITION_UNAVAILABLE"):
            feed.run_once()
    stage.records.request_replay(ReplayRequest(since=None, by="me", at=iso_now()))
    feed.run_once()
    assert keys(receiver) == [("upsert", "de")]
    stage.rebuild(0, {"de": 3})
    feed.run_once()
    assert keys(receiver) == [("upsert", "de")]


def test_the_versions_that_the_next_delivery_needs_are_claimed(stage: FeedStage) -> None:
    stage.rebuild(0, {"de": 1})
    stage.feed(Receiver()).run_once()
    (claim,) = PipelineHome(stage.objects, "shop").readers.read()
    assert (claim.table, claim.reader, claim.version) == ("turnover", "feed_offers", stage.record.position.version)


def test_a_former_owner_that_wakes_up_changes_nothing(stage: FeedStage) -> None:
    stage.rebuild(0, {"de": 1})

    def overtaken(_message: Message) -> None:
        if not successor.calls:
            stage.feed(successor).run_once()

    successor = Receiver()
    with pytest.raises(FencedError, match="FEED_TAKEN_OVER"):
        stage.feed(Receiver(faults=overtaken)).run_once()
    assert stage.record.number == 1


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    stage = FeedStage(tmp_path, declared({"columns": ["order"]}))
    stage.rebuild(0, {"de": 1})
    with pytest.raises(ContractError, match="FEED_COLUMN_MISSING"):
        stage.feed(Receiver()).run_once()


def test_a_table_that_was_recreated_is_no_later_version(stage: FeedStage) -> None:
    stage.rebuild(0, {"de": 1})
    stage.feed(Receiver()).run_once()
    stage.objects.put(outbound_paths.feed("shop", "offers", "x"), b"")
    import shutil

    shutil.rmtree(stage.uri)
    stage.rebuild(0, {"at": 1})
    with pytest.raises(ContractError, match="FEED_POSITION_UNAVAILABLE"):
        stage.feed(Receiver()).run_once()


def test_what_waits_says_since_when(stage: FeedStage) -> None:
    stage.rebuild(0, {"de": 1})
    before = dt.datetime.now(dt.UTC)

    def crash(_message: Message) -> None:
        raise StopRequested

    with pytest.raises(StopRequested):
        stage.feed(Receiver(faults=crash)).run_once()
    since = stage.record.pending_since
    assert since is not None
    assert dt.datetime.fromisoformat(since) <= before
