"""The slices of a source of objects."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa

from deltaworks.sources.objects.payloads import FileOpener, FileReference
from deltaworks.sources.objects.source import object_slice
from deltaworks.specs.storage import StorageSpec

AT = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
OPENER = FileOpener(StorageSpec(root="file:///landing"), compression="auto")


def events(*rows: tuple[int, str, int | None]) -> pa.Table:
    return pa.table(
        {
            "seq": pa.array([seq for seq, _, _ in rows], pa.int64()),
            "key": [key for _, key, _ in rows],
            "size": pa.array([size for _, _, size in rows], pa.int64()),
            "etag": ["e"] * len(rows),
            "event_time": pa.array([AT + dt.timedelta(seconds=seq) for seq, _, _ in rows], pa.timestamp("us", "UTC")),
        }
    )


def test_a_batch_is_its_files_in_the_order_of_the_log() -> None:
    source = object_slice(events((3, "c", 30), (1, "a", 10), (2, "b", None)), OPENER)

    made = 1_704_067_200_000_000
    assert source.references == [
        FileReference(seq, key, "e", arrived_at_us=made + seq * 1_000_000) for seq, key in enumerate("abc", 1)
    ]
    assert source.sizes == [10, 1, 30]
    assert source.metadata == {
        "files": 3,
        "bytes": 41,
        "first_seq": 1,
        "last_seq": 3,
        "oldest_arrived_at": "2024-01-01T00:00:01+00:00",
        "newest_arrived_at": "2024-01-01T00:00:03+00:00",
        "arrived_us": [made + second * 1_000_000 for second in (1, 2, 3)],
    }


def test_many_arrivals_are_sampled_by_rank_with_the_first_and_the_last() -> None:
    source = object_slice(events(*((seq, str(seq), 1) for seq in range(1, 1_001))), OPENER)
    arrived = source.metadata["arrived_us"]

    assert len(arrived) == 20
    assert arrived == sorted(arrived)
    assert arrived[-1] - arrived[0] == 999_000_000


def test_a_batch_without_files_is_empty() -> None:
    source = object_slice(events(), OPENER)

    assert (list(source.references), source.metadata) == ([], {"files": 0, "bytes": 0})
