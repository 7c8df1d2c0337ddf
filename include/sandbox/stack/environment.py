"""The environment variables of all processes of the stack, stored in `.deltaworks/env`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from deltaworks.errors import ConfigError
from deltaworks.specs.project import PIPELINES_VARIABLE
from deltaworks.specs.project_folder import load_settings, read_settings
from sandbox.airflow.settings import airflow_settings
from sandbox.servers.landing import OFFERS_QUEUE, PLAYER_OFFERS_QUEUE, PROBLEM_VIEWERS_QUEUE, queue_url
from sandbox.stack.alert_channel import webhook_variable
from sandbox.stack.home import StackHome
from sandbox.stack.ports import HOST
from sandbox.stack.secrets import StackSecrets, write_private

#: Address of the stack's broker; unset without a broker.
KAFKA_BOOTSTRAP = "DELTAWORKS_KAFKA_BOOTSTRAP"
#: URL of the stack's collector; unset without a collector.
COLLECTOR_URL = "DELTAWORKS_COLLECTOR_URL"
#: Address of SNS, SQS, Kinesis and the landing bucket.
AWS_ENDPOINT = "DELTAWORKS_AWS_ENDPOINT"
# Variables of the calling shell that would change the behaviour of the stack's processes.
_NOT_INHERITED = ("AIRFLOW_", "AWS_", "DELTAWORKS_LAKE_", "DELTAWORKS_AWS_", "PYTHON", "SPARK_", "HADOOP_")
#: A small stream with its own driver takes about 0.9 GB. Airflow, the servers and jobs take the rest.
_OTHER_GIBIBYTES, _MIN_STREAM_SLOTS, _MAX_STREAM_SLOTS = 4, 6, 32
_LOOPBACK = f"{HOST},localhost"


def stack_variables(
    home: StackHome,
    *,
    ports: Mapping[str, int],
    keys: StackSecrets,
    java_home: Path,
    with_broker: bool = False,
    with_collector: bool = False,
    pipelines: Sequence[str] | None = None,
) -> dict[str, str]:
    """Returns all variables of the stack: addresses and keys of its servers, and settings of Spark and Airflow.

    Args:
        pipelines: pipelines to run; by default those in DELTAWORKS_PIPELINES.
    """
    aws_endpoint = f"http://{HOST}:{ports['moto']}"
    variables = {
        "DELTAWORKS_HOME": str(home.root),
        "DELTAWORKS_PROJECT": str(home.project),
        "DELTAWORKS_ENVIRONMENT": os.environ.get("DELTAWORKS_ENVIRONMENT", "local"),
        "DELTAWORKS_KEYRING": str(home.keyring),
        "DELTAWORKS_LAKE_ENDPOINT": f"http://{HOST}:{ports['s3proxy']}",
        "DELTAWORKS_LAKE_ACCESS_KEY": keys.lake_access_key,
        "DELTAWORKS_LAKE_SECRET_KEY": keys.lake_secret_key,
        AWS_ENDPOINT: aws_endpoint,
        "DELTAWORKS_AWS_ACCESS_KEY": keys.aws_access_key,
        "DELTAWORKS_AWS_SECRET_KEY": keys.aws_secret_key,
        "DELTAWORKS_LANDING_QUEUE_URL": queue_url(aws_endpoint),
        "DELTAWORKS_OFFERS_QUEUE_URL": queue_url(aws_endpoint, OFFERS_QUEUE),
        "DELTAWORKS_PLAYER_OFFERS_QUEUE_URL": queue_url(aws_endpoint, PLAYER_OFFERS_QUEUE),
        "DELTAWORKS_PROBLEM_VIEWERS_QUEUE_URL": queue_url(aws_endpoint, PROBLEM_VIEWERS_QUEUE),
        "JAVA_HOME": str(java_home),
        "PATH": _search_path(java_home),
        "PYTHONPATH": str(home.project / "include"),
        "PYTHONUNBUFFERED": "1",
        "SPARK_HOME": str(_spark_home()),
        "PYSPARK_PYTHON": sys.executable,
        # Drivers and their web pages listen on the loopback address, regardless of how the host name resolves.
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TZ": "UTC",
        # Disables the look-up of a role at the cloud's metadata address, and proxies between local processes.
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": _LOOPBACK,
        "no_proxy": _LOOPBACK,
    }
    selection = os.environ.get(PIPELINES_VARIABLE, "") if pipelines is None else ",".join(pipelines)
    # Set even if it is empty: otherwise the variable in a later command's shell would change what the stack runs.
    variables[PIPELINES_VARIABLE] = selection
    variables |= webhook_variable(home)
    if with_broker:
        variables[KAFKA_BOOTSTRAP] = bootstrap_address(ports)
    if with_collector:
        variables[COLLECTOR_URL] = collector_address(ports)
    return variables | airflow_settings(home, port=ports["airflow"], keys=keys)


def stream_slots(memory_bytes: int) -> int:
    """Returns how many streams may run at the same time on a machine: one per GiB beyond the other processes' share."""
    return max(_MIN_STREAM_SLOTS, min(_MAX_STREAM_SLOTS, (memory_bytes >> 30) - _OTHER_GIBIBYTES))


def bootstrap_address(ports: Mapping[str, int]) -> str:
    """Returns the address of the stack's broker."""
    return f"{HOST}:{ports['kafka']}"


def collector_address(ports: Mapping[str, int]) -> str:
    """Returns the URL of the stack's collector."""
    return f"http://{HOST}:{ports['collector']}"


def _search_path(java_home: Path) -> str:
    folders = [str(Path(sys.executable).parent), str(java_home / "bin")]
    rest = [entry for entry in os.environ.get("PATH", os.defpath).split(os.pathsep) if entry not in folders]
    return os.pathsep.join(folders + rest)


def _spark_home() -> Path:
    module = importlib.util.find_spec("pyspark")
    if module is None or module.origin is None:
        raise ConfigError("PACKAGE_MISSING", f"pyspark is not installed in {sys.prefix}.")
    return Path(module.origin).parent


def write_env(home: StackHome, variables: Mapping[str, str]) -> None:
    """Writes the variables as shell-quoted `KEY=value` lines, readable by the owner only."""
    lines = (f"{key}={shlex.quote(value)}\n" for key, value in sorted(variables.items()))
    write_private(home.env_file, "".join(lines))


def read_env(home: StackHome) -> dict[str, str]:
    """Reads the variables that `write_env` wrote.

    Raises:
        ConfigError: STACK_NOT_PREPARED, the stack was never started.
    """
    return read_settings(home.env_file)


@contextlib.contextmanager
def loaded_env(home: StackHome) -> Iterator[None]:
    """Loads the stack's variables into this process during the block. Not thread-safe."""
    before = dict(os.environ)
    load_settings(home.env_file)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def process_environment(home: StackHome) -> dict[str, str]:
    """Returns the complete environment of a stack process: the calling shell's without excluded variables, then the
    stack's.
    """
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(_NOT_INHERITED)}
    return inherited | read_env(home)
