"""A Kafka broker that dies, hangs or truncates its responses, and aborted transactions. Faults 36 and 39."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from deltaworks.control import job, paths
from deltaworks.control.job import as_deltaworks_error
from deltaworks.errors import DeltaworksError
from deltaworks.sources.kafka.source import KafkaSource
from sandbox.servers.kafka_broker import BrokerAddress, RunningBroker, broker_command
from sandbox.servers.object_store import HOST, free_port
from tests.faults.harness.tcp_proxy import TcpProxy, running_tcp_proxy
from tests.faults.records.conftest import Tell
from tests.spark.conftest import Project
from tests.spark.sources.kafka_harness import ProjectOf, Topic, numbers, order, run

RECORDS = 20_000
#: Several megabytes: a client requests one per partition and fetch.
MANY = 80_000
#: Longest wait of a client, so that a test does not take a minute.
HASTY = {"default.api.timeout.ms": "6000", "request.timeout.ms": "3000"}
#: A retry only after the test.
NEVER_BACK = {"reconnect.backoff.ms": "600000", "reconnect.backoff.max.ms": "600000"}


@dataclass
class Before:
    """A broker behind a proxy. Its metadata names the proxy's address only."""

    broker: RunningBroker
    proxy: TcpProxy
    bootstrap: str


@pytest.fixture
def before(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Before]:
    folder = tmp_path_factory.mktemp("kafka")
    ports = {name: free_port() for name in ("CONTROLLER", "PLAINTEXT", "PROXIED")}
    shown = free_port()
    settings = {
        "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items()),
        "advertised.listeners": f"PLAINTEXT://{HOST}:{ports['PLAINTEXT']},PROXIED://{HOST}:{shown}",
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in ports),
    }
    command = broker_command(
        directory=folder / "log",
        port=ports["PLAINTEXT"],
        controller_port=ports["CONTROLLER"],
        properties_file=folder / "server.properties",
        settings=settings,
    )
    broker = RunningBroker(command, BrokerAddress(f"{HOST}:{ports['PLAINTEXT']}"), folder / "output")
    command.prepare()
    broker.start()
    with running_tcp_proxy(shown, ports["PROXIED"]) as proxy:
        yield Before(broker, proxy, f"{HOST}:{shown}")
    broker.stop()


@pytest.fixture
def client_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """Sets properties of the pipeline's Kafka clients that the product never sets."""
    plain = KafkaSource._client_settings

    def change(properties: dict[str, str]) -> None:
        monkeypatch.setattr(KafkaSource, "_client_settings", lambda self: plain(self) | properties)

    return change


def failure(spark: SparkSession, project: Project) -> DeltaworksError:
    with pytest.raises(Exception) as failed:  # noqa: PT011 - what it means to a launcher is looked at
        run(spark, project)
    return as_deltaworks_error(failed.value)


def in_all_files(project: Project) -> list[int]:
    """Returns the rows of all files in the folder, without regard to the log."""
    folder = Path(project.catalog.environment.lake.prefix) / paths.table("shop", "orders")
    return [number for path in folder.rglob("*.parquet") for number in pq.read_table(path)["number"].to_pylist()]


