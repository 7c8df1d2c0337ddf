"""Segments of a spool: read despite truncation and damage, and recovered with continued numbering."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.recovery import RecoveredSpool, recover
from collector.segments import (
    HEADER_BYTES,
    Frame,
    FrameKind,
    Segment,
    SegmentHeader,
    UnreadableBytes,
    encode_frame,
    parse_segment_name,
    segment_name,
)
from collector.spool_folder import SpoolFolder
from deltaworks.errors import ConcurrencyError, ContractError
from tests.examples import examples

HEADER = SegmentHeader(b"c" * 16, 41, 1_700_000_000_000)
payloads = st.lists(st.text(st.characters(min_codepoint=32, codec="utf-8"), max_size=20), min_size=1, max_size=6)


def written(path: Path, texts: list[str]) -> list[tuple[int, int]]:
    """Write a segment of events; where each frame lies."""
    data, places = HEADER.encode(), []
    for number, text in enumerate(texts):
        frame = encode_frame(41 + number, FrameKind.EVENT, 2, text.encode())
        places.append((len(data), len(data) + len(frame)))
        data += frame
    path.write_bytes(data)
    return places


def read(path: Path) -> list[tuple[int, str]]:
    return [(frame.seq, frame.payload.decode()) for frame in Segment.open(path).frames()]


def test_a_segment_truncated_at_any_byte_yields_the_frames_before_it(tmp_path: Path) -> None:
    path, texts = tmp_path / "cut.wal", ['{"a":1}', "", '{"b":"ä"}']
    places = written(path, texts)
    whole = path.read_bytes()
    for size in range(HEADER_BYTES, len(whole)):
        path.write_bytes(whole[:size])
        kept = sum(end <= size for _, end in places)

        items = list(Segment.open(path).scan())

        frames = [(item.seq, item.payload.decode()) for item in items if isinstance(item, Frame)]
        assert frames == [(41 + number, text) for number, text in enumerate(texts[:kept])]
        torn = [item for item in items if isinstance(item, UnreadableBytes)]
        end = places[kept - 1][1] if kept else HEADER_BYTES
        assert [(item.start, item.end, item.at_end) for item in torn] == ([(end, size, True)] if size > end else [])


@settings(max_examples=examples(40))
@given(texts=payloads, data=st.data())
def test_a_flipped_bit_loses_only_its_own_frame(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "flipped.wal"
    places = written(path, texts)
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(HEADER_BYTES, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    [hurt] = [number for number, (start, end) in enumerate(places) if start <= at < end]

    assert read(path) == [(41 + number, text) for number, text in enumerate(texts) if number != hurt]
    [item] = [item for item in Segment.open(path).scan() if isinstance(item, UnreadableBytes)]
    assert (item.start, item.end) == places[hurt]
    assert item.at_end == (hurt == len(texts) - 1)


def test_without_the_checksum_a_flipped_bit_would_be_read_as_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "flipped.wal"
    written(path, ['{"a":1}'])
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    [stored] = struct.unpack_from("<I", content, HEADER_BYTES + 4)

    assert read(path) == []
    monkeypatch.setattr(zlib, "crc32", lambda *args: stored)
    assert read(path) == [(41, '{"a":0}')]


def test_client_data_is_never_mistaken_for_a_frame_after_damage(tmp_path: Path) -> None:
    path = tmp_path / "forged.wal"
    forged = encode_frame(42, FrameKind.EVENT, 2, b'{"forged":1}')
    text = forged.decode("latin-1").encode("unicode_escape").decode().replace("\\x00", "\\u0000")
    places = written(path, ['{"x":"' + text + '"}', '{"y":1}'])
    content = bytearray(path.read_bytes())
    content[places[0][0] + 30] ^= 1
    path.write_bytes(content)

    assert read(path) == [(42, '{"y":1}')]


def test_a_frame_longer_than_the_read_ahead_is_complete(tmp_path: Path) -> None:
    path, texts = tmp_path / "long.wal", ["a" * (3 << 20), "b", "c" * (1 << 20), "d" * 7]
    written(path, texts)

    assert [text for _, text in read(path)] == texts


def test_reading_respects_start_and_end(tmp_path: Path) -> None:
    path = tmp_path / "part.wal"
    places = written(path, ["a", "b", "c", "d"])
    segment = Segment.open(path)

    assert segment.header == HEADER
    assert [frame.payload for frame in segment.frames(start=places[1][0], end=places[2][1])] == [b"b", b"c"]
    assert [(frame.start, frame.end) for frame in segment.frames()] == places


def test_frames_of_other_kinds_have_the_number_of_the_next_event(tmp_path: Path) -> None:
    path = tmp_path / "kinds.wal"
    frames = [(41, FrameKind.DATA_KEY, b"\0key\0"), (41, FrameKind.IDENTITIES, b"\0\0"), (41, FrameKind.EVENT, b"{}")]
    path.write_bytes(HEADER.encode() + b"".join(encode_frame(seq, kind, 1, data) for seq, kind, data in frames))

    items = list(Segment.open(path).scan())

    assert all(isinstance(item, Frame) for item in items)
    assert [(item.seq, item.kind, item.payload) for item in items if isinstance(item, Frame)] == frames


def test_a_segment_of_another_version_is_rejected_and_a_damaged_header_is_not(tmp_path: Path) -> None:
    path = tmp_path / "other.wal"
    fixed = struct.pack("<4sHH16sQQ", b"DWSP", 2, 0, b"c" * 16, 1, 1)
    path.write_bytes(fixed + struct.pack("<I", zlib.crc32(fixed)))
    with pytest.raises(ContractError) as caught:
        Segment.open(path)
    assert caught.value.condition == "SPOOL_SEGMENT_UNKNOWN"

    content = bytearray(HEADER.encode())
    content[random.Random(1).randrange(HEADER_BYTES)] ^= 4
    path.write_bytes(content)
    assert Segment.open(path).header is None


def test_segment_names_sort_like_their_events() -> None:
    assert segment_name(4097) == "seg-00000000000000004097.wal"
    assert parse_segment_name(segment_name(4097)) == 4097
    assert [parse_segment_name(name) for name in ("seg-1.wal", segment_name(1) + ".damaged", "LOCK")] == [None] * 3


def segment(folder: Path, first: int, count: int, *, number: int | None = None) -> Path:
    """A segment of events; where each of them lies is `Segment`'s business."""
    path = folder / segment_name(number or first)
    frames = [encode_frame(seq, FrameKind.EVENT, 0, b'{"n":%d}' % seq) for seq in range(first, first + count)]
    path.write_bytes(SegmentHeader(b"c" * 16, first, 0).encode() + b"".join(frames))
    return path


