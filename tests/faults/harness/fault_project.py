"""A test project for one fault: a pipeline with many tables, its landing folder, file event log and lake.

Landed events are *accepted*: the object is in the landing folder and its file event is in the log. From then on the
pipeline owes every event, once, to each table declared for its name, or once to quarantine.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deltaworks import testing
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.sources.objects.file_event_log_writer import FileEventLogWriter, ReceivedEvent
from deltaworks.sources.objects.relay.messages import FileEvent
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.lake import Lake
from deltaworks.testing import write_files
from sandbox.servers.object_store import ObjectStoreAddress, lake_storage

PIPELINE = "faults"
RELAY = "landing"
BUCKET = "landing"
FIRST_TIME = 1_700_000_000
#: Several short-lived JVMs on few cores: full JIT compilation would cost more than it saves.
SPARK_CONF = {
    "spark.default.parallelism": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
}


@dataclass
class FaultProject:
    """One pipeline on one lake, and the expected rows."""

    root: Path
    storage: StorageSpec
    tables: int
    seed: int
    server: ObjectStoreAddress | None = None
    spark_tables: tuple[str, ...] = ()
    #: Expected rows: `(table, event id)`.
    owed: Counter[tuple[str, str]] = field(default_factory=Counter)
    ids: int = 0
    files: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._writer: FileEventLogWriter | None = None
        self._epoch = 0
        self.settings: dict[str, Any] = {
            "source": {"max_files_per_batch": 1},
            "stream": {"trigger_seconds": 1, "lease_ttl_seconds": 3, "tasks_per_batch": 2},
        }

    @property
    def kinds(self) -> list[str]:
        """Returns the event names; each has a table with the same name."""
        return [f"k{number:02d}" for number in range(1, self.tables)]

    @property
    def lake(self) -> Lake:
        return Lake(self.storage)

    @property
    def objects(self) -> ObjectStore:
        return open_objects(self.storage)

    @property
    def landing(self) -> Path:
        return self.root / "landing"

    def declare(self, **changes: Any) -> None:
        """Writes the project's declarations. Arguments such as `source={"max_files_per_batch": 5}` stay in force
        afterwards.
        """
        for part, values in changes.items():
            self.settings[part] = {**self.settings.get(part, {}), **values} if part in ("source", "stream") else values
        here = self.storage.model_dump(mode="json", exclude_none=True)
        lake: dict[str, Any] = {"root": here["root"]}
        if self.server is not None:
            lake |= {
                "endpoint": "env:DELTAWORKS_LAKE_ENDPOINT",
                "region": self.server.region,
                "path_style": True,
                "access_key": "env:DELTAWORKS_LAKE_ACCESS_KEY",
                "secret_key": "env:DELTAWORKS_LAKE_SECRET_KEY",
            }
        environment = {
            "lake": lake,
            "landing": {"root": f"file://{self.landing}"},
            "spark": {"driver_memory": "600m", "shuffle_partitions": 1, "conf": SPARK_CONF},
        }
        relay = testing.RELAY | {"relay": RELAY, "buckets": [BUCKET]}
        testing.write_project(self.root, self._pipeline(), environment=environment, relays=[relay])
        self.landing.mkdir(exist_ok=True)
        for name in ("include/deltaworks", "include/spark", "include/jars"):
            if not (self.root / name).exists():
                (self.root / name).symlink_to(PROJECT_ROOT / name)

    def _pipeline(self) -> dict[str, Any]:
        columns = [{"name": "n", "path": "n", "type": "long", "required": True}]
        declared = [{"name": "events", "catch_all": True, "columns": columns}]
        for kind in self.kinds:
            table: dict[str, Any] = {"name": kind, "when": {"name": kind}, "columns": columns}
            declared.append({**table, "writer": "spark"} if kind in self.spark_tables else table)
        settings = dict(self.settings)
        source = {"kind": "s3_sqs", "relay": RELAY, "bucket": BUCKET, **settings.pop("source")}
        event = {"name": {"path": "name"}, "time": {"path": "at", "unit": "epoch_seconds"}, "id": "id"}
        return testing.declare_pipeline(
            pipeline=PIPELINE, **{"source": source, "event": event, "tables": declared} | settings
        )

    def land(self, files: int = 1, *, per_kind: int = 2, misfits: int = 1, copies: int = 1) -> None:
        """Lands objects, each with `per_kind` events of every kind and `misfits` events for quarantine."""
        for _ in range(files):
            lines = []
            for kind in self.kinds * per_kind:
                lines.append(self.event(kind))
                self.owed[kind, lines[-1]["id"]] += 1
                self.owed["events", lines[-1]["id"]] += 1
            for _ in range(misfits):
                lines.append(self.event(self._random.choice(self.kinds), n="no number"))
                self.owed["quarantine", lines[-1]["id"]] += 1
            self.announce(lines, copies=copies)

    def event(self, kind: str, **values: Any) -> dict[str, Any]:
        """Returns a new event with a unique id; the caller adds the expected rows."""
        self.ids += 1
        return {"name": kind, "at": FIRST_TIME + self.ids, "id": f"e{self.ids}", "n": self.ids, **values}

    def announce(self, events: list[dict[str, Any]], *, copies: int = 1) -> None:
        """Puts one object and appends `copies` file events for it."""
        self._random.shuffle(events)
        self.files += 1
        key = f"in/{self.files:06d}.json"
        data = "\n".join(json.dumps(event) for event in events).encode()
        write_files(self.landing, {key: data})
        now = datetime.now(UTC)
        tag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        event = FileEvent(BUCKET, key, len(data), tag, None, now, "ObjectCreated:Put", None)
        for copy in range(copies):
            self._log().append([ReceivedEvent(event, f"m{self.files}-{copy}", now)])

    def _log(self) -> FileEventLogWriter:
        if self._writer is None:
            self._epoch += 1
            self._writer = FileEventLogWriter(self.lake, RELAY, epoch=self._epoch)
        return self._writer

    def environment(self) -> dict[str, str]:
        """Returns the environment variables a driver needs for this project."""
        return {
            "DELTAWORKS_PROJECT": str(self.root),
            "DELTAWORKS_ENVIRONMENT": "local",
            "DELTAWORKS_TEST_PIPELINE": PIPELINE,
        }


@contextmanager
def open_project(
    root: Path,
    *,
    seed: int,
    tables: int,
    server: ObjectStoreAddress | None = None,
    lake: Path | None = None,
    spark_tables: tuple[str, ...] = (),
) -> Iterator[FaultProject]:
    """Opens a project in the new folder `root`; its lake is on `server` (bucket deltaworks-lake) or in a folder.

    A server's credentials are set in this process's environment and in the drivers'.
    """
    root.mkdir(parents=True, exist_ok=True)
    known = server.environment() if server is not None else {}
    before = {name: os.environ.get(name) for name in known}
    os.environ.update(known)
    try:
        if server is not None:
            storage = lake_storage(f"s3://deltaworks-lake/{root.name}")
        else:
            storage = StorageSpec(root=f"file://{lake or root / 'lake'}")
        stage = FaultProject(root, storage, tables, seed, server, spark_tables)
        stage.declare()
        yield stage
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
