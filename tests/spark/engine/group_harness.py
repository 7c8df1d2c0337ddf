"""Three pipelines of one group on local disk, their group runs in the background, and the expected rows."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.backoff import RestartBackoff
from deltaworks.control.health.heartbeat import Heartbeat, StopFlag, group_stop_flag, read_heartbeat
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.engine.group_run import GroupResult, GroupRun
from deltaworks.operations.stream_parts import STREAM_PARTS
from deltaworks.sources.objects.file_event_log_writer import FileEventLogWriter, ReceivedEvent
from deltaworks.sources.objects.relay.messages import FileEvent
from deltaworks.specs.catalog import PROJECT_ROOT, Catalog
from deltaworks.specs.project import load_catalog
from deltaworks.tables.lake import Lake
from deltaworks.testing import declare_pipeline, present, write_files, write_project

GROUP = "small"
MEMBERS = ("ants", "bees", "cats")
#: The first odd number makes a table with this rule fail.
POISON = {"rules": [{"name": "even", "check": "n % 2 = 0", "on_fail": "fail"}]}


@dataclass
class GroupHarness:
    """A separate project. Events are numbered; each is expected once in its pipeline's table."""

    root: Path
    #: Used at the first failure: after a permanent error the next try comes only minutes later.
    settings: dict[str, Any] = field(default_factory=lambda: {"non_outage_failures": 1})
    owed: Counter[tuple[str, int]] = field(default_factory=Counter)
    number: int = 0
    files: int = 0

    def declare(self, pipeline: str, *, group: str | None = GROUP, **table: Any) -> None:
        """Writes the declaration of one pipeline, and of the environment."""
        columns = [{"name": "n", "path": "n", "type": "long"}]
        declared = declare_pipeline(
            {"name": "events", "catch_all": True, "columns": columns, **table},
            pipeline=pipeline,
            source={"kind": "s3_sqs", "relay": "landing", "bucket": "landing", "prefix": f"{pipeline}/"},
            event={"name": {"path": "name"}, "time": {"path": "at", "unit": "epoch_seconds"}},
            stream={"trigger_seconds": 1, "lease_ttl_seconds": 6, "tasks_per_batch": 1},
        )
        if group is not None:
            declared["stream_group"] = group
        write_project(self.root, declared, environment={"stream_groups": {GROUP: self.settings}})

    @property
    def catalog(self) -> Catalog:
        return load_catalog("local", root=self.root, skip_invalid=True)

    @property
    def objects(self) -> ObjectStore:
        return open_objects(self.catalog.environment.lake)

    @property
    def lake(self) -> Lake:
        return Lake(self.catalog.environment.lake)

    def land(self, pipeline: str, events: int = 5, *, files: int = 1, step: int = 2) -> None:
        """Writes objects with even-numbered events, or with odd ones too if `step` is 1."""
        for _ in range(files):
            lines = []
            for _ in range(events):
                self.number += step
                lines.append({"name": "e", "at": 1_700_000_000 + self.number, "n": self.number})
                self.owed[pipeline, self.number] += 1
            self.files += 1
            key = f"{pipeline}/{self.files:06d}.json"
            data = "\n".join(json.dumps(line) for line in lines).encode()
            write_files(self.root, {f"landing/{key}": data})
            tag = hashlib.md5(data, usedforsecurity=False).hexdigest()
            now = datetime.now(UTC)
            event = FileEvent("landing", key, len(data), tag, None, now, "ObjectCreated:Put", None)
            FileEventLogWriter(self.lake, "landing", epoch=self.files).append(
                [ReceivedEvent(event, f"m{self.files}", now)]
            )

    def landed(self, *pipelines: str) -> Counter[tuple[str, int]]:
        """Counts each event in its pipeline's table."""
        found: Counter[tuple[str, int]] = Counter()
        for pipeline in pipelines or MEMBERS:
            rows = self.lake.rows(paths.table(pipeline, "events"), columns=["n"])
            found.update((pipeline, row["n"]) for row in (rows.to_pylist() if rows is not None else ()))
        return found

    def expected(self, *pipelines: str) -> Counter[tuple[str, int]]:
        """The expected counts."""
        return Counter({key: count for key, count in self.owed.items() if key[0] in (pipelines or MEMBERS)})

    def is_exact(self, *pipelines: str) -> bool:
        return self.landed(*pipelines) == self.expected(*pipelines)

    def environment(self) -> dict[str, str]:
        """Environment variables for a driver of the group in its own process."""
        for name in ("include/deltaworks", "include/spark", "include/jars"):
            if not (self.root / name).exists():
                (self.root / name).symlink_to(PROJECT_ROOT / name)
        return {
            "DELTAWORKS_PROJECT": str(self.root),
            "DELTAWORKS_ENVIRONMENT": "local",
            "DELTAWORKS_TEST_GROUP": GROUP,
        }

    def heartbeat(self, pipeline: str) -> Heartbeat:
        return present(read_heartbeat(self.objects, paths.heartbeat(paths.pipeline_control(pipeline))))

    def condition(self, pipeline: str) -> str:
        beat = read_heartbeat(self.objects, paths.heartbeat(paths.pipeline_control(pipeline)))
        return str((beat.error or {}).get("condition", "")) if beat is not None else ""

    def stop(self, pipeline: str) -> StopFlag:
        return StopFlag(self.objects, paths.stop_request(paths.pipeline_control(pipeline)))

    def backoff(self, pipeline: str) -> RestartBackoff:
        return RestartBackoff(self.objects, paths.pipeline_control(pipeline, "failures.json"))

    def group_run(self, spark: SparkSession, *, available_now: bool = False) -> GroupRun:
        """Returns a run of the group, not started."""
        load = partial(load_catalog, "local", root=self.root, skip_invalid=True)
        return GroupRun(spark, GROUP, load(), load=load, parts=STREAM_PARTS, available_now=available_now)

    @contextmanager
    def running(self, spark: SparkSession) -> Iterator[GroupRun]:
        """Runs the group in the block, then stops it by its flag."""
        run = self.group_run(spark)
        results: list[GroupResult | BaseException] = []

        def work() -> None:
            try:
                results.append(run.run())
            except BaseException as error:
                results.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        flag = group_stop_flag(self.objects, GROUP)
        try:
            yield run
        finally:
            flag.set(by="tests", reason="the test is over")
            thread.join(120)
            flag.clear()
        (result,) = results
        assert isinstance(result, GroupResult), result
        assert result.ended_by == "stop flag"