def recovered(folder: Path) -> RecoveredSpool:
    spool = SpoolFolder.acquire(folder)
    try:
        return recover(spool)
    finally:
        spool.close()


def numbers(path: Path) -> list[int]:
    return [frame.seq for frame in Segment.open(path).frames()]


def damage(path: Path, event: int) -> None:
    frame = next(frame for frame in Segment.open(path).frames() if frame.seq == event)
    content = bytearray(path.read_bytes())
    content[frame.end - 2] ^= 1
    path.write_bytes(content)


def test_an_empty_folder_begins_with_the_first_event(tmp_path: Path) -> None:
    assert recovered(tmp_path) == RecoveredSpool(1, 0, ())


def test_the_incomplete_end_of_the_last_segment_is_truncated_at_any_offset(tmp_path: Path) -> None:
    whole = segment(tmp_path, 1, 3).read_bytes()
    [path] = tmp_path.glob("seg-*")
    ends = [frame.end for frame in Segment.open(path).frames()]
    for size in range(ends[0], len(whole) + 1):
        path.write_bytes(whole[:size])

        outcome = recovered(tmp_path)

        kept = sum(end <= size for end in ends)
        assert (outcome.next_seq, outcome.cut_bytes, outcome.damages) == (kept + 1, size - ends[kept - 1], ())
        assert path.stat().st_size == ends[kept - 1]


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 5])
def test_a_partially_created_segment_is_removed_and_its_number_reused(tmp_path: Path, size: int) -> None:
    segment(tmp_path, 1, 2)
    path = segment(tmp_path, 3, 1)
    path.write_bytes(path.read_bytes()[:size])

    assert recovered(tmp_path).next_seq == 3
    assert not path.exists()


