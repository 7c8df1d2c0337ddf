"""A lake without a stream: objects are landed, announced and parsed as a batch would, for replays to work on."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from deltaworks.control import paths
from deltaworks.engine.table_set import TableSet
from deltaworks.events.chunks import BatchMetadata
from deltaworks.events.parse import ParserInputs
from deltaworks.sources.objects.file_event_log import FILE_EVENT_SCHEMA, event_time_us, file_events_key
from deltaworks.sources.objects.payloads import FileOpener, FileReference
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
from deltaworks.testing import append_rows, environment_spec, table_rows

ARRIVED_US = 1_700_000_000_000_000
#: When the store made the object of `seq` 0; the next one a second later, and so on.
MADE_US = 1_690_000_000_000_000
Place = tuple[int, int]


def orders(level: str) -> dict[str, Any]:
    """A table of orders whose one column is of the type `level`, and called by it."""
    columns = [{"name": f"level_{level}", "path": "level", "type": level}]
    return {"name": "orders", "when": {"name": "order"}, "columns": columns}


class ReplayHarness:
    """One pipeline `shop` in a folder."""

    def __init__(self, root: Path, *, privacy: Mapping[str, Any] | None = None) -> None:
        self.landing = root / "landing"
        self.landing.mkdir(parents=True, exist_ok=True)
        self.environment = environment_spec(root, **({} if privacy is None else {"privacy": privacy}))
        self.lake = Lake(self.environment.lake)
        self.seq = 0
        self.batch = -1
        self.events: list[dict[str, Any]] = []

    def catalog(self, spec: PipelineSpec) -> Catalog:
        return Catalog(environment=self.environment, relays={}, pipelines={spec.pipeline: spec}, root=self.landing)

    def ingest(self, spec: PipelineSpec, *bodies: bytes, named: str = "k", lost: bool = False) -> None:
        """Land the bodies as objects whose keys begin so, and their rows as one batch, at ARRIVED_US. Lost ones are
        deleted before they are read.
        """
        events = []
        for body in bodies:
            self.seq += 1
            key = f"{named}{self.seq}"
            (self.landing / key).write_bytes(body)
            tag = hashlib.md5(body).hexdigest()
            made = dt.datetime.fromtimestamp(MADE_US // 1_000_000 + self.seq, dt.UTC)
            event = {"seq": self.seq, "bucket": "landing", "key": key, "size": len(body), "etag": tag}
            events.append(event | {"event_time": made})
        log_key = file_events_key("landing")
        append_rows(self.lake, log_key, events, number=self.batch + 1, schema=FILE_EVENT_SCHEMA)
        self.events += events
        for event in events if lost else ():
            (self.landing / event["key"]).unlink()
        self.read(spec, events)

    def read_from_the_start(self, spec: PipelineSpec, *, generation: int) -> None:
        """Land all rows of all objects once more, as the stream of a new generation does."""
        self.read(spec, self.events, generation=generation)

    def read(self, spec: PipelineSpec, events: list[dict[str, Any]], *, generation: int = 1) -> None:
        """Land the rows of these objects as one batch."""
        self.batch += 1
        tables = TableSet(self.lake, spec)
        tables.open()
        source = spec.source
        opener = FileOpener(
            self.environment.landing, compression=source.compression, max_object_bytes=source.max_object_bytes
        )
        payloads = [
            opener(FileReference(event["seq"], event["key"], event["etag"], None, event_time_us(event["event_time"])))
            for event in events
        ]
        stamp = BatchMetadata(self.batch, ARRIVED_US, spec.fingerprint())
        parsed: dict[str, list[pa.Table]] = {}
        for name, part in ParserInputs.pin(spec, self.lake.storage).create_parser(spec).parse(payloads, stamp):
            parsed.setdefault(name, []).append(part)
        for name, parts in parsed.items():
            step = Step(f"shop/g{generation}/{name}", self.batch)
            together = pa.concat_tables(parts)
            self.lake.append(tables.handles[name], paths.table("shop", name), together, step=step, user_metadata="{}")

    def rows(self, table: str) -> list[dict[str, Any]]:
        return sorted(table_rows(self.lake, "shop", table), key=lambda row: (row["_seq"], row["_position"]))

    def places(self, table: str) -> Counter[Place]:
        return Counter((row["_seq"], row["_position"]) for row in self.rows(table))

    def record(self) -> list[dict[str, Any]]:
        found = self.lake.rows(paths.pipeline_control("shop", "quarantine_replays"))
        return [] if found is None else found.to_pylist()

    def open_places(self) -> Counter[Place]:
        """The places in quarantine that no replay has landed."""
        landed = Counter((row["_seq"], row["_position"]) for row in self.record() if row["outcome"] == "landed")
        assert all(count == 1 for count in landed.values()), "a row was landed twice"
        return Counter({place: n for place, n in self.places("quarantine").items() if place not in landed})
