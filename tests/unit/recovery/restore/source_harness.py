"""A pipeline whose batches come from objects that lie in a landing folder and in the file event log."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.records.prepared import PreparedTable
from deltaworks.engine.batches import BatchProcessor
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.parse import Parser
from deltaworks.sources.base import ObjectSlice
from deltaworks.sources.objects.file_event_log_writer import FileEventLogWriter, ReceivedEvent
from deltaworks.sources.objects.relay.messages import FileEvent
from deltaworks.tables.files import split_by_partition, write_file
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.testing import present, write_files
from tests.unit.engine.batch_records import prepared_batch
from tests.unit.engine.hold_harness import TABLES, Harness

AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
ALL = (*TABLES, "quarantine")


def events(seq: int) -> list[dict[str, Any]]:
    """Two events of each table and one that fits in none."""
    known = [{"name": name, "time": 1_700_000_000 + seq, "level": seq} for name in TABLES for _ in range(2)]
    return [*known, {"name": "orders", "time": 1_700_000_000, "level": "none"}]


def land_and_announce(root: Path, lake: Lake, seq: int, landed: Iterable[Mapping[str, Any]]) -> bytes:
    """Puts events into an object, which is the only one of file event `seq`; returns its content."""
    body = "\n".join(json.dumps(event) for event in landed).encode()
    write_files(root, {f"landing/f{seq}.json": body})
    tag = hashlib.md5(body).hexdigest()
    event = FileEvent("landing", f"f{seq}.json", len(body), tag, None, AT, "ObjectCreated:Put", None)
    FileEventLogWriter(lake, "landing", epoch=seq).append([ReceivedEvent(event, "m", AT)])
    return body


def parsed_rows(parser: Parser, seq: int, body: bytes, stamp: BatchMetadata) -> list[tuple[str, pa.Table]]:
    """Returns the rows of an object by table, in the order of the tables' names."""
    parsed: dict[str, list[pa.Table]] = {}
    for name, rows in parser.parse([Payload(seq, f"f{seq}.json", body)], stamp):
        parsed.setdefault(name, []).append(rows)
    return [(name, pa.concat_tables(parts)) for name, parts in sorted(parsed.items())]


@dataclass
class SourceHarness(Harness):
    """Batch n reads the one object of file event n; batch 0 reads nothing."""

    def land_all(self, *batches: int) -> BatchProcessor:
        """These batches, as a stream lands them."""
        processor = self.processor()
        PipelineHome(self.objects, "shop").specs.record_start(self.catalog().pipeline("shop"), owner_epoch=self.epoch)
        PipelineHome(self.objects, "shop").generations.current_checkpoint(last_completed=None, end_offset=None)
        for batch_id in batches:
            self.land_object(processor, batch_id)
        return processor

    def land_object(self, processor: BatchProcessor, batch_id: int) -> None:
        """One batch; its object lands first."""
        tables = self._announce_and_parse(batch_id) if batch_id else ()
        start = {"seq": batch_id - 1} if batch_id else None
        at = 1_700_000_000_000_000
        batch = prepared_batch(
            batch_id,
            tables=tables,
            offsets={"start": start, "end": {"seq": batch_id}},
            ingested_at_us=at,
            prepared_at=iso_now(),
        )
        PipelineHome(self.objects, "shop").prepared.get_or_create(batch)
        processor.process(ObjectSlice([], [], {}, opener=lambda reference: reference), batch_id)

    def _announce_and_parse(self, seq: int) -> tuple[PreparedTable, ...]:
        body = land_and_announce(self.root, self.lake, seq, events(seq))
        stamp = BatchMetadata(seq, 1_700_000_000_000_000, self.spec.fingerprint())
        return tuple(self._written(name, rows) for name, rows in parsed_rows(Parser(self.spec), seq, body, stamp))

    def _written(self, name: str, rows: pa.Table) -> PreparedTable:
        partition_by = ("quarantine_date",) if name == "quarantine" else self.spec.table(name).partition_by
        lake = self.lake
        root = arrow_path(self.storage, paths.table("shop", name))
        files = [
            write_file(lake.filesystem, root, part, partition=partition)
            for partition, part in split_by_partition(rows, partition_by)
        ]
        return PreparedTable(
            table=name, writer="fan_out", rows=rows.num_rows, files=tuple(asdict(file) for file in files)
        )

    def contents(self) -> dict[str, Counter[tuple[Any, ...]]]:
        """Every row of every table, whole, with how often it is there."""
        found = {}
        for name in ALL:
            rows = present(self.lake.rows(paths.table("shop", name)))
            found[name] = Counter(tuple(str(row[column]) for column in sorted(row)) for row in rows.to_pylist())
        return found
