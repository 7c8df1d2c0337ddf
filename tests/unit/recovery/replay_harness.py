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
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake

ARRIVED_US = 1_700_000_000_000_000
#: When the store made the object of `seq` 0; the next one a second later, and so on.
MADE_US = 1_690_000_000_000_000
Place = tuple[int, int]


def shop(*tables: Mapping[str, Any], **more: Any) -> PipelineSpec:
    """A declaration of the pipeline `shop` with these tables; `more` adds to it, or replaces."""
    declared: dict[str, Any] = {
        "pipeline": "shop",
        "description": "orders",
        "owner": "tests",
        "source": {"kind": "s3_sqs", "relay": "landing", "bucket": "landing"},
        "event": {"name": {"path": "name"}, "time": {"path": "time", "unit": "epoch_seconds"}},
        "tables": list(tables),
    }
    return PipelineSpec.model_validate(declared | more)


def orders(level: str) -> dict[str, Any]:
    """A table of orders whose one column is of the type `level`, and called by it."""
    columns = [{"name": f"level_{level}", "path": "level", "type": level}]
    return {"name": "orders", "when": {"name": "order"}, "columns": columns}


class ReplayHarness:
    """One pipeline `shop` in a folder."""

    def __init__(self, root: Path, *, privacy: Mapping[str, Any] | None = None) -> None:
        self.landing = root / "landing"
        self.landing.mkdir(parents=True, exist_ok=True)
        self.environment = EnvironmentSpec.model_validate(
            {
                "environment": "test",
                "lake": {"root": f"file://{root}/lake"},
                "landing": {"root": f"file://{self.landing}"},
                "messaging": {},
                **({} if privacy is None else {"privacy": privacy}),
            }
        )
        self.lake = Lake(self.environment.lake)
        self.seq = 0
        self.batch = -1
        self.events: list[dict[str, Any]] = []

    def catalog(self, spec: PipelineSpec) -> Catalog:
        return Catalog(environment=self.environment, relays={}, pipelines={spec.pipeline: spec}, root=self.landing)

    def ingest(self, spec: PipelineSpec, *bodies: bytes, named: str = "k") -> None:
        """Land the bodies as objects whose keys begin so, and their rows as one batch, at ARRIVED_US."""
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
        log = self.lake.ensure(log_key, FILE_EVENT_SCHEMA, user_metadata="{}")
        rows = pa.Table.from_pylist(events, schema=FILE_EVENT_SCHEMA)
        self.lake.append(log, log_key, rows, step=Step("log", self.batch + 1), user_metadata="{}")
        self.events += events
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
        found = self.lake.rows(paths.table("shop", table))
        return [] if found is None else sorted(found.to_pylist(), key=lambda row: (row["_seq"], row["_position"]))

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
