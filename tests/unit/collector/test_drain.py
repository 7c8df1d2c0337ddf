"""Draining a folder: every event reaches its sink once, wherever the process dies, and nothing is deleted before."""

from __future__ import annotations

import base64
import gzip
import hashlib
import itertools
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import collector.packing
from collector.delivery import CloseThresholds, LandingDelivery, write_dead_letters
from collector.drain import Drain, LandingDestination, RecordDestination
from collector.exposition import exposition
from collector.metrics import Metrics
from collector.packing import PackedObject, SpooledEvent
from collector.progress import Progress, SourceProgress
from collector.segments import HEADER_BYTES
from collector.sinks import DeadLetter, SinkBusyError
from collector.sinks.landing import LandingSink
from collector.spool_cursor import SpoolCursor
from collector.spool_folder import SpoolFolder
from tests.unit.collector.spool_harness import (
    AT,
    BUCKET,
    Bucket,
    WrittenSpool,
    landing_delivery,
    landing_sink_of,
    payload,
)
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


class Killed(BaseException):
    """The process ends here."""


class DyingSink:
    """A bucket whose caller dies before or behind one put, or whose reply is lost."""

    def __init__(self, bucket: Bucket, *, before: bool = False, behind: bool = False, lost: int = 0) -> None:
        self._sink = landing_sink_of(bucket)
        self._before, self._behind, self._lost = before, behind, lost

    def put(self, item: PackedObject) -> None:
        if self._before:
            raise Killed
        self._sink.put(item)
        if self._behind:
            raise Killed
        if self._lost:
            self._lost -= 1
            raise ConnectionResetError("the reply is lost")


class DyingProgress(Progress):
    """Dies instead of writing the n-th time."""

    def __init__(self, folder: Path, *, at: int) -> None:
        super().__init__(folder)
        self._left = at

    def set(self, source: str, progress: SourceProgress) -> None:
        if not self._left:
            raise Killed
        self._left -= 1
        super().set(source, progress)


class ForgetfulProgress(Progress):
    """The protection off: no plan is written down."""

    def set(self, source: str, progress: SourceProgress) -> None:
        super().set(source, progress.model_copy(update={"planned_object": None}))


@pytest.fixture
def landing_spool(tmp_path: Path) -> WrittenSpool:
    return WrittenSpool(tmp_path / "w0").segment()


def test_an_object_has_the_events_as_lines_under_a_key_with_their_numbers(
    landing_spool: WrittenSpool, bucket: Bucket
) -> None:
    seqs = landing_spool.write(5)
    assert landing_delivery(landing_spool, landing_sink_of(bucket)).step(flush=True)
    (key,) = bucket.keys()
    assert key == f"games/2026/09/21/14/{landing_spool.name}-000000000001-000000000005.json.gz"
    body = bucket.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    assert bucket.numbers() == seqs
    assert gzip.decompress(body).endswith(b"\n")
    assert body[4:8] == bytes(4)  # no time inside: the same events are the same bytes


def test_an_object_is_closed_when_it_is_full_or_old_and_not_before(landing_spool: WrittenSpool, bucket: Bucket) -> None:
    now = AT
    delivery = landing_delivery(
        landing_spool, landing_sink_of(bucket), closes=CloseThresholds(bytes=3_000, seconds=60), clock=lambda: now
    )
    landing_spool.write(2)
    delivery.step()
    now += 59
    assert not delivery.step()
    now += 1
    assert delivery.step()
    assert bucket.numbers() == [1, 2]
    landing_spool.write(40, size=100)
    delivery.step()
    assert len(bucket.keys()) == 2


def _die(delivery: LandingDelivery) -> None:
    with pytest.raises(Killed):
        delivery.step(flush=True)


@pytest.mark.parametrize("where", ["before the plan", "before the put", "behind the put", "before it is done"])
def test_every_event_lands_once_wherever_the_process_dies(
    where: str, landing_spool: WrittenSpool, bucket: Bucket
) -> None:
    seqs = landing_spool.write(5)
    sink: Any = landing_sink_of(bucket)
    progress = Progress(landing_spool.path)
    match where:
        case "before the plan":
            progress = DyingProgress(landing_spool.path, at=0)
        case "before the put":
            sink = DyingSink(bucket, before=True)
        case "behind the put":
            sink = DyingSink(bucket, behind=True)
        case _:
            progress = DyingProgress(landing_spool.path, at=1)
    _die(landing_delivery(landing_spool, sink, progress=progress))

    seqs += landing_spool.write(3)  # what comes meanwhile must not change what was planned
    later = landing_delivery(landing_spool, landing_sink_of(bucket), clock=lambda: AT + 7_200)
    while later.step(flush=True):
        pass
    assert bucket.numbers() == seqs
    assert bucket.versions() == len(bucket.keys())


def test_without_the_plan_events_land_twice(landing_spool: WrittenSpool, bucket: Bucket) -> None:
    landing_spool.write(5)
    _die(
        landing_delivery(landing_spool, DyingSink(bucket, behind=True), progress=ForgetfulProgress(landing_spool.path))
    )
    landing_spool.write(3)
    later = landing_delivery(landing_spool, landing_sink_of(bucket), clock=lambda: AT + 7_200)
    while later.step(flush=True):
        pass
    assert sorted(bucket.numbers()) != list(range(1, 9))