@pytest.mark.parametrize("newest", [True, False])
def test_damage_before_valid_frames_is_kept_aside_and_loses_only_its_event(tmp_path: Path, newest: bool) -> None:
    path = segment(tmp_path, 1, 4)
    if not newest:
        segment(tmp_path, 5, 1)
    damage(path, 2)
    as_it_was = path.read_bytes()

    outcome = recovered(tmp_path)

    [lost] = outcome.damages
    assert (lost.first_seq, lost.last_seq) == (2, 2)
    assert numbers(path) == [1, 3, 4]
    assert path.with_name(path.name + ".damaged").read_bytes() == as_it_was
    assert outcome.next_seq == (5 if newest else 6)
    assert recovered(tmp_path).damages == (), "said once: the file is whole now"


def test_an_incomplete_end_of_an_older_segment_is_damage(tmp_path: Path) -> None:
    path = segment(tmp_path, 1, 4)
    segment(tmp_path, 5, 1)
    damage(path, 4)

    [lost] = recovered(tmp_path).damages

    assert (lost.first_seq, lost.last_seq) == (4, 4)
    assert numbers(path) == [1, 2, 3]


def test_a_segment_with_a_damaged_header_yields_its_events(tmp_path: Path) -> None:
    path = segment(tmp_path, 1, 3)
    content = bytearray(path.read_bytes())
    content[9] ^= 1
    path.write_bytes(content)

    outcome = recovered(tmp_path)

    assert [damage.reason for damage in outcome.damages] == ["the segment header is invalid"]
    assert (numbers(path), outcome.next_seq) == ([1, 2, 3], 4)
    assert Segment.open(path).header is not None


def test_bytes_of_a_failed_sync_after_the_last_acknowledged_event_are_ignored(tmp_path: Path) -> None:
    path = segment(tmp_path, 1, 4)
    segment(tmp_path, 3, 2)

    outcome = recovered(tmp_path)

    assert (numbers(path), outcome.next_seq, outcome.damages) == ([1, 2], 5, ())


def test_a_crash_while_replacing_a_damaged_segment_is_recovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = segment(tmp_path, 1, 4)
    damage(path, 2)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda self, target: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            recovered(tmp_path)

    outcome = recovered(tmp_path)

    assert (numbers(path), len(outcome.damages)) == ([1, 3, 4], 1)
    assert not [item for item in Segment.open(path).scan() if isinstance(item, UnreadableBytes)]


def test_numbering_continues_after_every_segment_is_delivered_and_deleted(tmp_path: Path) -> None:
    progress = {
        "format": 1,
        "sources": {
            "a": {"delivered_up_to": 70, "planned_object": {"first": 71, "last": 88}},
            "b": {"delivered_up_to": 80},
        },
    }
    (tmp_path / "progress.json").write_bytes(orjson.dumps(progress))

    assert recovered(tmp_path).next_seq == 89


def test_unreadable_progress_does_not_restart_the_numbering(tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_text("{")

    with pytest.raises(ContractError) as caught:
        recovered(tmp_path)
    assert caught.value.condition == "SPOOL_FOLDER_DAMAGED"


def test_a_folder_is_locked_by_one_process_and_keeps_its_id_and_source_numbers(tmp_path: Path) -> None:
    first = SpoolFolder.acquire(tmp_path)
    assert first.source_numbers(["games", "web"]) == {"games": 0, "web": 1}
    with pytest.raises(ConcurrencyError) as caught:
        SpoolFolder.acquire(tmp_path)
    assert caught.value.condition == "SPOOL_LOCKED"
    first.close()

    second = SpoolFolder.acquire(tmp_path)
    assert second.collector == first.collector
    assert second.source_numbers(["web", "shop"]) == {"games": 0, "web": 1, "shop": 2}
    assert [second.source_name(number) for number in (0, 2, 3)] == ["games", "shop", None]
    second.close()


@pytest.mark.parametrize(("name", "content"), [("id", b"short"), ("sources.json", b"{"), ("sources.json", b"[1]")])
def test_a_folder_with_damaged_source_names_is_rejected(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(ContractError) as caught:
        SpoolFolder.acquire(tmp_path)
    assert caught.value.condition == "SPOOL_FOLDER_DAMAGED"
    SpoolFolder.acquire(tmp_path / "other").close()
