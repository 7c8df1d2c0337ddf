"""Segments: written frames are read despite truncation and damage, compared with an oracle of frame positions."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from deltaworks.errors import ContractError
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
