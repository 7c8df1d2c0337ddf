"""A feed delivers the changes between two versions or results; after any crashes its messages yield the table."""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from pydantic import ValidationError

from deltaworks.control import paths
from deltaworks.control.clock import iso_now, utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import LocalObjects
from deltaworks.control.records.feeds import DeliveryRecord, FeedRecords, ReplayRequest
from deltaworks.errors import ContractError, FencedError
from deltaworks.feeds import delivery, process
from deltaworks.feeds.delivery import CHUNK_SIZE, StopRequested
from deltaworks.feeds.messages import DeadReason, Message
from tests.crashes import Crash
from tests.examples import examples
from tests.unit.feeds.feed_harness import DAY, SCHEMA, FeedHarness, Receiver, applied, declared

KEY = ("event_date", "country")


@pytest.fixture
def harness(tmp_path: Path) -> FeedHarness:
    return FeedHarness(tmp_path)


def keys(receiver: Receiver) -> list[tuple[str, str]]:
    return [(message["op"], message["key"]["country"]) for message in receiver.received()]


def test_all_rows_are_sent_first_and_then_changes(harness: FeedHarness) -> None:
    receiver = Receiver()
    feed = harness.feed(receiver)
    feed.run_once()
    assert receiver.received() == [], "there is no table yet"

    harness.rebuild(0, {"de": 1, "at": 2})
    feed.run_once()
    assert keys(receiver) == [("upsert", "at"), ("upsert", "de")]

    harness.rebuild(0, {"de": 1, "at": 3, "ch": 1})
    feed.run_once()
    assert keys(receiver) == [("upsert", "at"), ("upsert", "ch")]


def test_starting_now_sends_no_existing_rows(tmp_path: Path) -> None:
    harness, receiver = FeedHarness(tmp_path, declared({"from": "now"})), Receiver()
    harness.rebuild(0, {"de": 1})
    feed = harness.feed(receiver)
    feed.run_once()
    assert receiver.received() == []
    harness.rebuild(1, {"de": 5})
    feed.run_once()
    assert [message["row"] for message in receiver.received()] == [
        {"event_date": "2026-03-02", "country": "de", "turnover": None, "orders": 5}
    ]


def test_a_rebuild_with_equal_rows_delivers_nothing(harness: FeedHarness) -> None:
    receiver = Receiver()
    feed = harness.feed(receiver)
    harness.rebuild(0, {"de": 1, "at": 2})
    feed.run_once()
    receiver.received()
    for _ in range(2):
        harness.rebuild(0, {"at": 2, "de": 1})
        record = feed.run_once()
    assert receiver.received() == []
    assert record.position.version == DeltaTable(harness.uri).version()


def test_a_deleted_row_is_sent_as_a_delete(harness: FeedHarness) -> None:
    receiver = Receiver()
    feed = harness.feed(receiver)
    harness.rebuild(0, {"de": 1, "at": 2})
    feed.run_once()
    harness.rebuild(0, {"de": 1})
    feed.run_once()
    (gone,) = [message for message in receiver.received() if message["op"] == "delete"]
    assert (gone["key"], gone["row"]) == ({"event_date": "2026-03-01", "country": "at"}, None)


def test_only_partitions_that_changed_are_opened(harness: FeedHarness) -> None:
    receiver = Receiver()
    feed = harness.feed(receiver)
    harness.rebuild(0, {"de": 1})
    harness.rebuild(1, {"de": 1})
    feed.run_once()
    # The partition that stays is unreadable: whoever opened it would fail.
    for file in (Path(harness.uri) / "event_date=2026-03-01").glob("*.parquet"):
        file.write_bytes(b"no parquet")
    harness.rebuild(1, {"de": 2})
    receiver.received()
    feed.run_once()
    assert keys(receiver) == [("upsert", "de")]


def test_a_key_without_the_partition_column_may_move_between_partitions(tmp_path: Path) -> None:
    harness, receiver = FeedHarness(tmp_path, declared({"key": "country", "columns": ["orders"]})), Receiver()
    feed = harness.feed(receiver)
    harness.rebuild(0, {"de": 1, "at": 1})
    feed.run_once()
    harness.rebuild(0, {"at": 1})
    harness.rebuild(1, {"de": 4})
    receiver.received()
    feed.run_once()
    assert [(message["op"], message["row"]) for message in receiver.received()] == [
        ("upsert", {"country": "de", "orders": 4})
    ]


