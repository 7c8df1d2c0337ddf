"""Recovery of a spool: incomplete groups are truncated, damaged segments replaced, numbering continues."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from collector.recovery import RecoveredSpool, recover
from collector.segments import (
    HEADER_BYTES,
    FrameKind,
    Segment,
    SegmentHeader,
    UnreadableBytes,
    encode_frame,
    segment_name,
)
from collector.spool_folder import SpoolFolder
from deltaworks.errors import ConcurrencyError, ContractError


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
