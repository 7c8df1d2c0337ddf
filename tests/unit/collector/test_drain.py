"""Draining a folder: every source to its sink, and nothing is deleted before it is delivered."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.delivery import CloseThresholds
from collector.drain import Drain, LandingDestination, RecordDestination
from collector.exposition import exposition
from collector.metrics import Metrics
from collector.packing import PackedObject, SpooledEvent
from collector.segments import HEADER_BYTES
from collector.sinks import DeadLetter, SinkBusyError
from collector.spool_cursor import SpoolCursor
from collector.spool_folder import SpoolFolder
from tests.unit.collector.spool_harness import WrittenSpool, payload
from tests.waiting import eventually


class MemorySink:
    """Takes everything, while its door is open."""

    def __init__(self) -> None:
        self.seqs: list[int] = []
        self.open = threading.Event()
        self.open.set()

    def put(self, item: PackedObject) -> None:
        self._refuse_or([item.plan.first, item.plan.last])

    def send(self, events: Sequence[SpooledEvent]) -> list[DeadLetter]:
        if not self.open.is_set():
            raise SinkBusyError("closed", remaining=events)
        self.seqs += [event.seq for event in events]
        return []

    def _refuse_or(self, seqs: list[int]) -> None:
        if not self.open.is_set():
            raise OSError("closed")
        self.seqs += seqs

    def close(self) -> None: ...


def segments(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob("seg-*.wal"))


@pytest.fixture
def spool(tmp_path: Path) -> WrittenSpool:
    return WrittenSpool(tmp_path / "w0", ["games", "shop"]).segment()


def test_an_unavailable_sink_delays_only_its_own_source_and_the_segments(spool: WrittenSpool) -> None:
    games, shop = MemorySink(), MemorySink()
    shop.open.clear()
    spool.write(3, "games")
    spool.write(2, "shop")
    spool.segment().write(2, "games")
    folder = SpoolFolder.acquire(spool.path)
    ways = {"games": RecordDestination(open_sink=lambda: games), "shop": RecordDestination(open_sink=lambda: shop)}
    drain = Drain(folder, ways, durable_position=spool.durable)
    drain.start()
    eventually(lambda: games.seqs == [1, 2, 3, 6, 7], "games are delivered")
    assert not drain.delete_delivered()
    assert len(segments(spool.path)) == 2
    assert drain.deletable_up_to() <= 3  # what the shop waits with is behind it
    eventually(lambda: "closed" in drain.states()["shop"].problem, "what the shop's sink says is kept")
    shop.open.set()
    eventually(lambda: shop.seqs == [4, 5], "the shop is delivered")
    eventually(lambda: len(segments(spool.path)) == 1, "the first segment is deleted")
    assert drain.stop(timeout_seconds=30)
    folder.close()


def test_sink_metrics_report_the_unavailable_sink_and_its_waiting_bytes(spool: WrittenSpool) -> None:
    games, shop = MemorySink(), MemorySink()
    shop.open.clear()
    spool.write(3, "games", size=1_000)
    spool.write(2, "shop", size=1_000)
    folder = SpoolFolder.acquire(spool.path)
    ways = {"games": RecordDestination(open_sink=lambda: games), "shop": RecordDestination(open_sink=lambda: shop)}
    drain, metrics = Drain(folder, ways, durable_position=spool.durable), Metrics()
    metrics.sinks = drain.sinks

    def figure(name: str, source: str) -> float:
        start = f'deltaworks_collector_sink_{name}{{source="{source}"}} '
        (line,) = [line for line in exposition(metrics, {}).decode().splitlines() if line.startswith(start)]
        return float(line.removeprefix(start))

    in_all = sum(path.stat().st_size for path in spool.path.glob("seg-*.wal"))
    assert 5_000 < figure("waiting_bytes", "games") <= in_all, "nothing is read yet"
    drain.start()
    eventually(lambda: games.seqs == [1, 2, 3] and figure("errors_total", "shop") > 1, "one delivers, one tries")
    eventually(lambda: figure("waiting_bytes", "games") == 0, "nothing waits for it")
    assert (figure("seconds_count", "games"), figure("errors_total", "games")) == (1, 0)
    assert figure("seconds_count", "shop") >= figure("errors_total", "shop"), "calls that failed are measured too"
    assert figure("waiting_bytes", "shop") == sum(len(payload(seq, 1_000)) + 1 for seq in (4, 5))
    shop.open.set()
    eventually(lambda: figure("waiting_bytes", "shop") == 0, "the shop is delivered")
    assert drain.stop(timeout_seconds=30)
    folder.close()


def test_waiting_bytes_are_those_after_the_cursor(spool: WrittenSpool) -> None:
    spool.write(3, size=100)
    spool.segment().write(2, size=100)
    cursor = SpoolCursor(spool.readable, spool.numbers["games"], after=0)
    frame = (spool.path / segments(spool.path)[1]).stat().st_size - HEADER_BYTES
    assert cursor.unread_bytes() == frame // 2 * 5
    cursor.read(1)
    assert cursor.unread_bytes() == frame // 2 * 4
    cursor.read(1 << 20)
    assert cursor.unread_bytes() == 0
    spool.write(1, size=100)
    assert cursor.unread_bytes() == frame // 2


def test_an_empty_folder_is_drained_immediately(tmp_path: Path) -> None:
    folder = SpoolFolder.acquire(tmp_path / "w0")
    games = MemorySink()
    drain = Drain(folder, {"games": RecordDestination(open_sink=lambda: games)}, durable_position=lambda: (1, 0))
    drain.start()
    eventually(lambda: all(each.has_scanned for each in drain._deliveries), "it has looked")
    assert drain.oldest_waiting_ms(1) is None
    assert drain.delete_delivered() == 0
    assert drain.stop(timeout_seconds=30)
    assert (games.seqs, drain.states()["games"].problem) == ([], "")
    folder.close()


def test_an_open_object_is_put_when_the_process_ends(spool: WrittenSpool) -> None:
    games = MemorySink()
    spool.write(3)
    folder = SpoolFolder.acquire(spool.path)
    way = LandingDestination(sink=games, prefix="games/", thresholds=CloseThresholds(bytes=1 << 20, seconds=3_600))
    drain = Drain(folder, {"games": way}, durable_position=spool.durable)
    drain.start()
    assert drain.stop(timeout_seconds=60)
    assert games.seqs == [1, 3]
    folder.close()


def test_read_but_undelivered_events_are_not_deleted(spool: WrittenSpool) -> None:
    games = MemorySink()
    spool.write(3)
    spool.segment().write(2)
    folder = SpoolFolder.acquire(spool.path)
    way = LandingDestination(sink=games, prefix="games/", thresholds=CloseThresholds(bytes=1 << 20, seconds=3_600))
    drain = Drain(folder, {"games": way}, durable_position=spool.durable)
    (delivery,) = drain._deliveries
    delivery.step()  # all of it is read, and waits
    assert drain.delete_delivered() == 0
    delivery.step(flush=True)
    assert drain.delete_delivered() > 0
    assert segments(spool.path) == ["seg-00000000000000000004.wal"]
    folder.close()


def test_deleting_read_but_undelivered_events_would_lose_them(
    spool: WrittenSpool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The protection off: what was read counts as done."""
    spool.write(3)
    spool.segment().write(2)
    folder = SpoolFolder.acquire(spool.path)
    way = LandingDestination(
        sink=MemorySink(), prefix="games/", thresholds=CloseThresholds(bytes=1 << 20, seconds=3_600)
    )
    drain = Drain(folder, {"games": way}, durable_position=spool.durable)
    (delivery,) = drain._deliveries
    monkeypatch.setattr(delivery, "_deletable_up_to", lambda: delivery._cursor.scanned_seq)
    delivery.step()
    assert drain.delete_delivered() > 0
    # The process ends here, and another one delivers what is left.
    games = MemorySink()
    later = Drain(
        folder,
        {"games": LandingDestination(sink=games, prefix="games/", thresholds=CloseThresholds())},
        durable_position=spool.durable,
    )
    later.start()
    assert later.stop(timeout_seconds=60)
    assert games.seqs == [4, 5]
    folder.close()


