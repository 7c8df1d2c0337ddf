"""Files of JSON lines land as they are, in order, and objects are published one by one."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deltaworks.errors import ConfigError
from generator.delivery import Delivery, Published, publish
from generator.replay import replay_lines

LINES = [b'{"n":%d,"text":"caf\xc3\xa9"}' % number for number in range(25)]


def replayed(path: Path, lines_per_object: int = 10) -> list[list[bytes]]:
    return [
        gzip.decompress(delivery.body).splitlines()
        for delivery in replay_lines(path, lines_per_object=lines_per_object)
    ]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\n\n  \n"])
@pytest.mark.parametrize("name", ["edits.json", "edits.jsonl", "edits.json.gz"])
def test_replaying_a_file_gives_its_lines_in_order(tmp_path: Path, name: str, ending: bytes) -> None:
    data = ending.join(LINES)
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)

    objects = replayed(path)

    assert [len(lines) for lines in objects] == [10, 10, 5]
    assert [line for lines in objects for line in lines] == LINES


def test_replaying_twice_gives_the_same_objects_under_growing_hours(tmp_path: Path) -> None:
    path = tmp_path / "edits.json"
    path.write_bytes(b"\n".join(LINES))
    start = datetime(2020, 1, 1, 23, 30, tzinfo=UTC)

    first = list(replay_lines(path, lines_per_object=10, start=start, seconds_apart=1_800))

    assert first == list(replay_lines(path, lines_per_object=10, start=start, seconds_apart=1_800))
    assert [delivery.key for delivery in first] == [
        "edits/2020/01/01/23/edits-2020-01-01-23-30-00-000000.json.gz",
        "edits/2020/01/02/00/edits-2020-01-02-00-00-00-000001.json.gz",
        "edits/2020/01/02/00/edits-2020-01-02-00-30-00-000002.json.gz",
    ]


def test_lines_that_are_no_json_land_too(tmp_path: Path) -> None:
    path = tmp_path / "edits.json"
    path.write_bytes(b'{"a":1}\nnot json \xff\n')

    assert replayed(path) == [[b'{"a":1}', b"not json \xff"]]


@pytest.mark.parametrize(
    ("content", "condition"),
    [(None, "EVENTS_MISSING"), (b"\n \n", "EVENTS_EMPTY"), (b' [\n{"a":1}]', "EVENTS_NOT_LINES")],
)
def test_a_file_without_events_is_refused(tmp_path: Path, content: bytes | None, condition: str) -> None:
    path = tmp_path / "events.json"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigError, match=condition):
        list(replay_lines(path))


def test_publishing_puts_each_object_in_order_with_pauses_between(tmp_path: Path) -> None:
    path = tmp_path / "edits.json"
    path.write_bytes(b"\n".join(LINES))
    deliveries = list(replay_lines(path, lines_per_object=10))
    log: list[object] = []

    done = publish(
        deliveries,
        lambda key, body: log.append((key, body)),
        pause_seconds=0.5,
        progress=lambda so_far: log.append(so_far.events),
        sleep=log.append,
        clock=lambda: 0.5 * log.count(0.5),
    )

    puts = [(delivery.key, delivery.body) for delivery in deliveries]
    assert log == [puts[0], 10, 0.5, puts[1], 20, 0.5, puts[2], 25]
    assert done == Published(objects=3, events=25, size_bytes=sum(len(body) for _, body in puts))


def test_objects_come_at_their_rate_however_long_a_put_takes() -> None:
    seconds = {"one": 0.2, "two": 1.2, "three": 0.0, "four": 0.1}
    deliveries = [Delivery(key, b"", 1, datetime(2026, 3, 1, tzinfo=UTC)) for key in seconds]
    now, begun = 0.0, {}

    def put(key: str, _body: bytes) -> None:
        nonlocal now
        begun[key] = round(now, 3)
        now += seconds[key]

    def sleep(pause: float) -> None:
        nonlocal now
        now += pause

    publish(deliveries, put, pause_seconds=0.5, sleep=sleep, clock=lambda: now)

    assert begun == {"one": 0.0, "two": 0.5, "three": 1.7, "four": 1.7}


def test_a_put_that_fails_ends_the_publishing(tmp_path: Path) -> None:
    path = tmp_path / "edits.json"
    path.write_bytes(b"\n".join(LINES))
    landed: list[str] = []

    def put(key: str, body: bytes) -> None:
        if landed:
            raise ConnectionError(key)
        landed.append(key)

    with pytest.raises(ConnectionError):
        publish(replay_lines(path, lines_per_object=10), put)
    assert len(landed) == 1
