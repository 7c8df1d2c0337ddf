"""The programs of the embedded stack: how each is started, and when it counts as healthy."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import chain
from urllib.request import urlopen

from botocore.exceptions import BotoCoreError, ClientError

from deltaworks.errors import TransientError
from deltaworks.operations.airflow_login import AirflowLogin
from deltaworks.operations.airflow_requests import AirflowRequests
from deltaworks.operations.airflow_resources import Component, Health
from deltaworks.tables.spark.jars import ignore_progress
from sandbox.servers.kafka_broker import broker_command, is_serving
from sandbox.servers.landing import LAKE_BUCKET, LANDING_BUCKET, VAULT_BUCKET, is_wired, landing_client
from sandbox.servers.object_store import s3proxy_command
from sandbox.stack.home import StackHome
from sandbox.stack.ports import HOST
from sandbox.stack.secrets import StackSecrets
from sandbox.stack.supervisor import Program, ProgramState

MOTO = "moto"
S3PROXY = "s3proxy"
KAFKA = "kafka"
API_SERVER = "airflow-api-server"
SCHEDULER = "airflow-scheduler"
DAG_PROCESSOR = "airflow-dag-processor"
TRIGGERER = "airflow-triggerer"
#: Watches the health check from outside Airflow.
DEADMAN = "deadman"
#: Takes events over HTTP. A stack has it only where a collector feeds a pipeline that runs.
COLLECTOR = "collector"
#: The stores of data. A stack has the broker only where a pipeline reads Kafka.
STORES = (MOTO, S3PROXY, KAFKA)
# In the order they start, once the stores answer. The scheduler is the last: what it starts asks the API server.
START_ORDER = ((COLLECTOR, DEADMAN, API_SERVER, DAG_PROCESSOR, TRIGGERER), (SCHEDULER,))
#: Every program, in the order they start.
PROGRAMS = (*STORES, *chain.from_iterable(START_ORDER))
# The scheduler is the first to end, so that nothing new starts; the stores end last, since all write to them.
STOP_ORDER = ((SCHEDULER, DEADMAN), (TRIGGERER, DAG_PROCESSOR, API_SERVER, COLLECTOR), (KAFKA, S3PROXY, MOTO))
#: Objects are closed as soon as a person who looks would expect it: here nothing is paid by the object.
_CLOSE_SECONDS, _BEAT_SECONDS = 2, 2
_HEALTH_PART = {SCHEDULER: "scheduler", DAG_PROCESSOR: "dag_processor", TRIGGERER: "triggerer"}


def stack_programs(
    home: StackHome,
    *,
    ports: Mapping[str, int],
    keys: StackSecrets,
    with_broker: bool = False,
    collector: str | None = None,
    progress: Callable[[str], None] = ignore_progress,
) -> tuple[Program, ...]:
    """Every program with its command. Writes the servers' configuration; resolves their jars if need be.

    Args:
        with_broker: a Kafka broker too; formats its folder the first time.
        collector: the collector that takes events, if any does.

    Raises:
        TransientError: BROKER_DOWN, its folder cannot be formatted; JARS_NOT_RESOLVED.
    """
    python = sys.executable
    moto = [python, "-m", "sandbox.servers.moto_server", "--port", str(ports["moto"])]
    moto += ["--journal", str(home.landing_journal), "--store", f"http://{HOST}:{ports['s3proxy']}"]
    lake = s3proxy_command(
        directory=home.lake,
        port=ports["s3proxy"],
        access_key=keys.lake_access_key,
        secret_key=keys.lake_secret_key,
        properties_file=home.root / "s3proxy.properties",
    )
    lake.write_properties()
    # Their servers of task logs would need two more ports; the API server reads the files itself.
    airflow = {
        API_SERVER: (["api-server"], 15),
        DAG_PROCESSOR: (["dag-processor"], 15),
        # It ends late though it holds nothing here that must be finished.
        TRIGGERER: (["triggerer", "--skip-serve-logs"], 4),
        SCHEDULER: (["scheduler", "--skip-serve-logs"], 30),
    }
    return (
        Program(MOTO, (*moto, "--request-log", str(home.request_log))),
        Program(S3PROXY, lake.argv),
        *((_broker(home, ports, progress),) if with_broker else ()),
        *((_collector(home, ports, collector),) if collector is not None else ()),
        Program(DEADMAN, (python, "-m", "deltaworks.alerts.deadman", "--every", "30")),
        *(
            Program(name, (python, "-m", "sandbox.airflow.component", *arguments), seconds)
            for name, (arguments, seconds) in airflow.items()
        ),
    )


def _collector(home: StackHome, ports: Mapping[str, int], name: str) -> Program:
    command = (
        *(sys.executable, "-m", "deltaworks.cli", "collect", name, "--host", HOST, "--port", str(ports["collector"])),
        *("--metrics-port", str(ports["collector_metrics"]), "--spool", str(home.spool), "--drain-seconds", "0"),
        *("--close-seconds", str(_CLOSE_SECONDS), "--heartbeat-seconds", str(_BEAT_SECONDS)),
    )
    # What it has not delivered by then is in its spool, and is delivered after the next start.
    return Program(COLLECTOR, command, 30)


def _broker(home: StackHome, ports: Mapping[str, int], progress: Callable[[str], None]) -> Program:
    broker = broker_command(
        directory=home.kafka,
        port=ports["kafka"],
        controller_port=ports["kafka_controller"],
        properties_file=home.root / "kafka.properties",
        progress=progress,
    )
    broker.prepare()
    return Program(KAFKA, broker.argv, 20)


@dataclass(frozen=True, slots=True)
class HealthChecks:
    """Asks each program of a running stack whether it does its work."""

    ports: Mapping[str, int]
    keys: StackSecrets

    def create_buckets(self) -> None:
        """Create the buckets of the lake, of what lands and of the vault, unless they are there, in one store."""
        store = landing_client("s3", **self._lake_options())
        for bucket in (LAKE_BUCKET, LANDING_BUCKET, VAULT_BUCKET):
            try:
                store.head_bucket(Bucket=bucket)
            except ClientError:
                store.create_bucket(Bucket=bucket)

    def create_streams(self, names: Sequence[str]) -> list[str]:
        """Create the Kinesis streams that are not there, of one shard; which they were."""
        kinesis = landing_client("kinesis", **self._messaging_options())
        created = []
        for name in names:
            with contextlib.suppress(kinesis.exceptions.ResourceInUseException):
                kinesis.create_stream(StreamName=name, ShardCount=1)
                created.append(name)
        return created

    def healthy_programs(self, states: Mapping[str, ProgramState], names: Sequence[str]) -> dict[str, bool]:
        """Whether each of the programs runs and answers; Airflow is asked once for its four parts."""
        airflow: Health | None = None
        if set(names) - {*STORES, DEADMAN, COLLECTOR} and _is_running(states.get(API_SERVER)):
            airflow = self._airflow_health()
        return {name: _is_running(states.get(name)) and self._responds(name, states[name], airflow) for name in names}

    def _responds(self, name: str, state: ProgramState, airflow: Health | None) -> bool:
        if name in STORES:
            return {MOTO: self._moto, S3PROXY: self._lake, KAFKA: self._broker}[name]()
        if name == DEADMAN:
            return True
        if name == COLLECTOR:
            return self._collector()
        if airflow is None:
            return False
        if name == API_SERVER:
            return airflow.metadatabase.is_healthy
        return _has_heartbeat(state, getattr(airflow, _HEALTH_PART[name]))

    def _lake_options(self) -> dict[str, str]:
        return {
            "endpoint": f"http://{HOST}:{self.ports['s3proxy']}",
            "access_key": self.keys.lake_access_key,
            "secret_key": self.keys.lake_secret_key,
        }

    def _messaging_options(self) -> dict[str, str]:
        return {
            "endpoint": f"http://{HOST}:{self.ports['moto']}",
            "access_key": self.keys.aws_access_key,
            "secret_key": self.keys.aws_secret_key,
        }

    def _moto(self) -> bool:
        return is_wired(**self._messaging_options())

    def _lake(self) -> bool:
        try:
            landing_client("s3", **self._lake_options()).list_buckets()
        except (BotoCoreError, ClientError):
            return False
        return True

    def _broker(self) -> bool:
        return is_serving(f"{HOST}:{self.ports['kafka']}")

    def _collector(self) -> bool:
        try:
            with urlopen(f"http://{HOST}:{self.ports['collector']}/ready", timeout=5) as answer:
                return bool(answer.status == HTTPStatus.OK)
        except OSError:
            return False

    def _airflow_health(self) -> Health | None:
        try:
            login = AirflowLogin(url=f"http://{HOST}:{self.ports['airflow']}", source="the embedded stack")
            with AirflowRequests(login) as airflow:
                return airflow.health()
        except TransientError:
            return None


def _is_running(state: ProgramState | None) -> bool:
    return state is not None and state.pid is not None


def _has_heartbeat(state: ProgramState, component: Component) -> bool:
    """Healthy, by a heartbeat of this very process: the one of its predecessor counts for 30 s more."""
    if state.started_at is None or component.heartbeat is None:
        return False
    return component.is_healthy and component.heartbeat >= datetime.fromtimestamp(state.started_at, UTC)


def failed_programs(states: Mapping[str, ProgramState], names: Sequence[str]) -> list[str]:
    """Those the supervisor has given up on."""
    return [name for name in names if name in states and states[name].state == "FATAL"]