def test_a_lost_reply_creates_no_second_object_even_with_another_zlib(
    landing_spool: WrittenSpool, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    seqs = landing_spool.write(50)
    delivery = landing_delivery(landing_spool, DyingSink(bucket, lost=1))
    assert not delivery.step(flush=True)
    assert "ConnectionResetError" in delivery.problem.reason
    monkeypatch.setattr(collector.packing, "GZIP_LEVEL", 9)
    assert delivery.step(flush=True)
    assert (bucket.numbers(), bucket.versions(), delivery.problem.reason) == (seqs, 1, "")


def test_without_the_condition_a_lost_reply_is_announced_twice(
    landing_spool: WrittenSpool, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unconditional:
        def __getattr__(self, name: str) -> Any:
            return getattr(bucket.client, name)

        def put_object(self, **options: Any) -> Any:
            options.pop("IfNoneMatch")
            return bucket.client.put_object(**options)

    landing_spool.write(50)
    sink = DyingSink(bucket, lost=1)
    sink._sink = LandingSink(Unconditional(), BUCKET)
    delivery = landing_delivery(landing_spool, sink)
    delivery.step(flush=True)
    monkeypatch.setattr(collector.packing, "GZIP_LEVEL", 9)
    delivery.step(flush=True)
    assert bucket.versions() == 2


def test_without_metadata_the_content_identifies_an_object(landing_spool: WrittenSpool, bucket: Bucket) -> None:
    class WithoutMetadata:
        def __getattr__(self, name: str) -> Any:
            return getattr(bucket.client, name)

        def put_object(self, **options: Any) -> Any:
            return bucket.client.put_object(**options | {"Metadata": {}})

    landing_spool.write(5)
    sink = DyingSink(bucket, lost=1)
    sink._sink = LandingSink(WithoutMetadata(), BUCKET)
    delivery = landing_delivery(landing_spool, sink)
    delivery.step(flush=True)
    delivery.step(flush=True)
    assert (bucket.numbers(), bucket.versions()) == ([1, 2, 3, 4, 5], 1)


def test_another_object_under_the_key_is_neither_overwritten_nor_mistaken_for_ours(
    landing_spool: WrittenSpool, bucket: Bucket
) -> None:
    key = f"games/2026/09/21/14/{landing_spool.name}-000000000001-000000000003.json.gz"
    bucket.client.put_object(Bucket=BUCKET, Key=key, Body=gzip.compress(b'{"n": 77}\n'))
    landing_spool.write(3)
    assert landing_delivery(landing_spool, landing_sink_of(bucket)).step(flush=True)
    assert sorted(bucket.numbers()) == [1, 2, 3, 77]
    assert bucket.lines(key) == [b'{"n": 77}']


def test_an_unavailable_sink_is_retried_until_it_recovers(landing_spool: WrittenSpool, bucket: Bucket) -> None:
    seqs = landing_spool.write(5)

    class Away:
        tries = 0

        def put(self, item: PackedObject) -> None:
            self.tries += 1
            if self.tries < 20:
                raise OSError("no route")
            landing_sink_of(bucket).put(item)

    delivery = landing_delivery(landing_spool, Away())
    for _ in range(19):
        assert not delivery.step(flush=True)
        assert (delivery.deletable_up_to, delivery.problem.since) == (0, AT)
    assert delivery.step(flush=True)
    assert (bucket.numbers(), delivery.deletable_up_to) == (seqs, 5)


def test_only_what_is_durable_is_delivered(landing_spool: WrittenSpool, bucket: Bucket) -> None:
    landing_spool.write(3)
    durable = landing_spool.readable()
    landing_spool.write(2)
    delivery = landing_delivery(landing_spool, landing_sink_of(bucket), readable=lambda: durable)
    delivery.step(flush=True)
    assert bucket.numbers() == [1, 2, 3]
    durable = landing_spool.readable()
    delivery.step(flush=True)
    assert bucket.numbers() == [1, 2, 3, 4, 5]


def test_a_dead_letter_file_is_bounded_and_further_events_leave_digest_and_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collector.delivery.MAX_DEAD_LETTER_BYTES", 4_000)
    letters = [DeadLetter(SpooledEvent(seq, b"x" * 1_000), "too large" * 1_000) for seq in range(1, 51)]
    for letter in letters:
        write_dead_letters(tmp_path, "games", [letter])

    (path,) = tmp_path.iterdir()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    stored = [line for line in lines if "event" in line]
    assert [line["seq"] for line in lines] == list(range(1, 51))
    assert 0 < len(stored) < 4
    assert base64.b64decode(stored[0]["event"]) == b"x" * 1_000
    assert lines[-1]["bytes"] == 1_000
    assert lines[-1]["sha256"] == hashlib.sha256(b"x" * 1_000).hexdigest()
    assert max(len(line["reason"]) for line in lines) == 1_000
