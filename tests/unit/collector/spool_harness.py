"""A spool folder that tests write like a collector, and a landing bucket."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from collector.delivery import CloseThresholds, LandingDelivery
from collector.progress import Progress
from collector.segments import FrameKind, SegmentHeader, encode_frame, segment_name
from collector.sinks.landing import LandingSink
from collector.spool_cursor import ByteRange, RangeLister, SpoolCursor, list_durable_ranges
from collector.spool_folder import SpoolFolder

AT = 1_790_000_000.0
BUCKET = "landing"


def payload(seq: int, size: int = 0) -> bytes:
    return json.dumps({"n": seq, "pad": "x" * size}).encode()


class WrittenSpool:
    """A folder into which events are written, segment by segment."""

    def __init__(self, path: Path, sources: Sequence[str] = ("games",)) -> None:
        folder = SpoolFolder.acquire(path)
        self.numbers = folder.source_numbers(sources)
        self.collector = folder.collector
        self.name = folder.collector_hex
        folder.close()
        self.path = path
        self.next_seq = 1
        self._open: Path | None = None

    def segment(self) -> WrittenSpool:
        """Begin a segment; the one before is closed."""
        header = SegmentHeader(self.collector, self.next_seq, int(AT * 1000))
        self._open = self.path / segment_name(self.next_seq)
        self._open.write_bytes(header.encode())
        return self

    def write(self, count: int, source: str = "games", *, size: int = 0) -> list[int]:
        """Append events to the open segment; their numbers."""
        assert self._open is not None
        seqs = list(range(self.next_seq, self.next_seq + count))
        with self._open.open("ab") as file:
            for seq in seqs:
                file.write(encode_frame(seq, FrameKind.EVENT, self.numbers[source], payload(seq, size)))
        self.next_seq += count
        return seqs

    def readable(self) -> list[ByteRange]:
        """What a writer would say may be read: all that is written now."""
        return list_durable_ranges(self.path, self.durable)

    def durable(self) -> tuple[int, int]:
        """Where a writer would say that it is."""
        assert self._open is not None
        return int(self._open.stem.removeprefix("seg-")), self._open.stat().st_size


class Bucket:
    """A versioned bucket, by a client of a real server."""

    def __init__(self, client: Any) -> None:
        self.client = client
        client.create_bucket(Bucket=BUCKET)
        client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})

    def numbers(self) -> list[int]:
        """The events of all objects, in the order of their keys."""
        return [json.loads(line)["n"] for key in self.keys() for line in self.lines(key)]

    def keys(self) -> list[str]:
        return [item["Key"] for item in self.client.list_objects_v2(Bucket=BUCKET).get("Contents", [])]

    def lines(self, key: str) -> list[bytes]:
        return gzip.decompress(self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()).splitlines()

    def versions(self) -> int:
        """How often anything was put: each of them is announced."""
        return len(self.client.list_object_versions(Bucket=BUCKET).get("Versions", []))


def landing_delivery(
    spool: WrittenSpool,
    sink: Any,
    *,
    source: str = "games",
    closes: CloseThresholds | None = None,
    clock: Callable[[], float] = lambda: AT,
    progress: Progress | None = None,
    readable: RangeLister | None = None,
) -> LandingDelivery:
    """What a process that has just started does for a source."""
    progress = progress or Progress(spool.path)
    cursor = SpoolCursor(readable or spool.readable, spool.numbers[source], after=progress.get(source).delivered_up_to)
    stop = threading.Event()
    stop.set()  # nothing is waited for
    return LandingDelivery(
        source,
        cursor,
        progress,
        sink,
        prefix=f"{source}/",
        collector=spool.name,
        thresholds=closes or CloseThresholds(bytes=1 << 20, seconds=60),
        folder=spool.path,
        stop=stop,
        clock=clock,
    )


def landing_sink_of(bucket: Bucket) -> LandingSink:
    return LandingSink(bucket.client, BUCKET)