def test_events_of_a_source_that_is_no_longer_declared_wait_until_it_is_again(spool: WrittenSpool) -> None:
    games, shop = MemorySink(), MemorySink()
    spool.write(2, "shop")
    spool.write(2, "games")
    spool.segment().write(1, "games")
    folder = SpoolFolder.acquire(spool.path)
    drain = Drain(folder, {"games": RecordDestination(open_sink=lambda: games)}, durable_position=spool.durable)
    drain.start()
    eventually(lambda: games.seqs == [3, 4, 5], "games are delivered")
    assert not drain.stop(timeout_seconds=1)
    assert len(segments(spool.path)) == 2
    both = {"games": RecordDestination(open_sink=lambda: games), "shop": RecordDestination(open_sink=lambda: shop)}
    drain = Drain(folder, both, durable_position=spool.durable)
    drain.start()
    assert drain.stop(timeout_seconds=60)
    assert (games.seqs, shop.seqs) == ([3, 4, 5], [1, 2])
    assert len(segments(spool.path)) == 1
    folder.close()


def test_permanently_rejected_events_are_dead_letters_and_the_rest_is_delivered(spool: WrittenSpool) -> None:
    class RejectingSink(MemorySink):
        def send(self, events: Sequence[SpooledEvent]) -> list[DeadLetter]:
            super().send([event for event in events if event.seq != 2])
            return [DeadLetter(event, "too large") for event in events if event.seq == 2]

    games = RejectingSink()
    spool.write(3)
    folder = SpoolFolder.acquire(spool.path)
    drain = Drain(folder, {"games": RecordDestination(open_sink=lambda: games)}, durable_position=spool.durable)
    drain.start()
    assert drain.stop(timeout_seconds=60)
    assert games.seqs == [1, 3]
    assert '"seq": 2, "reason": "too large"' in (spool.path / "dead-letters-games.jsonl").read_text()
    assert drain.states()["games"].dead_letters == 1
    folder.close()


STEPS = st.lists(
    st.tuples(st.sampled_from(["games", "shop", "segment", "read", "crash"]), st.integers(1, 6)), max_size=30
)


@settings(max_examples=20)
@given(STEPS)
def test_a_cursor_reads_each_event_of_its_source_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    spool = WrittenSpool(tmp_path_factory.mktemp("spool") / "w0", ["games", "shop"]).segment()
    number = spool.numbers["games"]
    cursor = SpoolCursor(spool.readable, number, after=0)
    written: list[int] = []
    read: list[int] = []
    for step, count in steps:
        if step == "segment":
            spool.segment()
        elif step == "read":
            read += [event.seq for event in cursor.read(count * 10)]
        elif step == "crash":  # what was delivered is on record
            cursor = SpoolCursor(spool.readable, number, after=max([0, *read]))
        else:
            written += [seq for seq in spool.write(count, step) if step == "games"]
    while more := cursor.read(50):
        read += [event.seq for event in more]
    assert read == written
    for first, last in itertools.islice(itertools.combinations(written, 2), 5):
        between = [event.seq for event in cursor.read_between(first, last)]
        assert between == [seq for seq in written if first <= seq <= last]