def test_a_view_is_delivered_by_its_stored_results(tmp_path: Path) -> None:
    harness, receiver = FeedHarness(tmp_path, declared({"reads": "totals", "key": "country"})), Receiver()
    feed = harness.feed(receiver)
    feed.run_once()
    harness.rebuild(0, {"de": 1})
    feed.run_once()
    assert keys(receiver) == [("upsert", "de")]
    harness.rebuild(1, {"at": 2})
    feed.run_once()
    feed.run_once()
    assert keys(receiver) == [("upsert", "at")]
    harness.rebuild(0, {})
    feed.run_once()
    assert keys(receiver) == [("delete", "de")]
    assert len(harness.records.view_result_keys()) == 3, "those that replays need are kept"


def test_an_interrupted_delivery_resumes_with_the_same_ids(harness: FeedHarness) -> None:
    rows = {f"c{number:04d}": number for number in range(CHUNK_SIZE + 20)}
    harness.rebuild(0, rows)
    whole = Receiver()

    def stop_in_the_second_part(message: Message) -> None:
        if '"c0510"' in message.key:
            raise StopRequested

    cut = Receiver(faults=stop_in_the_second_part)
    with pytest.raises(StopRequested):
        harness.feed(cut).run_once()
    under_way = harness.record.current_delivery
    assert under_way is not None
    assert under_way.sent_changes == CHUNK_SIZE

    # What the table becomes meanwhile is another delivery's.
    harness.rebuild(0, {**rows, "c0001": -1})
    harness.feed(whole).run_once()
    ids = {message["id"]: message for message in cut.messages}
    again = [message for message in whole.messages if message["id"] in ids]
    assert [message["key"]["country"] for message in again] == [f"c{number:04d}" for number in range(500, 510)]
    assert applied([*cut.messages, *whole.messages], KEY) == harness.rows()


def test_only_what_failed_is_sent_again(harness: FeedHarness) -> None:
    harness.rebuild(0, {"at": 1, "ch": 2, "de": 3})
    tries: dict[str, int] = {}

    def twice_for_ch(message: Message) -> str | None:
        tries[message.key] = tries.get(message.key, 0) + 1
        return "busy" if '"ch"' in message.key and tries[message.key] < 3 else None

    receiver = Receiver(faults=twice_for_ch)
    harness.feed(receiver).run_once()
    assert sorted(tries.values()) == [1, 1, 3]
    assert applied(receiver.messages, KEY) == harness.rows()


def test_a_rejected_row_is_a_dead_letter_with_its_reason(harness: FeedHarness) -> None:
    harness.rebuild(0, {"at": 1, "de": 3})
    too_large = DeadReason.TOO_LARGE, "300 KB"
    receiver = Receiver(faults=lambda message: too_large if '"at"' in message.key else None)
    record = harness.feed(receiver).run_once()
    assert (record.dead_letters, record.current_delivery) == (1, None)
    (letters,) = harness.records.dead_letters()
    assert letters.letters[0]["reason"] == "too_large"
    assert letters.letters[0]["message"]["row"]["orders"] == 1
    assert keys(receiver) == [("upsert", "de")]


def test_null_and_duplicate_keys_are_dead_letters(harness: FeedHarness) -> None:
    days = [DAY] * 3
    rows = {"event_date": days, "country": ["de", "de", None], "turnover": [None] * 3, "orders": [1, 2, 3]}
    harness.write(pa.table(rows, schema=SCHEMA))
    receiver = Receiver()
    harness.feed(receiver).run_once()
    reasons = [letter["reason"] for letters in harness.records.dead_letters() for letter in letters.letters]
    assert sorted(reasons) == ["key_not_unique", "key_null"]
    assert receiver.messages == []


def test_more_dead_letters_than_allowed_stop_the_feed(tmp_path: Path) -> None:
    harness = FeedHarness(tmp_path, declared({"max_dead_letters": 1}))
    harness.rebuild(0, {"at": 1, "ch": 2, "de": 3})
    refusing = Receiver(faults=lambda message: (DeadReason.REFUSED, "no"))
    for _ in range(2):
        with pytest.raises(ContractError, match="FEED_TOO_MANY_DEAD_LETTERS"):
            harness.feed(refusing).run_once()
    assert refusing.calls == 1, "once it is known, nothing more is sent"


def test_a_replay_sends_deliveries_again_under_their_ids(harness: FeedHarness) -> None:
    receiver = Receiver()
    feed = harness.feed(receiver)
    for orders in (1, 2, 3):
        harness.rebuild(0, {"de": orders})
        feed.run_once()
    first = receiver.received()
    harness.records.request_replay(ReplayRequest(since=2, by="me", at=iso_now()))
    record = feed.run_once()
    assert [(m["id"], m["row"]["orders"]) for m in receiver.received()] == [
        (m["id"], m["row"]["orders"]) for m in first[1:]
    ]
    assert (record.number, harness.records.replay_request()) == (3, None)
    feed.run_once()
    assert receiver.received() == []