@pytest.mark.parametrize("protected", [True, False])
def test_36_a_broker_killed_in_the_middle_of_a_batch(
    spark: SparkSession, before: Before, project_of: ProjectOf, report_records_fault: Tell, protected: bool
) -> None:
    topic = Topic(before.broker, "killed")
    topic.send(range(RECORDS))
    project = project_of(topic.source(bootstrap_servers=before.bootstrap, max_records_per_batch=RECORDS // 2))

    def killed(point: str) -> None:
        if point == "files_written":
            before.broker.kill()
            raise RuntimeError("and the driver with it")

    with pytest.raises(Exception, match="and the driver with it"):
        run(spark, project, fault=killed)
    before.broker.start()
    began = time.monotonic()
    run(spark, project)

    landed = numbers(project) if protected else in_all_files(project)
    off = "" if protected else "the log: all files of the folder are read"
    found = report_records_fault(
        "36 broker killed", landed, range(RECORDS), off=off, note=f"whole again after {time.monotonic() - began:.0f} s"
    )
    assert found == ((0, 0) if protected else (0, RECORDS // 2))


@pytest.mark.parametrize("protected", [True, False])
def test_36_answers_that_are_cut_off_again_and_again(
    spark: SparkSession,
    before: Before,
    project_of: ProjectOf,
    report_records_fault: Tell,
    client_with: Callable[[dict[str, str]], None],
    *,
    protected: bool,
) -> None:
    topic = Topic(before.broker, "cut")
    topic.send(range(MANY))
    project = project_of(topic.source(bootstrap_servers=before.bootstrap, max_records_per_batch=MANY // 4))
    # One complete response of a megabyte, and part of the next.
    before.proxy.cut_after = 1_200_000
    if not protected:
        client_with(HASTY | NEVER_BACK)
        told = failure(spark, project)
        off = "coming back to a broker"
        lost, doubled = report_records_fault(
            "36 answers cut", numbers(project), range(MANY), off=off, note=told.condition
        )
        assert (told.condition, told.retryable) == ("STORAGE_UNREACHABLE", True)
        assert lost > 0
        assert doubled == 0
        return

    run(spark, project)

    note = f"{before.proxy.cuts} connections cut"
    assert report_records_fault("36 answers cut", numbers(project), range(MANY), note=note) == (0, 0)
    assert before.proxy.cuts >= 2, "nothing was cut"


@pytest.mark.parametrize("how", ["refusing", "stalling"])
def test_36_a_broker_that_is_away_for_a_while_in_the_middle(
    spark: SparkSession, before: Before, project_of: ProjectOf, report_records_fault: Tell, how: str
) -> None:
    topic = Topic(before.broker, how)
    topic.send(range(RECORDS))
    project = project_of(topic.source(bootstrap_servers=before.bootstrap, max_records_per_batch=RECORDS // 4))
    batches: list[str] = []

    def away(point: str) -> None:
        batches.append(point)
        if batches.count("completed") == 1 and point == "completed":
            setattr(before.proxy, how, True)
            threading.Timer(8, lambda: setattr(before.proxy, how, False)).start()

    began = time.monotonic()
    run(spark, project, fault=away)

    note = f"{how} for 8 s, the run took {time.monotonic() - began:.0f} s"
    assert report_records_fault("36 broker away", numbers(project), range(RECORDS), note=note) == (0, 0)


@pytest.mark.parametrize("protected", [True, False])
def test_36_a_broker_that_stays_away_is_an_outage_by_name(
    spark: SparkSession,
    before: Before,
    project_of: ProjectOf,
    report_records_fault: Tell,
    client_with: Callable[[dict[str, str]], None],
    *,
    monkeypatch: pytest.MonkeyPatch,
    protected: bool,
) -> None:
    topic = Topic(before.broker, "away")
    topic.send(range(100))
    project = project_of(topic.source(bootstrap_servers=before.bootstrap))
    client_with(HASTY)
    before.proxy.refusing = True
    if not protected:
        monkeypatch.setattr(job, "_OUTAGE", job._DELTA_CONFLICT)

    told = failure(spark, project)
    before.proxy.refusing = False
    run(spark, project)

    off = "" if protected else "telling outages"
    assert report_records_fault("36 broker stays away", numbers(project), range(100), off=off, note=told.condition) == (
        0,
        0,
    )
    assert (told.condition, told.retryable) == ("STORAGE_UNREACHABLE" if protected else "JOB_FAILED", True)


@pytest.mark.parametrize("protected", [True, False])
def test_39_records_of_aborted_and_of_open_transactions(
    spark: SparkSession,
    before: Before,
    project_of: ProjectOf,
    report_records_fault: Tell,
    client_with: Callable[[dict[str, str]], None],
    *,
    protected: bool,
) -> None:
    topic = Topic(before.broker, "aborted", 1)
    sender = Producer(before.broker.address.client_options() | {"transactional.id": "t"})
    sender.init_transactions()
    for start, ends in ((0, sender.commit_transaction), (100, sender.abort_transaction), (200, lambda: None)):
        sender.begin_transaction()
        for number in range(start, start + 50):
            sender.produce(topic.name, order(number))
        sender.flush()
        ends()
    if not protected:
        client_with({"isolation.level": "read_uncommitted"})
    project = project_of(topic.source(bootstrap_servers=before.bootstrap, max_records_per_batch=40))

    run(spark, project)
    # Records after an open transaction are not read before it has ended.
    seen = numbers(project)
    sender.abort_transaction()
    topic.send(range(50, 60))
    run(spark, project)

    off = "" if protected else "reading what is committed only"
    found = report_records_fault(
        "39 transactions", numbers(project), range(60), off=off, note=f"{len(seen)} while one was open"
    )
    assert found == ((0, 0) if protected else (0, 100))
