"""A test project whose landing bucket announces objects through a queue, with the expected outcome of each event."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

from deltaworks.control import paths
from deltaworks.sources.objects.relay.relay import Relay
from deltaworks.specs.project import load_catalog
from tests.faults.harness.driver import Driver
from tests.faults.harness.fault_project import PIPELINE, RELAY, FaultProject
from tests.faults.harness.worker_daemon import OFF


@dataclass(frozen=True, slots=True)
class RowsVerdict:
    """Lost, doubled and unexpected events by id. `whole` and `parts` are quarantine reasons by key: of an object that
    gave no events, and of single events in it.
    """

    lost: Counter[str]
    doubled: Counter[str]
    strange: Counter[str]
    whole: dict[str, list[str]]
    parts: dict[str, list[str]]

    @property
    def is_exact(self) -> bool:
        """Whether every event landed once, and nothing else."""
        return not (self.lost or self.doubled or self.strange)


class BucketProject:
    """One pipeline that reads a bucket. Its drivers reach the bucket at `endpoint`, which may be a proxy's."""

    def __init__(self, stage: FaultProject, landing: Any, endpoint: str) -> None:
        self.stage = stage
        self._landing = landing
        self._endpoint = endpoint
        self.owed: Counter[str] = Counter()
        self._declare()

    def put(self, key: str, events: int = 5, *, made: Callable[[bytes], bytes] = bytes, is_owed: bool = True) -> None:
        """Puts an object of events; `made` builds its bytes from the lines."""
        lines = [self.stage.event("k01") for _ in range(events)]
        self._landing.put(key, body=made("\n".join(json.dumps(line) for line in lines).encode()))
        if is_owed:
            self.owed.update(line["id"] for line in lines)

    def relay(self) -> None:
        """Runs the relay until every message is in the log."""
        spec = load_catalog(root=self.stage.root).relay(RELAY)
        Relay(spec, lake=self.stage.storage, queue=self._landing.queue(), until_drained=True).run()

    def driver(self, *, off: list[str] | None = None) -> Driver:
        """Starts a driver whose workers run without the protections in `off`."""
        return Driver(self.stage, environment={OFF: " ".join(off or [])})

    def judge(self) -> RowsVerdict:
        """Compares the tables and quarantine with the landed events."""
        lake = self.stage.lake
        rows = lake.rows(paths.table(PIPELINE, "events"), columns=["event_id"])
        seen: Counter[str] = Counter([] if rows is None else rows.column("event_id").to_pylist())
        held = lake.rows(paths.table(PIPELINE, "quarantine"))
        whole: dict[str, list[str]] = {}
        parts: dict[str, list[str]] = {}
        for row in [] if held is None else held.to_pylist():
            found = whole if row["_position"] == -1 else parts
            found.setdefault(row["object_key"], []).append(row["reasons"][0]["code"])
        return RowsVerdict(
            lost=self.owed - seen,
            doubled=Counter({each: count for each, count in seen.items() if count > 1}),
            strange=Counter({each: count for each, count in seen.items() if each not in self.owed}),
            whole=whole,
            parts=parts,
        )

    def _declare(self) -> None:
        stage, landing = self.stage, self._landing
        stage.declare(source={"bucket": landing.bucket, "max_files_per_batch": 100})
        include = stage.root / "include"
        reached = {
            "endpoint": self._endpoint,
            "access_key": "env:DELTAWORKS_AWS_ACCESS_KEY",
            "secret_key": "env:DELTAWORKS_AWS_SECRET_KEY",
        }
        environment = yaml.safe_load((include / "environments" / "local.yaml").read_text())
        environment |= {
            "landing": {"root": f"s3://{landing.bucket}", "path_style": True} | reached,
            "messaging": reached,
        }
        environment["spark"]["conf"]["spark.python.daemon.module"] = "tests.faults.harness.worker_daemon"
        relay = {"relay": RELAY, "queue_url": landing.queue_url, "buckets": [landing.bucket], "lease_ttl_seconds": 3}
        for path, content in {"environments/local.yaml": environment, f"relays/{RELAY}.yaml": relay}.items():
            (include / path).write_text(yaml.safe_dump(content), encoding="utf-8")
