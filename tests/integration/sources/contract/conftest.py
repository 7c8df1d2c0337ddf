"""Fixtures: the servers of all sources behind proxies, a project that reads them, and the driver that runs its
pipelines.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from deltaworks.control import paths
from deltaworks.tables.lake import Lake
from deltaworks.testing import declare_table, local_storage, write_files
from sandbox.servers.fault_proxy import FaultProxy, running_fault_proxy
from sandbox.servers.kafka_broker import running_broker
from sandbox.servers.object_store import running_object_store
from tests.integration.sources.contract.driver_process import CHECKOUT, Drivers
from tests.integration.sources.contract.source_harnesses import (
    HARNESSES,
    TABLES_BUCKET,
    FileHarness,
    Server,
    Servers,
    SourceHarness,
    tables_storage,
)
from tests.integration.sources.contract.wire import running_wire
from tests.waiting import eventually

KEYS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}
PIPELINE: dict[str, Any] = {
    "description": "what the contract is shown with",
    "owner": "tests",
    "event": {"name": {"path": "name"}, "time": {"path": "time", "unit": "epoch_seconds"}, "id": ["id"]},
    "tables": [declare_table("orders", "number long required", "lane string required", when="order")],
    "stream": {"tasks_per_batch": 2, "lease_ttl_seconds": 3, "trigger_seconds": 1},
}


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's folder, with jars and settings of the checkout."""
    found = tmp_path_factory.mktemp("contract")
    for name in ("environments", "relays", "pipelines"):
        (found / "include" / name).mkdir(parents=True)
    for name in ("jars", "spark"):
        (found / "include" / name).symlink_to(CHECKOUT / "include" / name)
    return found


@pytest.fixture(scope="session")
def servers(aws_endpoint: str, root: Path) -> Iterator[Servers]:
    with ExitStack() as stack:
        enter = stack.enter_context
        tables = enter(running_object_store(root / "tables", buckets=[TABLES_BUCKET]))
        os.environ["CONTRACT_TABLES_ACCESS_KEY"] = tables.access_key
        os.environ["CONTRACT_TABLES_SECRET_KEY"] = tables.secret_key
        broker_wire = enter(running_wire("kafka"))
        # Kafka clients connect to the address that the broker advertises.
        told = {"advertised.listeners": f"PLAINTEXT://{broker_wire.bootstrap}"}
        broker = enter(running_broker(root / "kafka", settings=told))
        host, _, port = broker.address.bootstrap.rpartition(":")
        broker_wire.upstream = (host, int(port))
        faults: dict[Server, FaultProxy] = {
            "aws": enter(running_fault_proxy(aws_endpoint)),
            "tables": enter(running_fault_proxy(tables.endpoint)),
        }
        yield Servers(
            aws_endpoint=aws_endpoint,
            aws=lambda service: boto3.client(service, endpoint_url=aws_endpoint, **KEYS),
            broker=broker,
            tables=tables,
            lake=local_storage(root / "lake"),
            wires={
                "aws": enter(running_wire("http", faults["aws"].endpoint.removeprefix("http://"))),
                "broker": broker_wire,
                "tables": enter(running_wire("http", faults["tables"].endpoint.removeprefix("http://"))),
            },
            faults=faults,
        )


@pytest.fixture(scope="session")
def drivers(root: Path, servers: Servers) -> Iterator[Drivers]:
    """The driver process, in a project that reaches its servers through the proxies."""
    keys = {"access_key": "env:DELTAWORKS_AWS_ACCESS_KEY", "secret_key": "env:DELTAWORKS_AWS_SECRET_KEY"}
    aws = {"endpoint": servers.wires["aws"].endpoint, **keys}
    environment = {
        "environment": "local",
        "lake": {"root": servers.lake.root},
        "landing": {"root": "s3://landing", "path_style": True, **aws},
        "messaging": aws,
        "spark": {
            "shuffle_partitions": 2,
            # Each driver lives for a minute, so full JIT compilation would cost more than it saves.
            "java_options": "-XX:TieredStopAtLevel=1",
            "conf": {
                "spark.executor.memory": "700m",
                "spark.executor.cores": "1",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                **tables_storage(servers.tables, servers.wires["tables"].endpoint).spark_conf(),
            },
        },
    }
    (root / "include" / "environments" / "local.yaml").write_text(yaml.safe_dump(environment))
    found = Drivers(root, {"DELTAWORKS_AWS_ACCESS_KEY": "testing", "DELTAWORKS_AWS_SECRET_KEY": "testing"})
    yield found
    found.close()


