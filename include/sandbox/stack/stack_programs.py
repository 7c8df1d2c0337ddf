"""The programs of the embedded stack: their commands, start order and health checks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import chain
from urllib.request import urlopen

from botocore.exceptions import BotoCoreError, ClientError

from deltaworks.airflow_client.api import AirflowApi, Component, Health
from deltaworks.airflow_client.login import AirflowLogin
from deltaworks.build.jars import ignore_progress
from deltaworks.errors import TransientError
from sandbox.servers.kafka_broker import broker_command, is_serving
from sandbox.servers.landing import is_wired, landing_client
from sandbox.servers.object_store import s3proxy_command
from sandbox.stack.home import StackHome
from sandbox.stack.ports import HOST
from sandbox.stack.secrets import StackSecrets
from sandbox.stack.supervisor import Program, ProgramState

MOTO = "moto"
S3PROXY = "s3proxy"
KAFKA = "kafka"
API_SERVER = "airflow-apiserver"
SCHEDULER = "airflow-scheduler"
DAG_PROCESSOR = "airflow-dag-processor"
TRIGGERER = "airflow-triggerer"
#: The dead man's switch, which watches the health check from outside Airflow, and adds programs for new pipelines.
DEADMAN = "deadman"
#: Receives events over HTTP. Only in a stack with a collector that feeds one of its pipelines.
COLLECTOR = "collector"
#: Data stores. The broker is only in a stack with a pipeline that reads Kafka.
STORES = (MOTO, S3PROXY, KAFKA)
# Start order after the stores are healthy. The scheduler is last, because its tasks call the API server.
START_ORDER = ((COLLECTOR, DEADMAN, API_SERVER, DAG_PROCESSOR, TRIGGERER), (SCHEDULER,))
#: All programs in start order.
PROGRAMS = (*STORES, *chain.from_iterable(START_ORDER))
# The scheduler ends first, so that no new task starts; the stores end last, because all other programs write to them.
STOP_ORDER = ((SCHEDULER, DEADMAN), (TRIGGERER, DAG_PROCESSOR, API_SERVER, COLLECTOR), (KAFKA, S3PROXY, MOTO))
#: Closes the collector's objects within seconds, so that results are visible soon. Requests cost nothing here.
_CLOSE_SECONDS, _HEARTBEAT_SECONDS = 2, 2
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
    """Returns all programs with their commands. Writes the servers' configuration, and resolves missing jars.

    Args:
        with_broker: includes a Kafka broker; formats its folder the first time.
        collector: name of the collector to run; None for none.

    Raises:
        TransientError: BROKER_DOWN, the broker's folder cannot be formatted; JARS_NOT_RESOLVED.
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
    # Without their log servers, which would need two more ports; the API server reads the log files directly.
    airflow = {
        API_SERVER: (["api-server"], 15),
        DAG_PROCESSOR: (["dag-processor"], 15),
        # Killed after 4 s: it ends slowly, and runs nothing that must be finished.
        TRIGGERER: (["triggerer", "--skip-serve-logs"], 4),
        SCHEDULER: (["scheduler", "--skip-serve-logs"], 30),
    }
    return (
        Program(MOTO, (*moto, "--request-log", str(home.request_log))),
        Program(S3PROXY, lake.argv),
        *((_broker(home, ports, progress),) if with_broker else ()),
        *((_collector(home, ports, collector),) if collector is not None else ()),
        Program(DEADMAN, (python, "-m", "sandbox.stack.companion")),
        *(
            Program(name, (python, "-m", "sandbox.airflow.component", *arguments), seconds)
            for name, (arguments, seconds) in airflow.items()
        ),
    )


def _collector(home: StackHome, ports: Mapping[str, int], name: str) -> Program:
    command = (
        *(sys.executable, "-m", "deltaworks.cli", "collect", name, "--host", HOST, "--port", str(ports["collector"])),
        *("--metrics-port", str(ports["collector_metrics"]), "--spool", str(home.spool), "--drain-seconds", "0"),
        *("--close-seconds", str(_CLOSE_SECONDS), "--heartbeat-seconds", str(_HEARTBEAT_SECONDS)),
    )
    # Undelivered events stay in its spool and are delivered after the next start.
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
    """Health checks of the programs of a running stack."""

    ports: Mapping[str, int]
    keys: StackSecrets

    def healthy_programs(self, states: Mapping[str, ProgramState], names: Sequence[str]) -> dict[str, bool]:
        """Returns for each program whether it runs and responds. Airflow's health endpoint is called once for its four
        programs.
        """
        airflow: Health | None = None
        if set(names) - {*STORES, DEADMAN, COLLECTOR} and _is_running(states.get(API_SERVER)):
            airflow = self._airflow_health()
        return {name: _is_running(states.get(name)) and self._responds(name, states[name], airflow) for name in names}

    def _responds(self, name: str, state: ProgramState, airflow: Health | None) -> bool:
        if name in STORES:
            return {MOTO: self._moto, S3PROXY: self._lake, KAFKA: self._broker}[name]()
        if name == DEADMAN:
            # It answers no requests, so it has to outlive the seconds in which a program may fail at its start.
            return state.state == "RUNNING"
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
            with AirflowApi(login) as airflow:
                return airflow.health()
        except TransientError:
            return None


def _is_running(state: ProgramState | None) -> bool:
    return state is not None and state.pid is not None


def _has_heartbeat(state: ProgramState, component: Component) -> bool:
    """Returns whether a component is healthy and has sent a heartbeat after its start. Without that condition the
    heartbeat of the previous process would count, which stays valid for 30 s.
    """
    if state.started_at is None or component.heartbeat is None:
        return False
    return component.is_healthy and component.heartbeat >= datetime.fromtimestamp(state.started_at, UTC)


def failed_programs(states: Mapping[str, ProgramState], names: Sequence[str]) -> list[str]:
    """Returns the programs that the supervisor no longer restarts."""
    return [name for name in names if name in states and states[name].state == "FATAL"]
