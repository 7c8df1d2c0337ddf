"""A single-process Kafka broker (KRaft) for the embedded stack and for tests."""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltaworks.build.jars import ensure_broker_jars, ignore_progress
from deltaworks.build.toolchain import find_java
from deltaworks.errors import TransientError
from sandbox.servers.object_store import HOST, end_process, free_port
from sandbox.stack.secrets import write_private

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

#: Partitions of a topic that the embedded stack creates.
PARTITIONS = 2
MECHANISM = "SCRAM-SHA-512"
_HEAP = "512m"
_START_SECONDS = 60.0
_ANSWER_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class BrokerLogin:
    """User and password for the broker's SASL listener."""

    username: str
    password: str

    @classmethod
    def generate(cls) -> BrokerLogin:
        """Returns a login with a random password."""
        return cls("telemetry", secrets.token_urlsafe(18))


@dataclass(frozen=True, slots=True)
class BrokerCommand:
    """The commands that run a broker. `format_argv` runs once before `argv`; it keeps a formatted folder unchanged."""

    argv: tuple[str, ...]
    format_argv: tuple[str, ...]
    properties: Mapping[str, str]
    properties_file: Path

    def prepare(self) -> None:
        """Writes the configuration, readable by its owner only, and formats the data folder.

        Raises:
            TransientError: BROKER_DOWN, the folder cannot be formatted.
        """
        write_private(self.properties_file, "".join(f"{key}={value}\n" for key, value in self.properties.items()))
        done = subprocess.run(self.format_argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise _broker_unavailable(f"its folder cannot be formatted: {(done.stdout + done.stderr)[-2000:]}")


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Addresses of a running broker: in plain text, and with `login` if it has a SASL listener."""

    bootstrap: str
    sasl_bootstrap: str | None = None
    login: BrokerLogin | None = None

    def client_options(self) -> dict[str, str]:
        """Returns the settings of a librdkafka client."""
        return {"bootstrap.servers": self.bootstrap, "log_level": "0"}


def broker_command(
    *,
    directory: Path,
    port: int,
    controller_port: int,
    properties_file: Path,
    sasl_port: int | None = None,
    login: BrokerLogin | None = None,
    settings: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = ignore_progress,
) -> BrokerCommand:
    """Returns the command of a broker that stores its topics in `directory`.

    Args:
        sasl_port: port of a second listener that requires `login` by SCRAM.
        settings: additional broker settings, which override the defaults here.
    """
    listeners = {"PLAINTEXT": port, "CONTROLLER": controller_port} | (
        {"SASL_PLAINTEXT": sasl_port} if sasl_port else {}
    )
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": ",".join(f"{name}://{HOST}:{at}" for name, at in listeners.items()),
        "advertised.listeners": ",".join(
            f"{name}://{HOST}:{at}" for name, at in listeners.items() if name != "CONTROLLER"
        ),
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "log.dirs": str(directory / "log"),
        "auto.create.topics.enable": "false",
        "num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        # The default of 50 partitions takes seconds and many files, without a benefit for a single broker.
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    if sasl_port:
        properties |= {
            "sasl.enabled.mechanisms": MECHANISM,
            "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
        }
    java = str(find_java().home / "bin" / "java")
    class_path = str(ensure_broker_jars(progress=progress) / "*")
    jvm = (java, f"-Xmx{_HEAP}", "-XX:TieredStopAtLevel=1", "-cp", class_path)
    user = ("--add-scram", f"{MECHANISM}=[name={login.username},password={login.password}]") if login else ()
    cluster = urlsafe_b64encode(uuid.uuid5(uuid.NAMESPACE_URL, str(directory)).bytes).decode().rstrip("=")
    # With `=`, because an id that begins with a dash would be parsed as an option.
    storage = ("format", "--ignore-formatted", f"--cluster-id={cluster}", "-c", str(properties_file), *user)
    return BrokerCommand(
        argv=(*jvm, "kafka.Kafka", str(properties_file)),
        format_argv=(*jvm, "kafka.tools.StorageTool", *storage),
        properties=properties | dict(settings or {}),
        properties_file=properties_file,
    )


class RunningBroker:
    """A broker that a test can stop and restart; its topics are kept."""

    def __init__(self, command: BrokerCommand, address: BrokerAddress, output: Path) -> None:
        self.address = address
        self._command = command
        self._output = output
        self._process: subprocess.Popen[Any] | None = None

    def start(self) -> None:
        """Starts the broker and waits until it accepts connections.

        Raises:
            TransientError: BROKER_DOWN, with the end of the broker's output.
        """
        with self._output.open("a") as output:
            self._process = subprocess.Popen(
                self._command.argv, stdout=output, stderr=subprocess.STDOUT, cwd=self._output.parent
            )
        deadline = time.monotonic() + _START_SECONDS
        while not is_reachable(self.address.bootstrap):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise _broker_unavailable(
                    f"it does not answer at {self.address.bootstrap}: {self._output.read_text()[-2000:]}"
                )
            time.sleep(0.2)

    def kill(self) -> None:
        """Kills the broker, like a machine failure."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Stops the broker gracefully."""
        if self._process is not None:
            end_process(self._process)
            self._process = None


@contextmanager
def running_broker(
    directory: Path, *, login: BrokerLogin | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[RunningBroker]:
    """Runs a broker during the block.

    Raises:
        TransientError: BROKER_DOWN.
    """
    port, sasl_port = free_port(), free_port() if login else None
    work = Path(tempfile.mkdtemp(prefix="kafka-"))
    command = broker_command(
        directory=directory,
        port=port,
        controller_port=free_port(),
        properties_file=work / "server.properties",
        sasl_port=sasl_port,
        login=login,
        settings=settings,
    )
    address = BrokerAddress(f"{HOST}:{port}", f"{HOST}:{sasl_port}" if sasl_port else None, login)
    broker = RunningBroker(command, address, work / "output")
    try:
        command.prepare()
        broker.start()
        yield broker
    finally:
        broker.stop()
        shutil.rmtree(work, ignore_errors=True)


def is_reachable(bootstrap: str) -> bool:
    """Returns whether a server accepts connections at the address. A broker does so once it can serve requests."""
    host, _, port = bootstrap.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1):
            return True
    except OSError:
        return False


def is_serving(bootstrap: str) -> bool:
    """Returns whether a broker responds within two seconds. A hanging broker still accepts connections."""
    from confluent_kafka import KafkaException

    try:
        _admin(bootstrap).list_topics(timeout=2)
    except KafkaException:
        return False
    return True


def create_topics(bootstrap: str, topics: Collection[str]) -> tuple[str, ...]:
    """Creates missing topics, with two partitions each.

    Returns:
        The created topics.

    Raises:
        TransientError: BROKER_DOWN.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.cimpl import NewTopic

    admin = _admin(bootstrap)
    try:
        existing = admin.list_topics(timeout=_ANSWER_SECONDS).topics
        missing = tuple(topic for topic in topics if topic not in existing)
        if missing:
            creations = admin.create_topics([NewTopic(topic, PARTITIONS) for topic in missing])
            for creation in creations.values():
                creation.result(_ANSWER_SECONDS)
    except KafkaException as error:
        raise _broker_unavailable(f"topics cannot be created: {error}") from error
    return missing


def _admin(bootstrap: str) -> AdminClient:
    from confluent_kafka.admin import AdminClient

    return AdminClient({**BrokerAddress(bootstrap).client_options()})


def _broker_unavailable(what: str) -> TransientError:
    return TransientError("BROKER_DOWN", f"The Kafka broker does not run: {what}")
