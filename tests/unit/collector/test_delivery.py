"""Spooled events land once, wherever the delivering process dies, and nothing is deleted before."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import collector.packing
from collector.delivery import CloseThresholds, LandingDelivery, write_dead_letters
from collector.packing import PackedObject, SpooledEvent
from collector.progress import Progress, SourceProgress
from collector.sinks import DeadLetter
from collector.sinks.landing import LandingSink
from tests.unit.collector.spool_harness import AT, BUCKET, Bucket, WrittenSpool, landing_delivery, landing_sink_of


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
def spool(tmp_path: Path) -> WrittenSpool:
    return WrittenSpool(tmp_path / "w0").segment()


def test_an_object_has_the_events_as_lines_under_a_key_with_their_numbers(spool: WrittenSpool, bucket: Bucket) -> None:
    seqs = spool.write(5)
    assert landing_delivery(spool, landing_sink_of(bucket)).step(flush=True)
    (key,) = bucket.keys()
    assert key == f"games/2026/09/21/14/{spool.name}-000000000001-000000000005.json.gz"
    body = bucket.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    assert bucket.numbers() == seqs
    assert gzip.decompress(body).endswith(b"\n")
    assert body[4:8] == bytes(4)  # no time inside: the same events are the same bytes


def test_an_object_is_closed_when_it_is_full_or_old_and_not_before(spool: WrittenSpool, bucket: Bucket) -> None:
    now = AT
    delivery = landing_delivery(
        spool, landing_sink_of(bucket), closes=CloseThresholds(bytes=3_000, seconds=60), clock=lambda: now
    )
    spool.write(2)
    delivery.step()
    now += 59
    assert not delivery.step()
    now += 1
    assert delivery.step()
    assert bucket.numbers() == [1, 2]
    spool.write(40, size=100)
    delivery.step()
    assert len(bucket.keys()) == 2


def _die(delivery: LandingDelivery) -> None:
    with pytest.raises(Killed):
        delivery.step(flush=True)


@pytest.mark.parametrize("where", ["before the plan", "before the put", "behind the put", "before it is done"])
def test_every_event_lands_once_wherever_the_process_dies(where: str, spool: WrittenSpool, bucket: Bucket) -> None:
    seqs = spool.write(5)
    sink: Any = landing_sink_of(bucket)
    progress = Progress(spool.path)
    match where:
        case "before the plan":
            progress = DyingProgress(spool.path, at=0)
        case "before the put":
            sink = DyingSink(bucket, before=True)
        case "behind the put":
            sink = DyingSink(bucket, behind=True)
        case _:
            progress = DyingProgress(spool.path, at=1)
    _die(landing_delivery(spool, sink, progress=progress))

    seqs += spool.write(3)  # what comes meanwhile must not change what was planned
    later = landing_delivery(spool, landing_sink_of(bucket), clock=lambda: AT + 7_200)
    while later.step(flush=True):
        pass
    assert bucket.numbers() == seqs
    assert bucket.versions() == len(bucket.keys())


def test_without_the_plan_events_land_twice(spool: WrittenSpool, bucket: Bucket) -> None:
    spool.write(5)
    _die(landing_delivery(spool, DyingSink(bucket, behind=True), progress=ForgetfulProgress(spool.path)))
    spool.write(3)
    later = landing_delivery(spool, landing_sink_of(bucket), clock=lambda: AT + 7_200)
    while later.step(flush=True):
        pass
    assert sorted(bucket.numbers()) != list(range(1, 9))


def test_a_lost_reply_creates_no_second_object_even_with_another_zlib(
    spool: WrittenSpool, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    seqs = spool.write(50)
    delivery = landing_delivery(spool, DyingSink(bucket, lost=1))
    assert not delivery.step(flush=True)
    assert "ConnectionResetError" in delivery.problem.reason
    monkeypatch.setattr(collector.packing, "GZIP_LEVEL", 9)
    assert delivery.step(flush=True)
    assert (bucket.numbers(), bucket.versions(), delivery.problem.reason) == (seqs, 1, "")


def test_without_the_condition_a_lost_reply_is_announced_twice(
    spool: WrittenSpool, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unconditional:
        def __getattr__(self, name: str) -> Any:
            return getattr(bucket.client, name)

        def put_object(self, **options: Any) -> Any:
            options.pop("IfNoneMatch")
            return bucket.client.put_object(**options)

    spool.write(50)
    sink = DyingSink(bucket, lost=1)
    sink._sink = LandingSink(Unconditional(), BUCKET)
    delivery = landing_delivery(spool, sink)
    delivery.step(flush=True)
    monkeypatch.setattr(collector.packing, "GZIP_LEVEL", 9)
    delivery.step(flush=True)
    assert bucket.versions() == 2


def test_without_metadata_the_content_identifies_an_object(spool: WrittenSpool, bucket: Bucket) -> None:
    class WithoutMetadata:
        def __getattr__(self, name: str) -> Any:
            return getattr(bucket.client, name)

        def put_object(self, **options: Any) -> Any:
            return bucket.client.put_object(**options | {"Metadata": {}})

    spool.write(5)
    sink = DyingSink(bucket, lost=1)
    sink._sink = LandingSink(WithoutMetadata(), BUCKET)
    delivery = landing_delivery(spool, sink)
    delivery.step(flush=True)
    delivery.step(flush=True)
    assert (bucket.numbers(), bucket.versions()) == ([1, 2, 3, 4, 5], 1)


def test_another_object_under_the_key_is_neither_overwritten_nor_mistaken_for_ours(
    spool: WrittenSpool, bucket: Bucket
) -> None:
    key = f"games/2026/09/21/14/{spool.name}-000000000001-000000000003.json.gz"
    bucket.client.put_object(Bucket=BUCKET, Key=key, Body=gzip.compress(b'{"n": 77}\n'))
    spool.write(3)
    assert landing_delivery(spool, landing_sink_of(bucket)).step(flush=True)
    assert sorted(bucket.numbers()) == [1, 2, 3, 77]
    assert bucket.lines(key) == [b'{"n": 77}']


def test_an_unavailable_sink_is_retried_until_it_recovers(spool: WrittenSpool, bucket: Bucket) -> None:
    seqs = spool.write(5)

    class Away:
        tries = 0

        def put(self, item: PackedObject) -> None:
            self.tries += 1
            if self.tries < 20:
                raise OSError("no route")
            landing_sink_of(bucket).put(item)

    delivery = landing_delivery(spool, Away())
    for _ in range(19):
        assert not delivery.step(flush=True)
        assert (delivery.deletable_up_to, delivery.problem.since) == (0, AT)
    assert delivery.step(flush=True)
    assert (bucket.numbers(), delivery.deletable_up_to) == (seqs, 5)


def test_only_what_is_durable_is_delivered(spool: WrittenSpool, bucket: Bucket) -> None:
    spool.write(3)
    durable = spool.readable()
    spool.write(2)
    delivery = landing_delivery(spool, landing_sink_of(bucket), readable=lambda: durable)
    delivery.step(flush=True)
    assert bucket.numbers() == [1, 2, 3]
    durable = spool.readable()
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