def test_a_position_with_missing_files_raises_and_all_rows_can_be_sent_again(harness: FeedHarness) -> None:
    receiver = Receiver()
    feed = harness.feed(receiver)
    harness.rebuild(0, {"de": 1, "at": 1})
    feed.run_once()
    harness.rebuild(0, {"de": 2})
    DeltaTable(harness.uri).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    receiver.received()
    for _ in range(2):
        with pytest.raises(ContractError, match="FEED_POSITION_UNAVAILABLE"):
            feed.run_once()
    harness.records.request_replay(ReplayRequest(since=None, by="me", at=iso_now()))
    feed.run_once()
    assert keys(receiver) == [("upsert", "de")]
    harness.rebuild(0, {"de": 3})
    feed.run_once()
    assert keys(receiver) == [("upsert", "de")]


def test_records_of_deliveries_are_read_every_ten_minutes_and_end_after_the_replay_time(
    harness: FeedHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    deliveries = FeedRecords.deliveries

    def counted(records: FeedRecords) -> Iterator[DeliveryRecord]:
        reads.append("deliveries")
        return deliveries(records)

    monkeypatch.setattr(FeedRecords, "deliveries", counted)
    feed = harness.feed(Receiver())
    for orders in range(4):
        harness.rebuild(0, {"de": orders})
        feed.run_once()
    assert len(reads) == 1, "a feed that checks every few seconds does not read thousands of records each time"

    later = utc_now() + dt.timedelta(hours=25)
    monkeypatch.setattr(process, "utc_now", lambda: later)
    feed.run_once()
    assert (len(reads), [*deliveries(harness.records)]) == (2, [])


def test_the_versions_that_the_next_delivery_needs_are_claimed(harness: FeedHarness) -> None:
    harness.rebuild(0, {"de": 1})
    harness.feed(Receiver()).run_once()
    (claim,) = PipelineHome(harness.objects, "shop").readers.read()
    assert (claim.table, claim.reader, claim.version) == ("turnover", "feed_offers", harness.record.position.version)


def test_a_former_owner_that_resumes_changes_nothing(harness: FeedHarness) -> None:
    harness.rebuild(0, {"de": 1})

    def overtaken(_message: Message) -> None:
        if not successor.calls:
            harness.feed(successor).run_once()

    successor = Receiver()
    with pytest.raises(FencedError, match="FEED_TAKEN_OVER"):
        harness.feed(Receiver(faults=overtaken)).run_once()
    assert harness.record.number == 1


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    harness = FeedHarness(tmp_path, declared({"columns": ["order"]}))
    harness.rebuild(0, {"de": 1})
    with pytest.raises(ContractError, match="FEED_COLUMN_MISSING"):
        harness.feed(Receiver()).run_once()


def test_a_recreated_table_is_not_a_later_version(harness: FeedHarness) -> None:
    harness.rebuild(0, {"de": 1})
    harness.feed(Receiver()).run_once()
    harness.objects.put(paths.feed("shop", "offers", "x"), b"")
    import shutil

    shutil.rmtree(harness.uri)
    harness.rebuild(0, {"at": 1})
    with pytest.raises(ContractError, match="FEED_POSITION_UNAVAILABLE"):
        harness.feed(Receiver()).run_once()


def test_pending_changes_have_a_start_time(harness: FeedHarness) -> None:
    harness.rebuild(0, {"de": 1})
    before = dt.datetime.now(dt.UTC)

    def crash(_message: Message) -> None:
        raise StopRequested

    with pytest.raises(StopRequested):
        harness.feed(Receiver(faults=crash)).run_once()
    since = harness.record.pending_since
    assert since is not None
    assert dt.datetime.fromisoformat(since) <= before


@pytest.mark.parametrize(
    ("feed", "text"),
    [
        ({"reads": "turnovr"}, "did you mean 'turnover'"),
        ({"reads": "placed"}, "is not a gold table or view"),
        ({"from": "yesterday"}, "'now' or 'all'"),
        ({"key": []}, "at least 1"),
        ({"key": ["country", "country"]}, "named twice"),
        ({"columns": ["country"]}, "in the key"),
        ({"name": "x" * 51}, "at most 50 characters"),
        ({"to": {"kind": "webhook", "url": "ftp://x"}}, "https://"),
        ({"to": {"kind": "webhook", "url": "https://x", "token": "secret"}}, "references, env:NAME"),
        (
            {
                "to": {
                    "kind": "kafka",
                    "bootstrap_servers": "x:9092",
                    "topic": "t",
                    "security": {"protocol": "SSL", "truststore": "/x", "truststore_type": "JKS"},
                }
            },
            "PEM",
        ),
    ],
)
def test_an_invalid_feed_is_rejected_with_a_suggestion(feed: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        declared(feed)


def test_the_start_of_a_feed_is_required() -> None:
    feed = declared().feeds[0].model_dump(mode="json")
    del feed["from"]
    with pytest.raises(ValidationError, match="from"):
        declared(feeds=[feed])


def test_two_feeds_with_one_name_are_rejected() -> None:
    feed = declared().feeds[0].model_dump(mode="json")
    with pytest.raises(ValidationError, match="rename one"):
        declared(feeds=[feed, feed])


COUNTRIES = ("at", "ch", "de", "fr", "it", "pl", "se")
CONTENT = st.dictionaries(st.sampled_from(COUNTRIES), st.integers(0, 3), max_size=len(COUNTRIES))
#: A step rebuilds a day, or asks for a replay; then the process runs, and dies at a point of the run or not at all.
STEPS = st.lists(
    st.tuples(
        st.one_of(st.tuples(st.integers(0, 2), CONTENT), st.sampled_from(["replay", "everything"])),
        st.one_of(st.none(), st.integers(0, 14)),
    ),
    min_size=1,
    max_size=8,
)


class Points:
    """Counts the points at which a process can crash, and crashes it at one of them."""

    def __init__(self) -> None:
        self.left: int | None = None

    def reach(self) -> None:
        if self.left is None:
            return
        self.left -= 1
        if self.left < 0:
            self.left = None
            raise Crash


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> Points:
    """Before and after every write of the control area, and every message."""
    points = Points()
    monkeypatch.setattr(delivery, "CHUNK_SIZE", 2)
    for name in ("put", "put_if_absent", "put_if_match"):
        original = getattr(LocalObjects, name)

        def around(self: LocalObjects, *arguments: Any, original: Any = original) -> Any:
            points.reach()
            result = original(self, *arguments)
            points.reach()
            return result

        monkeypatch.setattr(LocalObjects, name, around)
    return points


class CrashingReceiver(Receiver):
    """Records messages even if the sender crashes before it gets the reply."""

    def __init__(self, points: Points) -> None:
        super().__init__()
        self._points = points

    def send(self, messages: Any) -> Any:
        outcome = None
        for message in messages:
            self._points.reach()
            outcome = super().send([message])
            self._points.reach()
        return outcome


def folders() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("reads", ["turnover", "totals"])
def test_deliveries_lead_to_the_rows_of_the_source(points: Points, reads: str) -> None:
    @settings(max_examples=examples(25))
    @given(STEPS)
    def holds(steps: list[tuple[Any, int | None]]) -> None:
        for folder in folders():
            points.left = None
            _check(folder, points, reads, steps)

    holds()


def _check(folder: Path, points: Points, reads: str, steps: list[tuple[Any, int | None]]) -> None:
    key = KEY if reads == "turnover" else ("country",)
    harness = FeedHarness(folder, declared({"reads": reads, "key": list(key)}))
    (folder / "include/pipelines/shop/totals.sql").write_text(
        "SELECT country, CAST(sum(orders) AS INT) AS orders FROM turnover GROUP BY country"
    )
    receiver = CrashingReceiver(points)
    for step, dies_at in steps:
        if isinstance(step, tuple):
            harness.rebuild(*step)
        else:
            record = harness.records.read()
            since = None if step == "everything" or record is None or not record.number else 1
            FeedRecords(harness.objects, "shop", "offers").request_replay(
                ReplayRequest(since=since, by="me", at=iso_now())
            )
        points.left = dies_at
        with contextlib.suppress(Crash):
            harness.feed(receiver).run_once()
        points.left = None
    harness.feed(receiver).run_once()
    expected = harness.rows() if reads == "turnover" else _totals(harness)
    assert applied(receiver.messages, key) == expected
    _ids_name_changes(receiver.messages)


def _totals(harness: FeedHarness) -> dict[tuple[Any, ...], dict[str, Any]]:
    totals: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in harness.rows().values():
        total = totals.setdefault((row["country"],), {"country": row["country"], "orders": 0})
        total["orders"] += row["orders"]
    return totals


def _ids_name_changes(messages: list[dict[str, Any]]) -> None:
    """Messages with one id are equal, and each key has one message per delivery."""
    by_id: dict[str, dict[str, Any]] = {}
    for message in messages:
        assert by_id.setdefault(message["id"], message) == message
    places = {(message["number"], str(message["key"])): message["id"] for message in messages}
    assert len(places) == len(by_id)


def test_a_message_contains_only_declared_columns(tmp_path: Path) -> None:
    harness, receiver = FeedHarness(tmp_path, declared({"columns": "orders"})), Receiver()
    harness.rebuild(0, {"de": 1})
    harness.feed(receiver).run_once()
    (message,) = receiver.messages
    assert message["row"] == {"event_date": "2026-03-01", "country": "de", "orders": 1}