@dataclass
class Bench:
    """A source's input, the pipeline that reads it, and the records of its runs."""

    harness: SourceHarness
    drivers: Drivers
    root: Path
    limits: dict[str, Any]
    runs: int = 0

    @property
    def folder(self) -> Path:
        return self.root / "notes" / self.harness.name

    def declare(self) -> None:
        """Writes the declarations of the pipeline and, if needed, the relay."""
        include, name = self.root / "include", self.harness.name
        declared = PIPELINE | {"pipeline": name, "source": self.harness.declared() | self.limits}
        write_files(include, {f"pipelines/{name}/pipeline.yaml": declared})
        if isinstance(self.harness, FileHarness):
            (include / "relays" / f"{name}.yaml").write_text(yaml.safe_dump(self.harness.relay()))
        self.folder.mkdir(parents=True, exist_ok=True)

    def start(self, **command: Any) -> str:
        """Starts a run; returns its name."""
        self.runs += 1
        for name in ("held", "go"):
            (self.folder / name).unlink(missing_ok=True)
        run = f"run{self.runs}"
        self.drivers.send({"pipeline": self.harness.name, "folder": str(self.folder), "run": run, **command})
        return run

    def held(self) -> None:
        """Waits until the run is held at its point."""
        eventually((self.folder / "held").exists, "the run to be held")

    def go(self) -> None:
        """Releases a held run."""
        (self.folder / "go").touch()

    def run(self, **command: Any) -> dict[str, Any]:
        """Runs to the end; fails if the run fails."""
        self.start(**command)
        return self.ended()

    def ended(self) -> dict[str, Any]:
        """Returns the result of the started run."""
        found = self.drivers.answer()
        assert found is not None, self.drivers.log()
        assert "error" not in found, found["message"]
        return found

    def rows(self, table: str = "orders") -> list[dict[str, Any]]:
        """Returns a table's rows by position."""
        found = Lake(self.harness.servers.lake).rows(paths.table(self.harness.name, table))
        rows: list[dict[str, Any]] = [] if found is None else found.to_pylist()
        return sorted(rows, key=lambda row: (row["_seq"], row["_position"]))

    def readings(self) -> list[dict[str, Any]]:
        """Returns the payloads of each task of each run, in time order."""
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("*.json"))]

    def batches_read(self, run: str) -> dict[int, list[list[Any]]]:
        """Returns the payloads of each batch that a run has read."""
        found: dict[int, list[list[Any]]] = {}
        for told in self.readings():
            if told["run"] == run:
                found.setdefault(told["batch"], []).extend(told["payloads"])
        return {batch: sorted(payloads) for batch, payloads in found.items()}


@pytest.fixture(scope="session")
def make_bench(servers: Servers, drivers: Drivers, root: Path) -> Callable[..., Bench]:
    """Makes a bench with separate input: `make_bench("kafka", max_records_per_batch=3)`; the product's limits by
    default.
    """

    def make(kind: str, **limits: Any) -> Bench:
        harness = HARNESSES[kind](servers, f"{kind.replace('_', '')}{uuid.uuid4().hex[:6]}")
        found = Bench(harness, drivers, root, limits or dict(harness.limits))
        found.declare()
        return found

    return make


@pytest.fixture(autouse=True)
def restored_servers(servers: Servers, drivers: Drivers) -> Iterator[None]:
    """Repairs proxies and servers after each test and ends the driver."""
    yield
    if drivers.busy:
        drivers.close()
    for wire in servers.wires.values():
        wire.heal()
    for proxy in servers.faults.values():
        proxy.faults = ()
