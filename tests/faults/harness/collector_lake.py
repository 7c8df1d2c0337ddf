"""Reads a collector's bucket with the stream's parser, and compares it with the acknowledgements."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from deltaworks.control import paths
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.parse import Parser
from deltaworks.specs.project import load_catalog
from deltaworks.tables.query import QUARANTINE
from deltaworks.testing import declare_columns, declare_pipeline, declare_table, write_files
from tests.faults.harness.collector_harness import BUCKET, CollectorHarness

#: How events of a collector are read.
EVENT = {"name": {"path": "name"}, "time": {"path": "_collector.time", "unit": "iso8601"}, "id": ["event_id"]}
#: What a collector adds to an event.
COLUMNS = declare_columns("collector string from _collector.collector", "seq long from _collector.seq")
PIPELINE = declare_pipeline(declare_table("events", "sent_id string from event_id", *COLUMNS), event=EVENT)
#: The id of an unparseable event, anywhere in its raw text.
BROKEN_ID = re.compile(r"broken-\d+-id")


@dataclass(frozen=True, slots=True)
class CollectorVerdict:
    """Violations by event id: acknowledged but missing, duplicated, or never sent."""

    lost: frozenset[str]
    doubled: frozenset[str]
    strange: frozenset[str]

    @property
    def is_exact(self) -> bool:
        """Whether there is no violation."""
        return not (self.lost or self.doubled or self.strange)

    def __str__(self) -> str:
        return f"lost {len(self.lost)}, doubled {len(self.doubled)}, never sent {len(self.strange)}"


def check_collected(answered: Set[str], sent: Set[str], there: Iterable[str]) -> CollectorVerdict:
    """Checks that every acknowledged event is present once, and every other sent event at most once."""
    counts = Counter(there)
    doubled = frozenset(event for event, times in counts.items() if times > 1)
    return CollectorVerdict(frozenset(answered - counts.keys()), doubled, frozenset(counts.keys() - sent))


class CollectorLake:
    """Bronze and quarantine of a harness's pipeline. Every version of an object counts, because each version is
    announced.
    """

    def __init__(self, harness: CollectorHarness) -> None:
        self.events_read = 0
        self._stage = harness
        self._root = harness.root / "lake"
        self._read: set[tuple[str, str]] = set()
        write_files(harness.root / "include/pipelines/shop", {"pipeline.yaml": PIPELINE})

    def read(self) -> int:
        """Lands new objects of the bucket; returns their number."""
        parser = Parser(load_catalog(root=self._stage.root).pipeline("shop"))
        pages = self._stage.client.get_paginator("list_object_versions").paginate(Bucket=BUCKET)
        versions = [(item["Key"], item["VersionId"]) for page in pages for item in page.get("Versions", [])]
        waiting = [version for version in versions if version not in self._read]
        for batch in (waiting[start : start + 200] for start in range(0, len(waiting), 200)):
            payloads = [Payload(number, key, self._lines(key, version)) for number, (key, version) in enumerate(batch)]
            for name, rows in parser.parse(payloads, BatchMetadata(1, 1_700_000_000_000_000, "")):
                write_deltalake(str(self._place(name)), rows, mode="append")
            self._read |= set(batch)
        return len(waiting)

    def in_bronze(self) -> list[str]:
        """Returns the ids of all events in the table, with repetitions."""
        return list(map(str, self._column("events", "sent_id")))

    def in_quarantine(self) -> list[str]:
        """Returns the ids in all quarantine rows."""
        return [found for raw in self._column(QUARANTINE, "raw") for found in BROKEN_ID.findall(str(raw))]

    def numbers(self) -> dict[str, list[int]]:
        """Returns the event numbers in bronze and quarantine, ascending, by process."""
        table = self._table("events")
        pairs = (
            [] if table is None else list(zip(table["collector"].to_pylist(), table["seq"].to_pylist(), strict=True))
        )
        for raw in map(str, self._column(QUARANTINE, "raw")):
            seq, collector = re.search(r'"seq":(\d+)', raw), re.search(r'"collector":"([0-9a-f]{32})"', raw)
            assert seq is not None, raw
            assert collector is not None, raw
            pairs.append((collector[1], int(seq[1])))
        owners = {owner for owner, _ in pairs}
        return {owner: sorted(seq for of, seq in pairs if of == owner) for owner in owners}

    def _lines(self, key: str, version: str) -> bytes:
        answer = self._stage.client.get_object(Bucket=BUCKET, Key=key, VersionId=version)
        lines = gzip.decompress(answer["Body"].read())
        self.events_read += lines.count(b"\n")
        return lines

    def _place(self, name: str) -> Path:
        return self._root / paths.table("shop", name)

    def _table(self, name: str) -> pa.Table | None:
        place = self._place(name)
        return pa.table(DeltaTable(str(place)).to_pyarrow_table()) if (place / "_delta_log").is_dir() else None

    def _column(self, name: str, column: str) -> list[object]:
        table = self._table(name)
        return [] if table is None else list(table[column].to_pylist())
